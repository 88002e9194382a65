"""What a node tells systemd, read from a real socket."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from sapo_edge.care.stop import Stop
from sapo_edge.service.notify import ServiceManager


def listen(address: str) -> socket.socket:
    """The other end of the protocol."""
    end = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    end.bind(address)
    end.setblocking(False)
    return end


def read(manager: socket.socket) -> list[str]:
    """What arrived since the last call."""
    messages = []
    with suppress(BlockingIOError):
        while True:
            messages.append(manager.recv(4096).decode())
    return messages


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with listen(str(tmp_path / "notify")) as manager:
        yield manager


def test_no_child_inherits_the_protocol(manager: socket.socket, tmp_path: Path) -> None:
    environ = {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "1", "WATCHDOG_PID": "7", "HOME": "/"}
    ServiceManager(environ).ready()
    assert environ == {"HOME": "/"} and read(manager) == ["READY=1"]
    name = f"sapo-test-{tmp_path.name}-{os.getpid()}"
    with listen(f"\0{name}") as abstract:
        ServiceManager({"NOTIFY_SOCKET": f"@{name}"}).ready()
        assert read(abstract) == ["READY=1"]


def test_the_watchdog_is_answered_often_enough_and_not_more(manager: socket.socket) -> None:
    now = 0.0
    node = ServiceManager({"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "8000000"}, lambda: now)
    answers = []
    for step in range(1000):
        now = step / 100
        node.alive()
        answers += [now for _ in read(manager)]
    assert answers == [0.0, 2.0, 4.0, 6.0, 8.0]


@pytest.mark.parametrize("variables", [{}, {"WATCHDOG_USEC": "x"}, {"WATCHDOG_USEC": "8000000", "WATCHDOG_PID": "1"}])
def test_a_watchdog_of_another_process_is_not_answered(manager: socket.socket, variables: dict[str, str]) -> None:
    node = ServiceManager({"NOTIFY_SOCKET": manager.getsockname(), **variables})
    node.alive()
    assert read(manager) == []


def test_the_end_is_reported_once_and_asks_for_three_rounds(manager: socket.socket) -> None:
    node = ServiceManager({"NOTIFY_SOCKET": manager.getsockname()})
    node.describe("round 1:\nreward 0.5", 40.0)
    node.describe("paused: quiet hours")
    node.stopping()
    node.stopping()
    rounds, paused, end = read(manager)
    assert rounds == "STATUS=round 1: reward 0.5" and paused == "STATUS=paused: quiet hours"
    assert end.splitlines()[0] == "STOPPING=1" and "EXTEND_TIMEOUT_USEC=120000000" in end.splitlines()


@pytest.mark.parametrize("address", [None, "/no/such/socket", "vsock:2:1", "", "x" * 500])
def test_no_manager_or_one_that_is_gone_harms_no_round(address: str | None) -> None:
    node = ServiceManager({} if address is None else {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1"})
    for action in (node.ready, node.alive, lambda: node.describe("x"), node.stopping):
        action()


def test_a_manager_that_does_not_read_delays_no_round(manager: socket.socket) -> None:
    node = ServiceManager({"NOTIFY_SOCKET": manager.getsockname()})
    for number in range(5000):
        node.describe(f"round {number}")
    assert read(manager)[0] == "STATUS=round 0"


def test_only_the_thread_that_works_shows_life_in_a_pause_every_second(monkeypatch: pytest.MonkeyPatch) -> None:
    stop, seen = Stop(), list[str]()
    stop.alive = lambda: seen.append("alive")
    stop.pause("user")
    stop.update_text("user", "paused by its owner")
    stop.resume()
    assert seen == []
    handle = stop.call_handle(lambda done, total: None)
    handle.check()
    handle.check()
    stop.wait_while_paused()
    assert len(seen) == 3
    stop.pause("user")
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        if len(waits) == 3:
            stop.resume()
        return False

    monkeypatch.setattr(stop._unpaused, "wait", wait)
    stop.wait_while_paused()
    assert waits == [1.0, 1.0, 1.0] and len(seen) == 3 + 4
