"""The numbers that SECURITY.md and docs/evidence.md promise are those of the code, and tests show what they do."""

from __future__ import annotations

import inspect
import re
from importlib.metadata import version
from pathlib import Path

from sapo_edge import room, selection
from sapo_edge.backends.model import gguf_header
from sapo_edge.cli.web import serve, server
from sapo_edge.config.settings import Settings
from sapo_edge.library import metrics
from sapo_edge.pool import authors
from sapo_edge.pool.pool import PoolLimits
from sapo_edge.swarm import config
from sapo_edge.swarm.addresses import HOME_BITS, LocalNetworks, may_dial_port, neighbourhood, region
from sapo_edge.swarm.addresses import Address as At
from sapo_edge.swarm.codes import code
from sapo_edge.swarm.finding import circuit, dialing, hop, mdns, peerbook
from sapo_edge.swarm.finding.outside import AGREE
from sapo_edge.swarm.host import gossip, hardening, host, identify, traffic, work
from sapo_edge.swarm.joining import identity
from sapo_edge.swarm.judging import external, reputation
from sapo_edge.swarm.member import pull
from sapo_edge.swarm.rendezvous import rendezvous
from sapo_edge.swarm.router import mapping, program
from sapo_edge.swarm.visits import find
from sapo_edge.swarm.wire import messages
from sapo_edge.tasks import bounded, manifest, question_data, question_parquet, readings
from tests.defences import defence

MIB = 1024 * 1024
DOCUMENTS = Path(__file__).parents[2]


def may_dial(port: int) -> bool:
    return LocalNetworks((), (), loopback=False).may_dial(At("ip4", "9.9.9.9", port, ""))


KEPT = "tests/swarm/test_promises_kept.py::test_"
OFFER, SHARE = hop.MEMBERS_OFFER, Settings().share

