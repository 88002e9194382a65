"""A lookup by a program that runs no node."""

from __future__ import annotations

import sys
from functools import partial
from itertools import pairwise

import pytest
import trio

from sapo_edge.swarm.rendezvous import rendezvous
from sapo_edge.swarm.rendezvous.lookup import Entry, look_up, short_topic
from sapo_edge.swarm.rendezvous.program import NO_LIBRARY
from sapo_edge.swarm.rendezvous.rendezvous import Place, Topic
from tests.swarm.rendezvous.mainline import LOOSE, ON_LOOPBACK, start

ONE, OTHER = bytes(20), bytes([1]) * 20


async def nobody(_place: Place) -> bool:
    return False


def runs(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setattr(rendezvous, "command_with", lambda argument: [sys.executable, "-c", code, argument])
    monkeypatch.setattr(rendezvous, "TRY_SECONDS", 0.05)


def test_each_address_comes_with_the_key_under_which_it_was_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = start(["127.0.0.1"] * 6, **LOOSE)
    runs(monkeypatch, ON_LOOPBACK)
    entry = Entry((("127.0.0.1", sessions[0].listen_port()),))
    found: list[tuple[bytes, Place]] = []

    async def main() -> None:
        topic = Topic(lambda: [ONE], lambda: 4321)
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:

                async def keep(key: bytes, place: Place) -> bool:
                    found.append((key, place))
                    nursery.cancel_scope.cancel()
                    return True

                nursery.start_soon(look_up, entry, [topic])
                topics = [short_topic([key], partial(keep, key)) for key in (OTHER, ONE)]
                nursery.start_soon(look_up, entry, topics)

    trio.run(main)
    assert found == [(ONE, ("127.0.0.1", 4321))]
    for session in sessions:
        session.pause()


def test_without_libtorrent_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    runs(monkeypatch, f"import sys; sys.exit({NO_LIBRARY})")

    entry = Entry(())

    async def main() -> None:
        with trio.fail_after(20):
            await look_up(entry, [short_topic([ONE], nobody)])

    trio.run(main)
    assert entry.trouble == "library"


def test_what_runs_for_minutes_looks_every_ten_seconds() -> None:
    topic = short_topic([ONE], nobody, patience=1000.0)
    assert topic.due(1.0)[0] == [] and not topic.lacks(), "not before its time"
    topic = short_topic([ONE], nobody)
    looks = [now for now in range(1, 601) if topic.due(float(now))[0]]
    assert all(8 <= after - before <= 13 for before, after in pairwise(looks)) and len(looks) > 40
