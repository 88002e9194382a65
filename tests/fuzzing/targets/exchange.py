"""Peer exchange: request and response decode or are a WireError, and encode and decode to themselves.

A request names no addresses but the sender's own through relays; each group of a response is of one peer.
"""

from __future__ import annotations

from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.wire import exchange
from sapo_edge.swarm.wire.codec import WireError
from sapo_edge.swarm.wire.exchange import ExchangeRequest, ExchangeResponse
from tests.fuzzing.target import KIB, Target, read
from tests.fuzzing.targets.address import ADDRESSES, CIRCUIT

SENDER = Identity(bytes(32)).peer_id


def check(data: bytes) -> None:
    if (request := read(lambda frame: exchange.decode_request(frame, SENDER), data, WireError)) is not None:
        assert all(address.relay and address.peer_id == SENDER for address in request.circuits)
        assert exchange.decode_request(exchange.encode_request(request), SENDER) == request
    if (response := read(exchange.decode_response, data, WireError)) is None:
        return
    assert all(len({address.peer_id for address in group}) == 1 for group in response.peers)
    again = exchange.decode_response(exchange.encode_response(response))
    # Shortened until it fits: an address may be written shorter than it is encoded again.
    assert again.peers == response.peers[: len(again.peers)]
    assert again.clock_ahead(0.0, 1.0) == response.clock_ahead(0.0, 1.0)


def seeds() -> list[bytes]:
    seen, tag = ADDRESSES[0].host, bytes(range(32))
    responses = [
        ExchangeResponse(True, seen, True, 1763712345.25, tuple((address,) for address in ADDRESSES)),
        ExchangeResponse(False, "", None, 0.0, ((ADDRESSES[0], ADDRESSES[0]), ())),
    ]
    requests = [ExchangeRequest(tag, 9100, (CIRCUIT,), True), ExchangeRequest(tag, 0)]
    return [*map(exchange.encode_response, responses), *map(exchange.encode_request, requests)]


TARGET = Target(check, seeds, exchange.MAX_FRAME_BYTES + 1, 512 * KIB, 32)
