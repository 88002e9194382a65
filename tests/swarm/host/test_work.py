"""Processor time that peers make a node spend: charged to their address, and bounded by its share and a common part."""

from __future__ import annotations

import contextlib
import contextvars
import time
from collections import Counter
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import trio
from libp2p.custom_types import TProtocol

from sapo_edge.swarm.bucket import Shares
from sapo_edge.swarm.host import traffic
from sapo_edge.swarm.host.hardening import SafeYamux
from sapo_edge.swarm.host.traffic import Meter, MeteredStream
from sapo_edge.swarm.host.work import (
    ARRIVING_BURST,
    ARRIVING_SHARE,
    COMMON,
    COMMON_BURST,
    FLUSH_SECONDS,
    MAX_PENDING,
    SHARE,
    SHARE_BURST,
    Work,
)
from sapo_edge.swarm.member.session import NEWCOMERS_CHECK, NEWCOMERS_CHECK_BURST
from sapo_edge.swarm.tally import Tally
from tests.defences.defence import fails_without
from tests.fakes import Clock
from tests.swarm.host.streams import FakeSocket
from tests.swarm.host.victims import LOOPBACK, address_of, bare_host, dial, hardened, until
from tests.swarm.loop import in_trio

SLOW = TProtocol("/slow")
DELAYED = "reads delayed: the address has used up its processor time"


@fails_without("swarm/host/work.py", "COMMON, COMMON_BURST = 0.12, 0.3", "COMMON, COMMON_BURST = 0.5, 0.3")
@fails_without("swarm/host/work.py", "COMMON, COMMON_BURST = 0.12, 0.3", "COMMON, COMMON_BURST = 0.12, 4.0")
@fails_without("swarm/member/session.py", "NEWCOMERS_CHECK_BURST = 0.015, 0.2", "NEWCOMERS_CHECK_BURST = 0.05, 0.2")
def test_ten_addresses_get_a_quarter_of_a_core_at_most_and_six_no_more_in_any_half_minute() -> None:
    assert ARRIVING_SHARE + COMMON + 10 * SHARE <= 0.25
    assert ARRIVING_BURST + COMMON_BURST + 10 * SHARE_BURST <= 10.0, "at once, seconds"
    addresses, arrivals = COMMON_BURST + 30 * (COMMON + 6 * SHARE), ARRIVING_BURST + 30 * ARRIVING_SHARE
    checks = NEWCOMERS_CHECK_BURST + 30 * NEWCOMERS_CHECK
    assert addresses <= 30 * 0.19 and addresses + arrivals + checks <= 30 * 0.25 + 1e-9


@fails_without("swarm/host/work.py", "now = self._clock()", "now = self._clock()\n        self._ended = now - 1e-6")
@in_trio()
async def test_all_that_the_event_loop_does_for_an_address_is_charged_to_it() -> None:
    """Short steps cost less than the event loop's own work for them."""
    ledger = _Ledger()
    work = Work(ledger)  # type: ignore[arg-type] # it has what is used
    trio.lowlevel.add_instrument(work)
    work.attribute_to("busy")
    await trio.sleep(0)
    begun = time.thread_time()
    for _ in range(20_000):
        await trio.sleep(0)
    spent = time.thread_time() - begun
    assert 0.9 * spent < ledger.charged["busy"] < 1.1 * spent + 0.01


@fails_without("swarm/host/work.py", "self._spend(address, seconds)", "pass")
@fails_without("swarm/host/work.py", "if work is self:", "if True:")
@in_trio()
async def test_what_a_task_and_those_that_it_starts_do_is_charged_to_their_address() -> None:
    clock = Clock()
    work = Work(Shares(0.0, 0.0, 1e-9, 0.1), clock)
    trio.lowlevel.add_instrument(work)

    async def child() -> None:
        for _ in range(4):
            clock.now += 0.02
            await trio.sleep(0)

    async def connection(address: str | None) -> None:
        if address is not None:
            work.attribute_to(address)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child)
            nursery.start_soon(child)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection, None)
    assert work.wait("busy") == work.wait("") == 0.0, "what the node does by itself is charged to nobody"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection, "busy")
    assert work.wait("busy") > 0.0
    trio.lowlevel.remove_instrument(work)