SHOWN: dict[str, dict[str, bool]] = {
    "tests/swarm/host/test_limits.py::test_a_handshake_has_ten_seconds":
        {"10 s for a handshake": host.UPGRADE_SECONDS == 10},
    "tests/swarm/host/test_limits.py::test_a_write_without_progress_has_thirty_seconds":
        {"30 s for a write": traffic.WRITE_STALLED == 30},
    "tests/swarm/host/test_identify.py::test_a_peer_that_says_nothing_holds_nothing_up":
        {"has 10 s and at most 8 KiB": (identify.IDENTIFY_SECONDS, identify.MAX_IDENTIFY_BYTES) == (10, 8192)},
    "tests/swarm/host/test_identify.py::test_what_a_peer_says_is_bounded_and_forgotten_when_it_leaves":
        {"32 protocols": identify.MAX_PROTOCOLS == 32},
    "tests/swarm/host/test_mesh.py::test_grafts_do_not_multiply_what_is_forwarded":
        {"The mesh takes 24 neighbours": gossip.MAX_MESH == 24},
    f"{KEPT}whatever_peers_name_eight_are_dialled_and_then_one_a_second_at_three_addresses": {
        "one peer a second after the first eight, at three addresses at most":
            (dialing.DIALS_PER_SECOND, dialing.DIAL_BURST, dialing.ADDRESSES_PER_ATTEMPT) == (1, 8, 3),
        "each address once in 10 s": dialing.SAME_HOST_SECONDS == 10,
    },
    f"{KEPT}whoever_is_behind_a_relay_has_a_node_dial_few_addresses_for_hole_punches": {
        "one in 5 s after the first eight, at four addresses at most, and each address three times in 20 s":
            (circuit.PUNCHES_PER_SECOND, circuit.PUNCH_BURST, circuit.MAX_PUNCHED, circuit.PUNCH_SECONDS)
            == (1 / 5, 8, 4, 20),
    },
    f"{KEPT}eight_networks_take_all_places_for_pulls_and_seven_do_not": {"eight networks": pull.PULLS.max_served == 8},
    f"{KEPT}sixty_four_networks_take_all_inbound_connections_and_sixty_three_do_not":
        {"Sixty-four networks can take all inbound connections": traffic.MAX_SOCKETS == 64},
    f"{KEPT}sixteen_connections_come_through_one_relay_and_no_more":
        {"16 through one relay": circuit.MAX_CIRCUITS_OF_RELAY == 16},
    f"{KEPT}what_peers_say_of_a_node_counts_once_two_networks_say_it": {"until two other networks agree": AGREE == 2},
    f"{KEPT}a_member_lets_one_address_open_eight_circuits_and_then_one_in_five_seconds": {
        "after the first eight, one opened in 5 seconds for all together, beside one in 50 for each address":
            OFFER.openings == (1 / 50, 2, 1 / 5, 8),
    },
    f"{KEPT}what_a_member_carries_for_one_address_is_little_more_than_half_of_64_kib_a_second":
        dict.fromkeys(("64 KiB a second for all", "64 KiB a second"), config.MEMBERS_RATE == 64 * 1024),
    "tests/swarm/finding/test_discovery.py::"
    "test_services_that_say_nothing_or_too_much_keep_no_other_from_being_found":
        {"the newest 256 are remembered": mdns.MAX_SERVICES == 256},
    "tests/swarm/router/test_mapping.py::"
    "test_whatever_a_router_has_the_library_do_takes_20_seconds_and_512_mib_at_most":
        {"with 20 s and 512 MiB": (program.SECONDS, program.MEMORY) == (20, 512 * MIB)},
    "tests/swarm/router/test_mapping.py::test_a_hostile_routers_answer_is_bounded": {
        "more than 512 bytes counts as none": mapping.MAX_OUTPUT == 512,
        "ports below 1024, except 443,": [port for port in range(1024) if may_dial_port(port)] == [443],
    },
    "tests/swarm/joining/test_identity.py::test_a_backup_needs_the_documented_memory":
        {"a second and 256 MB": identity._MEMORY == 256 * MIB},
    "tests/swarm/codes/test_codes.py::test_a_lying_place_gets_one_guess_from_a_joiner":
        {"two tries in 1.7 million a code": True},
    "tests/swarm/codes/test_codes.py::test_a_place_that_guesses_gets_one_guess_from_an_inviter":
        {"two tries in 1.7 million a code": True},
    "tests/swarm/member/test_libp2p.py::"
    "test_questions_named_by_digest_come_from_a_member_who_has_them_and_from_nobody_else":
        {"in pieces of 256 KiB": messages.PIECE_BYTES == 256 * 1024},
    "tests/cli/test_control_commands.py::test_whoever_asks_without_end_is_answered_at_a_rate":
        {"5 requests a second": metrics.REQUESTS_PER_SECOND == 5},
    "tests/tui/test_serve.py::test_only_loopback_is_listened_on":
        {"127.0.0.1 alone is listened on": serve.HOST == "127.0.0.1"},
    "tests/tui/test_serve.py::test_a_few_pages_at_a_time": {"4 apps at a time": server.MAX_SESSIONS == 4},
}  # fmt: skip
"""Tests with py-libp2p's hosts, or the real sockets and processes that a promise is about: what SECURITY.md says, and
whether it is true."""
COMPARED: dict[str, dict[str, bool]] = {
    "no network has a part in it: tests of the function show it": {
        "At most 4096 characters are verified": readings.MAX_ANSWER_CHARACTERS == 4096,
        "At most 256 KiB; generators": manifest.MAX_MANIFEST_BYTES == 256 * 1024,
        "At most 200,000 questions and 64 MB in all":
            (question_data.MAX_DATA_QUESTIONS, question_data.MAX_DATA_BYTES) == (200_000, 64_000_000),
        "a manifest that names 64 MB of questions": True,
        "2 GiB of address space": question_parquet.MEMORY == 2048 * MIB,
        "rows of at most 256 KiB": question_parquet.MAX_ROW == 256 * 1024,
        "a header has at most 64 MiB": gguf_header.MAX_HEADER_BYTES == 64 * MIB,
        "arrays 3 million elements": gguf_header.MAX_ELEMENTS == 3 << 20,
        "for tasks of peers, 5 seconds": external.TASK_SECONDS == 5,
        "twice at most": bounded.MAX_ABANDONED == 2,
        "among more than 16 others": room.FEW == 16,
        "four budgets a round": room.GENEROUS == 4,
        "at most a quarter of it": PoolLimits().author_share == 1 / 4,
        "a factor of 4 each half hour, down to the budget / 16384":
            (authors.STEP, PoolLimits().seconds / 2, selection.LARGEST_SWARM) == (4, 1800, 16384),
        "on port 443 or from 1024 on": [port for port in range(2048) if may_dial(port)] == [443, *range(1024, 2048)],
        "an IPv4 /24 or IPv6 /48 each":
            (neighbourhood("9.9.9.9"), neighbourhood("2a00:1:2:3::4")) == ("9.9.9.0/24", "2a00:1:2::/48"),
        "(of IPv6, of the /56)": HOME_BITS == 56,
        "several /16 networks": region(At("ip4", "9.9.9.9", 4001, "")) == "9.9.0.0/16",
        "16 of each answer and 256 in all wait at most, two of one network in an answer":
            (rendezvous.MAX_OF_ANSWER, rendezvous.MAX_PLACES, rendezvous.MAX_OF_NETWORK) == (16, 256, 2),
        "at most 32 unreached ones": peerbook.MAX_FROM_ONE_SOURCE == 32,
        "at most 32 are known": peerbook.MAX_ANNOUNCED == 32,
        "A search lasts 25 s": find.SECONDS == 25,
        "gives each address 8 s": find.ASK_SECONDS == 8,
        "others fill 24 places": find.MAX_SWARMS == 24,
        "a minute at first and up to an hour": (reputation.FIRST_IGNORED, reputation.LONGEST_IGNORED) == (60, 3600),
    },
    "of processor time: real hosts show it by a clock that each step moves on, and with less": {
        "share a fortieth of a core": work.ARRIVING_SHARE == 1 / 40,
        "a hundredth of a core for each address, and 12 hundredths": (work.SHARE, work.COMMON) == (0.01, 0.12),
    },
    "32 MiB take 8 minutes at its rate: number, bytes and time are shown with less": {
        "8 circuits of 32 MiB and 30 minutes":
            (OFFER.circuits, OFFER.circuit_bytes, OFFER.circuit_seconds) == (8, 32 * MIB, 1800),
    },
    "a setting; that a cap holds is shown with less": {
        "4 Mbit/s unless you change it": Settings().upload * 8 == 4_000_000,
    },
    "arithmetic, or what is installed": {
        "two of 1295 words": (code.WORDS, len(code.word_list())) == (2, 1295),
        "one of 1.7 million pairs": round(len(code.word_list()) ** code.WORDS / 1e6, 1) == 1.7,
        "256 random bits": "token_urlsafe(256 // 8)" in inspect.getsource(server.PageServer),
        "three dials of a public address in 10 s": True,
        "py-libp2p** 0.8.1": version("libp2p").partition("+")[0] == "0.8.1",
    },
}  # fmt: skip
"""The other promises, by the reason why no such test shows them."""
SECURITY = {phrase: is_so for group in (*SHOWN.values(), *COMPARED.values()) for phrase, is_so in group.items()}
OTHERS = (
    "SHA-256", "0600", "0700", "127.0.0.1", "/64", "every failure scores 0", "longer than 5 minutes", "100 nodes", "96",
    "0.70", "0.41", "64 keys", "0.09", "640", "3 simulated hours",
)  # fmt: skip
"""Numbers in SECURITY.md that promise no bound: modes of files, which other tests see, and what was measured."""
ATTACKS: dict[str, bool] = {
    "four requests at a time, 20 s each": (pull.MAX_PULLS, pull.PULLS.answer_seconds) == (4, 20),
    "24 connections at most": traffic.MAX_SOCKETS_PER_ADDRESS == 24,
    "0.5 s for each address and 0.3 s for all are free": (work.SHARE_BURST, work.COMMON_BURST) == (0.5, 0.3),
    "first 5 minutes and 4 rollouts": (reputation.ESTABLISHED_SECONDS, reputation.ESTABLISHED_AFTER) == (300, 4),
    "in a round of a minute among 1,000 authors for a quarter of an hour": 840 < 1000 / (SHARE / 60) < 960,
    "up to 3 MiB each": min(hardening.MAX_BUFFERED, traffic.UNREAD_BYTES // 2) == 3 * MIB,
    "7 MiB together": traffic.UNREAD_BYTES * 9 / 8 < 7 * MIB,
}


def text_of(name: str) -> str:
    """A document without the names of what is in the code, on one line."""
    return " ".join(re.sub(r" ?\(?`[^`]*`\)?,? ?", " ", (DOCUMENTS / name).read_text("utf-8")).split())


def test_what_is_promised_is_so_and_what_shows_it_exists() -> None:
    attacks = text_of("docs/evidence.md") + text_of("docs/records/attacks.csv")
    for name, text, promises in (
        ("SECURITY.md", text_of("SECURITY.md"), SECURITY),
        ("docs/evidence.md", attacks, ATTACKS),
    ):
        assert [phrase for phrase in promises if phrase not in text] == [], f"{name} does not say it like this"
        assert [phrase for phrase, is_so in promises.items() if not is_so] == [], f"{name} says it"
    assert [test for test in SHOWN if not defence.test_exists(DOCUMENTS, test)] == []


def test_no_number_is_promised_that_is_not_looked_at() -> None:
    text = text_of("SECURITY.md")
    for phrase in (*SECURITY, *OTHERS):
        text = text.replace(phrase, "")
    assert re.findall(r".{0,40}(?<![A-Za-z\d])\d.{0,20}", text) == []
