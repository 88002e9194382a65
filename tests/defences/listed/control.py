"""Defences of the control socket in `sapo_edge/control/`: against other users, and programs that read nothing."""

from __future__ import annotations

from tests.defences.defence import Defence

_TESTS = "tests/unit/control/test_server.py::"
_DIRECTORY = (_TESTS + "test_a_directory_that_somebody_else_made_is_refused",)

DEFENCES = (
    Defence(
        "a link is no directory of a socket",
        "sapo_edge/control/protocol.py",
        "not stat.S_ISDIR(status.st_mode) or ",
        "",
        _DIRECTORY,
    ),
    Defence(
        "another user's directory is none of a socket",
        "sapo_edge/control/protocol.py",
        ' or (hasattr(os, "geteuid") and status.st_uid != os.geteuid()):',
        ":",
        _DIRECTORY,
    ),
    Defence(
        "bytes of past events",
        "sapo_edge/control/server.py",
        "    while first and size + len(lines[first - 1]) <= MAX_REPLAY_BYTES:\n",
        "    while first:\n",
        (_TESTS + "test_only_so_much_of_the_past_is_sent",),
    ),
    Defence(
        "answers that wait for a client",
        "sapo_edge/control/server.py",
        "self.closing or self.backlog <= MAX_BACKLOG_BYTES",
        "True",
        (_TESTS + "test_a_client_that_reads_no_answers_is_not_read_any_further",),
    ),
    Defence(
        "events that wait for a client",
        "sapo_edge/control/server.py",
        "self.subscribed and self.backlog + len(line) > MAX_BACKLOG_BYTES",
        "False",
        (_TESTS + "test_a_slow_reader_is_dropped_with_a_reason_and_slows_down_nobody",),
    ),
    Defence(
        "clients of the control socket",
        "sapo_edge/control/server.py",
        "            if len(self._clients) > MAX_CLIENTS:\n",
        "            if False:\n",
        (_TESTS + "test_new_clients_replace_idle_ones",),
    ),
)
