"""Defences of the control socket in `sapo_edge/control/`: against other users, and programs that read nothing."""

from __future__ import annotations

from tests.defences.defence import Defences

protocol = Defences("sapo_edge/control/protocol.py", "tests/unit/control/test_server.py")
server = Defences("sapo_edge/control/server.py", "tests/unit/control/test_server.py")

DEFENCES = (
    protocol(
        "a link is no directory of a socket",
        "not stat.S_ISDIR(status.st_mode) or ",
        "",
        "test_a_directory_that_somebody_else_made_is_refused",
    ),
    protocol(
        "another user's directory is none of a socket",
        ' or (hasattr(os, "geteuid") and status.st_uid != os.geteuid()):',
        ":",
        "test_a_directory_that_somebody_else_made_is_refused",
    ),
    server(
        "bytes of past events",
        "while first and size + len(lines[first - 1]) <= MAX_REPLAY_BYTES:",
        "while first:",
        "test_what_a_subscription_leaves_out_and_what_it_can_not_read",
    ),
    server(
        "answers that wait for a client",
        "self.closing or self.backlog <= MAX_BACKLOG_BYTES",
        "True",
        "test_a_client_that_reads_no_answers_is_not_read_any_further",
    ),
    server(
        "events that wait for a client",
        "self.subscribed and self.backlog + len(line) > MAX_BACKLOG_BYTES",
        "False",
        "test_a_slow_reader_is_dropped_with_a_reason_and_slows_down_nobody",
    ),
    server.condition(
        "clients of the control socket", "if len(self._clients) > MAX_CLIENTS:", "test_new_clients_replace_idle_ones"
    ),
)
