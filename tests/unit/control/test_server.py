"""The control socket: requests, events, and clients that behave badly."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sapo_edge.control import connection as control_connection
from sapo_edge.control import server as control
from sapo_edge.control.client import ControlClient, connect, node_runs
from sapo_edge.control.protocol import MAX_REQUEST_BYTES, ControlError, claim_socket_path, encode, socket_path
from sapo_edge.control.server import MAX_CLIENTS, ControlServer
from sapo_edge.errors import ConfigError, NoNodeError, StateError
from sapo_edge.events import Event, Notice, Progress
from sapo_edge.state.paths import Paths

SECONDS = 10


def notice(number: int) -> Notice:
    return Notice(level="info", text=str(number))


@dataclass
class Bench:
    """A server with a few methods, its past, and raw connections to it."""

    path: Path
    past: list[Event] = field(default_factory=list)
    release: threading.Event = field(default_factory=threading.Event)
    raws: list[socket.socket] = field(default_factory=list)

    def start(self) -> ControlServer:
        self.server = ControlServer(self.path, self.methods(), lambda count: self.past[-count:])
        self.server.start()
        return self.server

    def methods(self) -> dict[str, Callable[[Mapping[str, Any]], object]]:
        def refuse(_params: Mapping[str, Any]) -> object:
            raise ConfigError("that is wrong", "do it right")

        return {
            "echo": dict,
            "refuse": refuse,
            "crash": lambda params: 1 / 0,
            "nan": lambda params: float("nan"),
            "large": lambda params: "x" * (control.MAX_REPLY_BYTES + 1),
            "wait": lambda params: self.release.wait(SECONDS),
        }

    def raw(self, data: bytes = b"") -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(self.path))
        connection.settimeout(SECONDS)
        if data:
            connection.sendall(data)
        self.raws.append(connection)
        return connection

    def client(self) -> ControlClient:
        return ControlClient(self.path)


@pytest.fixture
def bench() -> Iterator[Bench]:
    with tempfile.TemporaryDirectory() as directory:
        made = Bench(Path(directory) / "control.sock")
        made.start()
        yield made
        made.release.set()
        for connection in made.raws:
            connection.close()
        made.server.stop()
        assert not made.path.exists() and not made.server._thread.is_alive()


def lines(connection: socket.socket) -> Iterator[dict[str, Any]]:
    """What the server sends, until it closes."""
    with connection.makefile("rb") as file:
        for line in file:
            yield json.loads(line)


def waited(condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + SECONDS
    while not condition() and time.monotonic() < until:
        time.sleep(0.005)
    return condition()


def test_requests_are_answered_or_refused_with_a_remedy(bench: Bench) -> None:
    with bench.client() as client:
        assert client.hello["pid"] == os.getpid()
        assert client.request("echo", {"text": "é\n\u202e"}) == {"text": "é\n\u202e"}
        for method, code, message in (
            ("refuse", "failed", "that is wrong; do it right"),
            ("none", "unknown_method", "use one of crash, echo"),
            ("crash", "failed", "see its log"),
            ("nan", "failed", "see its log"),
            ("large", "too_large", "ask for less"),
        ):
            with pytest.raises(ControlError, match=message) as error:
                client.request(method)
            assert error.value.code == code
        with pytest.raises(ControlError, match="too long"):
            client.request("echo", {"text": "x" * MAX_REQUEST_BYTES})
        assert client.request("echo") == {}
    mode = bench.path.stat().st_mode
    assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600


@pytest.mark.parametrize(
    "sent",
    [b"x\n", b"[]\n", b"{}\n", b'{"id":[],"method":"echo"}\n', b'{"id":1,"method":{}}\n', b"\xff\xfe\n",
     b"[" * 5000 + b"\n",
     b'{"id":1,"method":"echo","params":[1]}\n', b'{"id":1,"method":"subscribe","params":{"replay":-1}}\n',
     b'{"id":1,"method":"subscribe","params":{"replay":true}}\n'],
)  # fmt: skip
def test_a_bad_line_is_refused_and_the_next_one_counts(bench: Bench, sent: bytes) -> None:
    found = lines(bench.raw(sent + b'\n{"id":"two","method":"echo"}\n'))
    assert next(found)["hello"] == "sapo-edge"
    assert next(found)["error"]["code"] == "bad_request"
    assert next(found) == {"id": "two", "result": {}}


def test_a_line_without_end_is_cut_off_and_others_are_served(bench: Bench) -> None:
    connection = bench.raw()
    connection.sendall(b"x" * (MAX_REQUEST_BYTES + 1))
    assert [line.get("end", {}).get("code") for line in lines(connection)] == [None, "bad_request"]
    with bench.client() as client:
        assert client.request("echo") == {}


def test_a_client_that_closes_its_half_still_gets_its_answers(bench: Bench) -> None:
    connection = bench.raw(b'{"id":1,"method":"echo"}\n{"id":2,"method":"echo"}\n{"id":3,"method":"wait"}\n')
    connection.shutdown(socket.SHUT_WR)
    bench.release.set()
    assert [line.get("id") for line in lines(connection)] == [None, 1, 2, 3]


def test_the_past_and_the_present_come_in_order_without_a_gap(bench: Bench) -> None:
    """Events go on being published while the past is read."""
    told: list[Event] = []
    done = threading.Event()

    def tell() -> None:
        for number in range(300):
            event = notice(number)
            told.append(event)
            bench.server.publish(event)
            time.sleep(0.0002)
        done.set()

    bench.server._history = lambda count: told[-count:]
    teller = threading.Thread(target=tell)
    teller.start()
    waited(lambda: len(told) > 20)
    with bench.client() as client:
        past = client.subscribe(1000)
        events = client.events(timeout=SECONDS)
        found = [int(next(events)["text"]) for _ in range(300)]
        assert found == list(range(300)) and past < 300
        with pytest.raises(ControlError, match="follows events already"):
            client.request("subscribe")
        bench.server.publish(notice(300))
        assert client.request("echo") == {}, "a request in between"
        assert next(events)["text"] == "300"
    teller.join()


def test_progress_is_left_out_if_it_is_not_wanted(bench: Bench) -> None:
    with bench.client() as client, bench.client() as other:
        assert client.subscribe(progress=False) == 0 and other.subscribe() == 0
        bench.server.publish(Progress(phase="update", done=1, total=2, unit="groups"))
        bench.server.publish(notice(1))
        assert next(client.events(SECONDS))["event"] == "notice"
        assert next(other.events(SECONDS))["event"] == "progress"


def test_a_past_that_cannot_be_read_is_an_error_and_no_subscription(bench: Bench) -> None:
    def fail(count: int) -> list[Event]:
        raise StateError("the journal is damaged", "rename it")

    bench.server._history = fail
    with bench.client() as client:
        with pytest.raises(ControlError, match="the journal is damaged; rename it"):
            client.subscribe(10)
        assert client.subscribe(0) == 0


def test_a_slow_reader_is_dropped_with_a_last_line_and_slows_nobody(bench: Bench) -> None:
    slow, quick = bench.raw(b'{"id":1,"method":"subscribe"}\n'), bench.client()
    quick.subscribe()
    assert waited(lambda: all(client.subscribed for client in bench.server._clients))
    large = Notice(level="info", text="x" * 10_000)
    begun = time.monotonic()
    for _ in range(400):
        bench.server.publish(large)
        assert next(quick.events(SECONDS))["text"] == large.text
    assert time.monotonic() - begun < SECONDS
    last = list(lines(slow))[-1]
    assert last["end"]["code"] == "slow" and "read faster" in last["end"]["remedy"]
    quick.close()


def test_one_that_never_reads_its_last_line_is_closed_all_the_same(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_connection, "FAREWELL_SECONDS", 0.05)
    bench.raw(b'{"id":1,"method":"subscribe"}\n')
    assert waited(lambda: any(client.subscribed for client in bench.server._clients))
    for _ in range(400):
        bench.server.publish(Notice(level="info", text="x" * 10_000))
    assert waited(lambda: not bench.server._clients)


def test_many_idle_and_half_finished_clients_keep_nobody_out(bench: Bench) -> None:
    for _ in range(3 * MAX_CLIENTS):
        bench.raw(b'{"id":1,"meth')
    with bench.client() as client:
        assert client.request("echo") == {}
    assert len(bench.server._clients) <= MAX_CLIENTS


def test_too_many_followers_are_refused_by_name(bench: Bench) -> None:
    followers = [bench.client() for _ in range(MAX_CLIENTS)]
    for client in followers:
        client.subscribe()
    with pytest.raises(ControlError, match="too many clients") as error:
        bench.client()
    assert error.value.code == "busy"
    followers[0].close()
    assert waited(lambda: len(bench.server._clients) < MAX_CLIENTS)
    bench.client().close()
    for _ in range(40):
        bench.server.publish(Notice(level="info", text="x" * 10_000))
    assert waited(
        lambda: all(client.backlog > control.STUCK_BYTES for client in bench.server._clients if client.following)
    )
    with bench.client() as client, bench.client() as other:
        assert client.request("echo") == other.request("echo") == {}, "those who don't read make room"
    for client in followers:
        client.close()


def test_a_slow_handler_delays_only_its_own_client(bench: Bench) -> None:
    bench.raw(b'{"id":1,"method":"wait"}\n' * 100)
    with bench.client() as client:
        assert client.request("echo", timeout=SECONDS) == {}
        with pytest.raises(NoNodeError, match="does not answer"):
            client.request("wait", timeout=0.05)


def test_the_end_of_the_node_reaches_all_who_wait(bench: Bench) -> None:
    follower, waiting = bench.client(), bench.client()
    follower.subscribe()
    threading.Timer(0.1, bench.server.stop).start()
    assert list(follower.events(SECONDS)) == []
    assert waiting.wait_for_end(SECONDS)
    bench.server.stop()
    with pytest.raises(NoNodeError, match="no node runs here; start one"):
        bench.client()


def test_closing_from_another_thread_ends_the_events(bench: Bench) -> None:
    client = bench.client()
    client.subscribe()
    threading.Timer(0.05, client.close).start()
    assert list(client.events(SECONDS)) == []


def test_what_a_killed_node_left_is_replaced(bench: Bench) -> None:
    bench.server.stop()
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(bench.path))
    left.close()
    with pytest.raises(NoNodeError):
        bench.client()
    bench.start()
    with bench.client() as client:
        assert client.request("echo") == {}


@pytest.mark.parametrize(
    ("greeting", "message"),
    [
        (encode({"v": 2, "hello": "sapo-edge", "version": "9.0"}), "another version .'9.0'.; stop it"),
        (encode({"hello": "other"}), "no node"),
        (b"SSH-2.0\n", "no node"),
        (b"[]\n", "no node"),
        (b"", "has ended"),
    ],
)
def test_something_else_at_the_socket_is_told(tmp_path: Path, greeting: bytes, message: str) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()

        def greet() -> None:
            connection, _ = listener.accept()
            connection.sendall(greeting)
            connection.close()

        threading.Thread(target=greet).start()
        with pytest.raises((ControlError, NoNodeError), match=message):
            ControlClient(tmp_path / "s", timeout=SECONDS)


def test_other_users_are_turned_away(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "same_user", lambda connection: False)
    assert list(lines(bench.raw())) == []


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become somebody else")
def test_a_process_of_another_user_gets_nowhere(bench: Bench) -> None:
    """First by the modes of directory and socket; and where somebody has opened both, by who the other end is."""
    code = """
