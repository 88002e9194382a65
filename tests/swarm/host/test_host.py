"""What a host keeps to itself, what it forgets, and what a relay leaves out of libp2p. No network."""

from __future__ import annotations

import importlib
import secrets
import sys

import pytest
import trio
from libp2p.peer.id import ID
from libp2p.rcmgr import Direction
from multiaddr import Multiaddr

from sapo_edge.swarm.host import host as module
from sapo_edge.swarm.host.absent import be_lean, leave_out
from sapo_edge.swarm.host.gossip import Gossip, Verdict
from sapo_edge.swarm.host.host import IdentityKey, make_host
from sapo_edge.swarm.host.traffic import Meter
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.tally import Tally
from tests.defences.defence import fails_without
from tests.swarm.loop import in_trio

IDENTITY = Identity(bytes([1]) * 32)


def stranger() -> ID:
    return ID.from_string(Identity(secrets.token_bytes(32)).peer_id)


@fails_without("swarm/host/host.py", "raise PermissionError", "return self._identity.secret or")
def test_the_librarys_key_signs_and_reveals_nothing() -> None:
    key = IdentityKey(IDENTITY)
    assert key.get_public_key().verify(b"data", key.sign(b"data"))
    for reveal in (key.to_bytes, key.serialize):
        with pytest.raises(PermissionError):
            reveal()


@fails_without("swarm/host/host.py", "max_streams=MAX_STREAMS", "max_streams=10**9")
@in_trio()
async def test_the_library_refuses_no_connection_and_bounds_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_STREAMS", 3)
    network = make_host(IDENTITY, None, Meter(0, 0, Tally()), max_connections=2048).get_network()
    manager, anywhere = network._resource_manager, Multiaddr("/ip4/0.0.0.0/tcp/0")
    for number in range(1100):
        peer = stranger()
        assert manager.open_connection(peer, "9.9.9.9", "inbound") is not None
        if manager.connection_lifecycle is not None:
            # As `Swarm.add_conn` asks it.
            established = manager.connection_lifecycle.handle_established_inbound_connection
            await established(str(number), peer, anywhere, anywhere)
    assert [manager.acquire_stream("peer", Direction.INBOUND) for _ in range(4)] == [True, True, True, False]
    assert network._stream_semaphore.value == 3
    await trio.lowlevel.checkpoint()


@fails_without("swarm/host/gossip.py", "del table[peer_id]", "pass")
@fails_without("swarm/host/gossip.py", "for peer_id in table if peer_id not in connected]", "for peer_id in table]")
@in_trio()
async def test_peers_that_left_are_forgotten_also_by_the_mesh() -> None:
    await trio.lowlevel.checkpoint()
    meter = Meter(0, 0, Tally())
    host = make_host(IDENTITY, None, meter)
    gossip = Gossip(host, "topic", lambda *_: Verdict.ACCEPT, lambda *_: None, lambda peer: 0.0, meter)
    scorer, here = gossip.router.scorer, stranger()
    gossip.peers[here] = None
    for peer in (here, *(stranger() for _ in range(10))):
        scorer.on_invalid_message(peer, "topic")
        scorer.on_first_delivery(peer, "topic")
        gossip.router.back_off.setdefault("topic", {})[peer] = 1
    gossip.forget_strangers()
    tables = scorer.invalid_messages, scorer.first_message_deliveries, gossip.router.back_off["topic"]
    assert [list(table) for table in tables] == [[here]] * 3, "whoever is connected begins no new life"


def test_what_is_left_out_can_be_named_and_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    leave_out(("no_such_package", "other.part"))
    module = importlib.import_module("no_such_package.inner")
    thing = module.Thing
    assert module.Thing.member and issubclass(type("Own", (thing,), {}), thing) and not isinstance(3, thing)
    with pytest.raises(ValueError, match="another"):
        try:
            raise ValueError("another")
        except thing:
            pytest.fail("it is caught as what nobody raises")
    for use in (thing, thing.from_bytes, type("Own", (thing,), {})):
        with pytest.raises(ModuleNotFoundError, match="left out"):
            use(b"data")
    for name in ("other", "no_such_package_either"):
        with pytest.raises(ModuleNotFoundError, match="No module named"):
            importlib.import_module(name)


def test_nothing_is_left_out_once_libp2p_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    finders = [*sys.meta_path]
    monkeypatch.setitem(sys.modules, "libp2p", sys)
    be_lean(is_private=False)
    assert sys.meta_path == finders
