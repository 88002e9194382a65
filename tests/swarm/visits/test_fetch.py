"""Short visits to peers: what is believed of a manifest, and how long and how many peers are asked."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
import trio
import trio.testing
from libp2p.custom_types import TProtocol

from sapo_edge.errors import ManifestError, StateError
from sapo_edge.swarm.addresses import Address, LocalNetworks, direct_address, parse_address
from sapo_edge.swarm.codes.claim import PROTOCOL, Claim
from sapo_edge.swarm.codes.meeting_place import LOST, ask_place
from sapo_edge.swarm.codes.reaching import identify, parse_place
from sapo_edge.swarm.finding import mdns, visiting
from sapo_edge.swarm.finding.circuit import open_way
from sapo_edge.swarm.finding.mdns import Announcement
from sapo_edge.swarm.finding.visiting import visiting_host
from sapo_edge.swarm.host.host import listen_port
from sapo_edge.swarm.host.requests import RequestError, RequestServer
from sapo_edge.swarm.joining.invite import Swarm
from sapo_edge.swarm.member.pull import PULLS
from sapo_edge.swarm.rendezvous.lookup import Entry
from sapo_edge.swarm.rendezvous.rendezvous import Topic, keys_at, volunteer_keys
from sapo_edge.swarm.tally import Tally
from sapo_edge.swarm.visits import fetch
from sapo_edge.swarm.wire.exchange import ExchangeResponse, swarm_tag
from sapo_edge.swarm.wire.messages import OWN, encode_manifest_response
from sapo_edge.tasks.manifest import Manifest, load_manifest
from tests.defences.defence import fails_without
from tests.swarm.finding.fakes import OTHER as PEER
from tests.swarm.finding.fakes import STRANGER
from tests.swarm.loop import in_trio

WANTED, OTHER = load_manifest("starter"), load_manifest("arithmetic")


@fails_without("swarm/visits/fetch.py", " and digest in (OWN, bytes.fromhex(manifest.digest))")
@fails_without("swarm/visits/fetch.py", "except (RequestError, WireError, ManifestError):", "except RequestError:")
@pytest.mark.parametrize(
    ("answer", "digest", "is_believed"),
    [
        (encode_manifest_response(WANTED.to_bytes()), bytes.fromhex(WANTED.digest), True),
        (encode_manifest_response(WANTED.to_bytes()), OWN, True),
        (encode_manifest_response(OTHER.to_bytes()), bytes.fromhex(WANTED.digest), False),
        (encode_manifest_response(WANTED.to_bytes()[:-1]), OWN, False),
        (encode_manifest_response(None), OWN, False),
        (b"\xff", OWN, False),
        (RequestError("silent"), OWN, False),
    ],
    ids=["right", "its own", "another", "damaged", "none", "garbage", "silent"],
)
def test_a_manifest_is_taken_that_has_the_digest_of_the_invite(
    answer: bytes | Exception, digest: bytes, is_believed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "request", AsyncMock(side_effect=[answer]))
    host: Any = None
    assert trio.run(fetch.ask_manifest, host, PEER, digest) == (WANTED if is_believed else None)


@in_trio()
async def test_a_manifest_comes_from_a_neighbour_if_the_invite_leads_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a class without the internet, whose router has given the teacher's computer another address since."""
    key, tags = b"k" * 32, list[bytes]()
    swarm = Swarm.of(WANTED, (f"/ip4/127.0.0.1/tcp/9/p2p/{PEER}",), key)

    respond = AsyncMock(return_value=encode_manifest_response(WANTED.to_bytes()))
    async with visiting_host(key, "loopback") as member:
        RequestServer(member, PULLS, respond, Tally()).start()
        here = direct_address("127.0.0.1", listen_port(member), str(member.get_id()))

        async def announced(announcement: Announcement, look: object, found: Any, tally: object) -> None:
            tags.append(announcement.tag)
            found(here)
            await trio.sleep_forever()

        monkeypatch.setattr(mdns, "run_mdns", announced)
        monkeypatch.setattr(fetch, "find_local_networks", lambda *_: LocalNetworks((), (), loopback=True))
        monkeypatch.setattr(fetch, "HEAD_START_SECONDS", 0.1)
        assert await fetch._fetch(swarm, 1.0, None) is None and not tags
        assert await fetch._fetch(swarm, 10.0, None, mdns=True) == WANTED
    assert tags == [swarm_tag(swarm.manifest, key, "mdns")]


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is visited names others without end."""

    async def meet(*arguments: object) -> AsyncIterator[str]:
        while True:
            await trio.sleep(0.01)
            yield PEER

    for module in (fetch, visiting):
        monkeypatch.setattr(module, "meet", meet)
    monkeypatch.setattr(visiting, "ask", AsyncMock(return_value=ExchangeResponse(True, "", None, time.time())))
    monkeypatch.setattr(fetch, "ask_manifest", AsyncMock(return_value=None))


@in_trio()
async def test_nobody_is_asked_where_the_port_is_in_use() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert await visiting.ask_peers(taken.getsockname()[1], "loopback", (), b"s" * 32, None) == []


@fails_without("swarm/visits/fetch.py", "trio.move_on_after(timeout) as", "trio.move_on_after(1e6) as")
@fails_without("swarm/visits/fetch.py", "if peer_id in asked:")
@fails_without("swarm/finding/visiting.py", "if len(views) >= MAX_ASKED:")
@in_trio()
async def test_few_peers_are_asked_and_for_a_while(
    endless: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []

    async def ask_pieces(host: object, peer_id: str, *_: object) -> None:
        asked.append(peer_id)
        await trio.sleep(0.5)
        raise ManifestError("wrong questions", "ask another")

    monkeypatch.setattr(fetch, "_ask_pieces", ask_pieces)
    data: Any = SimpleNamespace(size=1)
    with trio.fail_after(5):
        assert len(await visiting.ask_peers(0, "loopback", (), b"s" * 32, None)) == 5
        assert await fetch._fetch(Swarm(b"d" * 32, "own"), 0.2, None) is None
        assert not await fetch._fetch_questions(data, tmp_path, Swarm(b"d" * 32, "own"), 0.2, None)
        assert asked == [PEER], "once, although it takes longer than finding it may"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), StateError("the disk is full", "free some space")])
def test_what_ends_a_fetch_comes_out_of_all_nurseries(
    error: BaseException, endless: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask_manifest(*arguments: object) -> None:
        async with trio.open_nursery():
            raise error

    monkeypatch.setattr(fetch, "ask_manifest", ask_manifest)
    with pytest.raises(type(error)):
        fetch.fetch_manifest(Swarm(b"d" * 32, "own", ("/ip4/5.5.9.9/tcp/4001/p2p/" + PEER,)))


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The keys that are looked up, and under which the DHT names first nobody, then a member."""
    keys: list[bytes] = []

    async def look_up(entry: Entry, topics: Sequence[Topic]) -> None:
        keys.extend(key for topic in topics for key in topic.keys_now())
        assert [await topics[0].try_place(place) for place in (("5.5.5.5", 1), ("6.6.6.6", 2))] == [False, True]

    async def named_address(host: object, networks: object, ip: str, port: int) -> Address | None:
        return direct_address(ip, port, PEER) if port == 2 else None

    async def meet(host: object, addresses: Sequence[str], swarm: bytes) -> AsyncIterator[str]:
        await trio.sleep(10)  # a dead address
        for address in addresses:
            if "6.6.6.6" in address:
                yield parse_address(address).peer_id

    async def ask_manifest(host: object, peer_id: str, digest: bytes) -> Manifest | None:
        if peer_id != PEER:
            await trio.sleep_forever()
        return WANTED

    for function in (look_up, named_address, meet, ask_manifest):
        monkeypatch.setattr(fetch, function.__name__, function)
    return keys


