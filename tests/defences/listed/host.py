"""Defences in `sapo_edge/swarm/host/`: sockets, streams, requests and GossipSub frames of peers."""

from __future__ import annotations

from tests.defences.defence import Defence

DEFENCES = (
    Defence(
        "the rate of requests of one peer",
        "sapo_edge/swarm/host/requests.py",
        """        if not bucket.take():
            return "rate"
""",
        "",
        ("tests/swarm/host/test_requests.py::test_requests_are_bounded_and_refusals_are_counted",),
    ),
    Defence(
        "requests that are served at the same time",
        "sapo_edge/swarm/host/requests.py",
        '"busy" if self.serving >= self._protocol.max_served else ""',
        '""',
        ("tests/swarm/host/test_requests.py::test_requests_are_bounded_and_refusals_are_counted",),
    ),
    Defence(
        "a server's own reasons to refuse",
        "sapo_edge/swarm/host/requests.py",
        "return self._other_refusal(peer_id) or (",
        "return (",
        ("tests/swarm/host/test_requests.py::test_a_server_can_refuse_for_reasons_of_its_own",),
    ),
    Defence(
        "the length of a request or response",
        "sapo_edge/swarm/host/requests.py",
        "    if size > limit:\n",
        "    if False:\n",
        ("tests/swarm/host/test_requests.py::test_requests_are_bounded_and_refusals_are_counted",),
    ),
    Defence(
        "time for a request to arrive",
        "sapo_edge/swarm/host/requests.py",
        "        with trio.fail_after(self._protocol.read_seconds):\n",
        "        if True:\n",
        ("tests/swarm/host/test_requests.py::test_requests_are_bounded_and_refusals_are_counted",),
    ),
    Defence(
        "time for a response to be read",
        "sapo_edge/swarm/host/requests.py",
        """        with trio.fail_after(self._protocol.total_seconds):
            await write_frame(stream, response)""",
        """        if True:
            await write_frame(stream, response)""",
        ("tests/swarm/host/test_requests.py::test_a_peer_that_does_not_read_its_response_holds_no_place_for_long",),
    ),
    Defence(
        "whoever sends no request is blamed",
        "sapo_edge/swarm/host/requests.py",
        '                self._blame(peer_id, "request")\n',
        "",
        ("tests/swarm/host/test_requests.py::test_requests_are_bounded_and_refusals_are_counted",),
    ),
    Defence(
        "peers whose rate of requests is remembered",
        "sapo_edge/swarm/host/requests.py",
        "Recent(MAX_REMEMBERED_PEERS)",
        "Recent(10**9)",
        ("tests/swarm/host/test_requests.py::test_the_oldest_rates_are_forgotten",),
    ),
)
