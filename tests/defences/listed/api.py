"""Defences of `sapo api` in `sapo_edge/cli/api/`: against other users, other pages, and askers who take all."""

from __future__ import annotations

from tests.defences.defence import Defences

server = Defences("sapo_edge/cli/api/server.py", "tests/cli/api/test_server.py")
engine = Defences("sapo_edge/cli/api/engine.py", "tests/cli/api/test_server.py")

DEFENCES = (
    server.condition(
        "programs show the token",
        'if not tokens.is_shown(request.headers.get("Authorization", ""), token):',
        "test_without_the_token_nothing_is_answered",
    ),
    server.condition(
        "programs name this machine",
        "if not is_this_machine(host, self._loopback):",
        "test_other_pages_and_names_are_turned_away_even_with_the_token",
    ),
    server(
        "a body is taken as it is",
        "auto_decompress=False",
        "auto_decompress=True",
        "test_a_compressed_body_is_not_unpacked",
    ),
    engine.condition(
        "a long answer makes room for who waits",
        "if goes_on and self._waiting and not pending.is_seeded and tokens >= len(pending.drawn) + SLICE_TOKENS:",
        "test_who_asks_during_a_long_answer_waits_for_a_slice_of_it",
    ),
)