@pytest.mark.parametrize("key", [None, bytes(range(32))], ids=["open", "private"])
@in_trio(0.05)
async def test_who_is_invited_finds_a_member_elsewhere_if_no_address_of_the_invite_is_true(
    key: bytes | None, named: list[bytes]
) -> None:
    swarm = Swarm.of(WANTED, ("/ip4/5.5.9.9/tcp/4001/p2p/" + PEER,), key)
    assert await fetch._fetch(swarm, 30.0, None) is None and named == []
    assert await fetch._fetch(swarm, 30.0, Entry(())) == WANTED
    assert named == keys_at(swarm.manifest, key, time.time()) + ([] if key else volunteer_keys())


@in_trio(0.05)
async def test_a_member_that_says_nothing_does_not_hold_up_who_fetches_a_manifest(named: list[bytes]) -> None:
    swarm = Swarm.of(WANTED, ("/ip4/6.6.6.6/tcp/4001/p2p/" + STRANGER,))
    assert await fetch._fetch(swarm, 30.0, Entry(())) == WANTED


@fails_without("swarm/finding/circuit.py", "trio.move_on_after(DIAL_SECONDS)", "trio.move_on_after(1e6)")
@fails_without("swarm/codes/reaching.py", "trio.move_on_after(DIAL_SECONDS)", "trio.move_on_after(1e6)")
@fails_without("swarm/codes/reaching.py", "except (OSError, UnicodeError):", "except OSError:")
@fails_without("swarm/codes/meeting_place.py", "trio.fail_after(ASK_SECONDS)", "trio.fail_after(60.0)")
@fails_without("swarm/codes/meeting_place.py", "(stream, MAX_CLAIM_BYTES))\n\n", "(stream, 2**31))\n\n")
@pytest.mark.parametrize("sent", [b"", b"\x3f\xff\xff\xff"], ids=["nothing", "the length of a gigabyte"])
@in_trio(0.05)
async def test_a_machine_that_says_nothing_holds_nobody_up(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve: Any = trio.socket.getaddrinfo

    async def resolve_to_three(*arguments: Any, **options: Any) -> Any:
        return 3 * await resolve(*arguments, **options)

    monkeypatch.setattr(trio.socket, "getaddrinfo", resolve_to_three)

    async def say_nothing(stream: Any) -> None:
        if sent:
            await stream.write(sent)
        await trio.sleep_forever()

    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with visiting_host(None, "loopback") as other, visiting_host(None) as host:
            port = silent.getsockname()[1]
            assert await identify(host, parse_place(f"a..b:{port}")) is None
            started = trio.current_time()
            assert await identify(host, parse_place(f"127.0.0.1:{port}")) is None
            assert not await open_way(host, direct_address("127.0.0.1", port, PEER))
            assert 18 < trio.current_time() - started < 22
            other.set_stream_handler(TProtocol(PROTOCOL), say_nothing)
            assert await open_way(host, direct_address("127.0.0.1", listen_port(other), str(other.get_id())))
            started = trio.current_time()
            with contextlib.suppress(*LOST):
                await ask_place(host, str(other.get_id()), Claim(7, False))
            assert trio.current_time() - started < (5 if sent else 11)
