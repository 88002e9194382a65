"""Members of a swarm as real processes, on loopback and over a bad network."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.joining.invite import Swarm
from sapo_edge.swarm.visits.fetch import fetch_manifest, fetch_questions
from sapo_edge.swarm.wire.messages import PIECE_BYTES
from sapo_edge.tasks.manifest import load_manifest
from sapo_edge.transport import SwarmError
from tests.defences.defence import fails_without
from tests.ports import free_port
from tests.swarm.member.member_processes import MemberProcess
from tests.swarm.member.network_faults import trial
from tests.swarm.namespaces import NotPermittedError


@contextmanager
def members(*options: dict[str, Any]) -> Iterator[list[MemberProcess]]:
    """Members that all dial the first one, and are connected."""
    port = free_port()
    first = f"/ip4/127.0.0.1/tcp/{port}/p2p/{Identity(bytes([1]) * 32).peer_id}"
    with ExitStack() as stack:
        started = []
        for number, option in enumerate(options, start=1):
            place: dict[str, Any] = {"port": port} if number == 1 else {"bootstrap": [first]}
            started.append(stack.enter_context(MemberProcess(member=number, **place, **option)))
        for member in started:
            member.until(lambda status: status["state"] == "connected")
        yield started


@pytest.fixture(scope="module")
def pair() -> Iterator[list[MemberProcess]]:
    """Two members for all tests that leave them as they were."""
    with members({}, {}) as started:
        yield started


def test_members_exchange_rollouts_and_a_newcomer_gets_recent_ones(pair: list[MemberProcess]) -> None:
    """Those that are too large for a message are pulled, from any peer that has them: their author is frozen."""
    one, two = pair
    first, second, large = one.publish(3), two.publish(2), one.publish(4, size=8000, answers=16)
    two.gets(one, first | large)
    one.gets(two, second)
    assert two.status()["counts"]["rollouts pulled"] >= 2 and one.status()["counts"]["pulls served"] >= 1
    for member, other in (pair, reversed(pair)):
        (address,) = {peer["address"] for peer in member.status()["peers"] if peer["peer_id"] == other.peer_id}
        assert address.startswith("/ip4/127.0.0.1/tcp/") and not address.endswith("/tcp/0")
    one.freeze()
    with MemberProcess(member=3, bootstrap=[two.address]) as late:
        try:
            late.gets(one, first | large)
            late.gets(two, second)
        finally:
            one.thaw()
        late.gets(one, one.publish())
        status = late.status()
        assert status["faults"] == {} and status["bytes_in"] > 0 and not status["private"]
        assert late.received(late) == one.received(one) == set()
        # The first ones were pulled, the last one gossiped.
        assert {line["neighbourhood"] for line in late.lines if "neighbourhood" in line} == {"loopback"}


def test_two_swarms_never_mix(pair: list[MemberProcess]) -> None:
    one, two = pair
    with MemberProcess(member=6, manifest="reasoning-gym-nine", bootstrap=[one.address]) as other:
        other.until(lambda status: status["counts"].get("dials"))
        other.publish()
        two.gets(one, one.publish())
        status = other.status()
        assert status["state"] == "alone" and not any(peer["subscribed"] for peer in status["peers"])
        assert other.received(one) == one.received(other) == set()


@pytest.mark.parametrize("what", ["task", "loop"])
def test_a_failed_host_restarts_under_the_same_name_with_a_notice(what: str, pair: list[MemberProcess]) -> None:
    one, two = pair
    restarts, address = one.status()["restarts"], one.address
    one.tell("fall", what=what)
    status = one.until(lambda status: status["restarts"] > restarts and status["state"] == "connected", 30)
    assert status["faults"]["host"] == status["restarts"] == restarts + 1 and address in status["addresses"]
    one.first(lambda line: "error in its host (LookupError)" in line.get("notice", ""))
    two.gets(one, one.publish())


def test_a_frozen_peer_is_dropped_and_a_killed_one_comes_back_under_its_name() -> None:
    with members({"keepalive": 1.5}, {"keepalive": 1.5}) as (one, two):
        one.gets(two, two.publish(3))
        two.freeze()
        status = one.until(lambda status: not status["peers"])
        assert status["state"] == "alone" and status["counts"]["frozen peers dropped"] == 1
        two.thaw()
        one.gets(two, two.publish())
        two.kill()
        # The same key, at once: its messages must not be taken for those that it sent before.
        with MemberProcess(member=2, bootstrap=[one.address], first=10) as again:
            again.until(lambda status: status["state"] == "connected")
            one.gets(again, again.publish(2))
            assert one.received(two) == {0, 1, 2, 3, 10, 11}
            again.tell("close")
            assert again.line("closed") < 3
            assert again.status()["state"] == "closed"


def test_caps_bound_the_traffic_and_rollouts_still_arrive() -> None:
    cap = 20_000
    with members({"upload": cap}, {"download": cap}) as (one, two):
        started = time.monotonic()
        for _ in range(4):
            one.publish(4, size=8000, answers=8)
        assert max(line["seconds"] for line in one.lines if "published" in line) < 0.5, "publishing never waits"
        one.until(lambda status: status["bytes_out"] > 128 * 1024 + cap * (time.monotonic() - started))
        one.publish()
        sent = one.until(lambda status: any(name.endswith("upload cap") for name in status["counts"]))
        received = two.until(lambda status: status["rollouts_in"])
        seconds = time.monotonic() - started
        # What may pass at once, the debt that one response makes, and the rate.
        assert sent["bytes_out"] < 128 * 1024 + 600_000 + cap * seconds
        assert received["bytes_in"] < 2 * 128 * 1024 + 128 * 1024 + cap * seconds


@fails_without("swarm/visits/fetch.py", "                await trio.to_thread.run_sync(data.verify, Path(file.name))\n")
def test_questions_named_by_digest_come_from_a_member_who_has_them_and_from_nobody_else(tmp_path: Path) -> None:
    """As the manifest, of a private swarm whose members exchange rollouts."""
    key, file = "ab" * 32, tmp_path / "mine.csv"
    rows = "".join(f"{hashlib.sha256(bytes([number % 256, number // 256])).hexdigest()},1\n" for number in range(9000))
    file.write_text(f"question,answer\n{rows}")
    stores = [tmp_path / name for name in ("one", "two")]
    manifest = load_manifest(file, stores[0])
    (data,) = manifest.data
    own = tmp_path / "own"
    assert data.size > 2 * PIECE_BYTES
    one, two = ({"psk": key, "manifest": str(file), "store": str(store)} for store in stores)
    with members(one, two) as (wrong, right):
        wrong.gets(right, right.publish())
        assert wrong.status()["private"], "what the app shows of the swarm that runs"
        gone = f"/ip4/127.0.0.1/tcp/9/p2p/{right.peer_id}"
        swarm = Swarm.of(manifest, (gone, wrong.address, right.address), bytes.fromhex(key))
        assert fetch_manifest(swarm) == manifest
        for other in (replace(swarm, key=None), replace(swarm, manifest=bytes(32))):
            with pytest.raises(SwarmError):
                fetch_manifest(other, timeout=1.0)
        content = data.path(stores[0]).read_bytes()
        data.path(stores[0]).write_bytes(content[:-200] + content[-200:].replace(b"a", b"b"))
        with pytest.raises(SwarmError, match="no member of the swarm sent"):
            fetch_questions(data, own, replace(swarm, key=None), 2.0)
        fetch_questions(data, own, swarm)
        assert data.path(own).read_bytes() == content, "the second member is asked if the first one's are wrong"
        sent = right.until(lambda status: status["counts"].get("pulls served", 0) > data.size // PIECE_BYTES)
        assert sent["bytes_out"] < data.size, "they are compressed"
        data.path(stores[1]).unlink()
        data.path(own).unlink()
        with pytest.raises(SwarmError, match="while the member who invited you is online"):
            fetch_questions(data, own, swarm, 5.0)
        assert not list(own.iterdir()), "nothing of it stays"


def test_members_find_each_other_on_the_local_network() -> None:
    # Nodes of others there are not to take part.
    options: dict[str, Any] = {"psk": secrets.token_hex(32), "listen": "all", "mdns": True}
    with MemberProcess(member=1, **options) as one, MemberProcess(member=2, **options) as two:
        one.gets(two, two.publish())
        two.gets(one, one.publish())
        assert one.status()["faults"] == two.status()["faults"] == {}


def test_rollouts_arrive_over_a_bad_network_and_after_a_partition() -> None:
    """`python -m tests.swarm.member.network_faults` does the same for longer, and prints figures."""
    try:
        with trial(2) as it:
            it.bad_network(loss=0.1, delay=0.2, rounds=1)
            it.partition(seconds=3.0)
    except NotPermittedError as error:
        pytest.skip(str(error))