@fails_without("swarm/host/work.py", "self._pending[address] = seconds", "pass")
@fails_without("swarm/host/work.py", "elif len(self._pending) < MAX_PENDING:", "else:")
def test_short_steps_add_up_and_few_are_remembered() -> None:
    clock = Clock()
    work = Work(Shares(0.0, 0.0, 1e-9, FLUSH_SECONDS), clock)

    def steps(address: str, count: int) -> None:
        context = contextvars.copy_context()
        context.run(work.attribute_to, address)
        for _ in range(count):
            clock.now += FLUSH_SECONDS / 10
            work.after_task_step(SimpleNamespace(context=context))

    steps("busy", 1)
    for number in range(MAX_PENDING):
        steps(f"idle {number}", 1)
    steps("one too many", 30)
    assert work.wait("one too many") == 0.0
    steps("busy", 30)
    assert work.wait("busy") > 0.0


async def is_read(meter: Meter, host: str) -> bool:
    with trio.move_on_after(0.2):
        await meter.open(FakeSocket(host)).read(1)
        return True
    return False


@fails_without("swarm/host/traffic.py", "busy = self._meter.work.wait(self.address)", "busy = 0.0")
@pytest.mark.parametrize(
    ("busy", "same", "other"),
    [("192.0.2.1", "192.0.2.1", "192.0.2.2"), ("2001:db8:1:1::1", "2001:db8:1:1:ffff::2", "2001:db8:1:2::1")],
)
@in_trio()
async def test_an_address_that_has_used_up_its_time_is_not_read_and_others_are(
    busy: str, same: str, other: str
) -> None:
    shares = Shares(0.01, 0.5, 0.01, 0.1)
    meter = Meter(0, 0, Tally(), processor=shares)
    assert await is_read(meter, busy)
    shares.charge(traffic.address_of([busy]), 10.0)
    time.sleep(0.01)
    assert not await is_read(meter, busy) and not await is_read(meter, same)
    assert await is_read(meter, other), "its own share is not used up"
    assert meter.tally.counts[DELAYED] == 2


@fails_without("swarm/host/traffic.py", "min(max(delay, SHORTEST_DELAY), LONGEST_DELAY)", "min(delay, LONGEST_DELAY)")
@in_trio()
async def test_a_delayed_read_is_not_tried_again_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    meter, look = Meter(0, 0, Tally()), Mock(return_value=1e-3)
    monkeypatch.setattr(meter.work, "wait", look)
    assert not await is_read(meter, "192.0.2.1")
    assert 1 <= look.call_count <= 1 + 0.2 / traffic.SHORTEST_DELAY


class _Ledger:
    """In place of a budget: what is charged to each address."""

    def __init__(self) -> None:
        self.charged: Counter[str] = Counter()

    def charge(self, name: str, tokens: float) -> None:
        self.charged[name] += tokens  # type: ignore[assignment] # seconds

    def wait(self, name: str) -> float:
        return 0.0


@fails_without("swarm/host/traffic.py", "                self._meter.work.attribute_to(metered.address)\n")
@fails_without("swarm/host/host.py", "trio.lowlevel.add", "meter.work.after_task_step = id; trio.lowlevel.add")
@fails_without("swarm/host/hardening.py", "True\n            self.meter.work.attribute_to(metered.address)", "True")
@fails_without("swarm/host/hardening.py", "  meter.work.attribute_to(metered.address)", "  pass")
@pytest.mark.parametrize("place", ["handshake", "connection", "stream"])
@in_trio()
async def test_all_that_a_connection_does_is_charged_to_its_address(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if this node dialled, in whose name the library works then."""
    clock = Clock()
    receive, read = MeteredStream.read, SafeYamux._read_data_body

    async def slow_handshake(metered: MeteredStream, count: int | None = None) -> bytes:
        clock.now += 0.0 if metered.upgraded else 1.0
        return await receive(metered, count)

    async def slow_read(muxer: SafeYamux, length: int) -> bytes:
        clock.now += 1.0
        return await read(muxer, length)

    async def handler(stream: Any) -> None:
        clock.now += 3.0 if place == "stream" else 0.0
        await stream.reset()

    if place == "handshake":
        monkeypatch.setattr(MeteredStream, "read", slow_handshake)
    elif place == "connection":
        monkeypatch.setattr(SafeYamux, "_read_data_body", slow_read)
    ledger, host = _Ledger(), bare_host()
    async with hardened(processor=ledger) as victim, host.run([LOOPBACK]):
        victim.meter.work._clock = clock
        victim.host.set_stream_handler(SLOW, handler)
        if place == "handshake":
            await dial(host, victim.address)
        else:
            await dial(victim.host, address_of(host))
        for _ in range(3):
            with trio.move_on_after(1.0), contextlib.suppress(Exception):
                stream = await host.new_stream(victim.peer_id, [SLOW])
                await stream.read(1)
        assert await until(lambda: ledger.charged["127.0.0.1"] >= 3.0, 2.0)