import os, socket, sys
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
connection = socket.socket(socket.AF_UNIX)
connection.settimeout(10)
try:
    connection.connect(sys.argv[1])
    connection.sendall(b'{"id": 1, "method": "echo"}\\n')
    print("heard", connection.recv(100))
except OSError as error:
    print(type(error).__name__)
"""

    def tried() -> str:
        command = [sys.executable, "-I", "-c", code, str(bench.path)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.strip()

    assert tried() == "PermissionError"
    bench.path.parent.chmod(0o755)
    assert tried() == "PermissionError"
    if sys.platform == "linux":
        bench.path.chmod(0o777)
        assert tried() in ("heard b''", "ConnectionResetError", "BrokenPipeError")
    with bench.client() as client:
        assert client.request("echo") == {}


def test_a_deep_state_directory_gets_a_short_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as short:
        monkeypatch.setattr(tempfile, "tempdir", short)
        paths = Paths.default(tmp_path / ("d" * 90) / ("e" * 90))
        paths.create()
        assert not node_runs(paths)
        path = claim_socket_path(paths)
        assert path.is_relative_to(short) and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        # The client's temporary directory may be another one.
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        assert socket_path(paths) == path
        server = ControlServer(path, {"echo": dict})
        server.start()
        with connect(paths) as client:
            assert client.request("echo", {"a": 1}) == {"a": 1}
        path.parent.chmod(0o755)
        for use in (lambda: connect(paths), lambda: claim_socket_path(paths)):
            monkeypatch.setattr(tempfile, "tempdir", short)
            with pytest.raises(StateError, match="others may enter"):
                use()
        server.stop()
