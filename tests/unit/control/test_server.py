"""The control socket: requests, events, and clients that behave badly."""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from sapo_edge.control import protocol
from sapo_edge.control import server as control
from sapo_edge.control.client import ControlClient, connect, node_runs
from sapo_edge.control.protocol import MAX_REPLY_BYTES, MAX_REQUEST_BYTES, ControlError, claim_socket_path, encode
from sapo_edge.control.server import MAX_CLIENTS, ControlServer
from sapo_edge.errors import ConfigError, NoNodeError, StateError
from sapo_edge.events import Event, Notice, Progress, to_json
from sapo_edge.state.lock import StateLock
from sapo_edge.state.paths import Paths
from tests.defences.defence import fails_without
from tests.waiting import wait_until

SECONDS = 10


def notice(number: int) -> Notice:
    return Notice(level="info", text=str(number))


@dataclass
class Bench:
    """A server with a few methods and past events, and raw connections to it."""

    path: Path
    history: Callable[[int], list[Event]] = lambda count: []
    release: threading.Event = field(default_factory=threading.Event)
    raws: list[socket.socket] = field(default_factory=list)

    def start(self) -> None:
        methods: dict[str, Callable[[Mapping[str, Any]], object]] = {
            "echo": dict, "refuse": Mock(side_effect=ConfigError("that is wrong", "do it right")),
            "crash": lambda params: 1 / 0, "nan": lambda params: float("nan"),
            "large": lambda params: "x" * (MAX_REPLY_BYTES + 1), "wait": lambda params: self.release.wait(SECONDS),
        }  # fmt: skip
        self.server = ControlServer(self.path, methods, lambda count: self.history(count))
        self.server.start()

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
        bench = Bench(Path(directory) / "control.sock")
        bench.start()
        yield bench
        bench.release.set()
        for connection in bench.raws:
            connection.close()
        bench.server.stop()
        assert not bench.path.exists()
        assert not any(thread.name == "sapo-control" for thread in threading.enumerate())


def lines(connection: socket.socket) -> Iterator[dict[str, Any]]:
    """What the server sends until it closes the connection."""
    with connection.makefile("rb") as file:
        for line in file:
            yield json.loads(line)


def is_closed(connection: socket.socket) -> bool:
    try:
        connection.send(b"\n")
    except OSError:
        return True
    return False


def connects(bench: Bench) -> bool:
    """Whether a new client is accepted and answered."""
    try:
        with bench.client() as client:
            return bool(client.request("echo") == {})
    except ControlError:
        return False


def test_requests_get_a_result_or_an_error_with_a_remedy(bench: Bench) -> None:
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


def test_a_bad_line_gets_an_error_and_the_next_one_is_answered(bench: Bench) -> None:
    replies = lines(bench.raw())
    assert next(replies)["hello"] == "sapo-edge"
    for sent in (
        b"x", b"[]", b"{}", b'{"id":[],"method":"echo"}', b'{"id":1,"method":{}}', b"\xff\xfe", b"[" * 5000,
        b'{"id":1,"method":"echo","params":[1]}', b'{"id":1,"method":"subscribe","params":{"replay":-1}}',
        b'{"id":1,"method":"subscribe","params":{"replay":true}}',
    ):  # fmt: skip
        bench.raws[0].sendall(sent + b'\n\n{"id":"two","method":"echo"}\n')
        assert next(replies)["error"]["code"] == "bad_request", sent
        assert next(replies) == {"id": "two", "result": {}}


def test_an_endless_line_closes_only_its_own_connection(bench: Bench) -> None:
    connection = bench.raw()
    connection.sendall(b"x" * (MAX_REQUEST_BYTES + 1))
    assert [line.get("end", {}).get("code") for line in lines(connection)] == [None, "bad_request"]
    assert connects(bench)
    connection = bench.raw(b'{"id":1,"method":"echo"}\n{"id":2,"method":"echo"}\n{"id":3,"method":"wait"}\n')
    connection.shutdown(socket.SHUT_WR)
    bench.release.set()
    assert [line.get("id") for line in lines(connection)] == [None, 1, 2, 3]


def test_past_and_new_events_come_in_order_without_a_gap(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events are published while the past ones are read, and while those that came meanwhile are queued."""
    published: list[Event] = []

    def publish() -> None:
        for number in range(1000):
            event = notice(number)
            published.append(event)
            bench.server.publish(event)
            time.sleep(0.0002)

    def read_slowly(count: int) -> list[Event]:
        past = published[-count:]
        wait_until(lambda: len(published) > 150)
        return past

    def format_slowly(event: Event) -> str:
        time.sleep(0.0002)
        return to_json(event)

    bench.history = read_slowly
    monkeypatch.setattr("sapo_edge.events.to_json", format_slowly)
    publisher = threading.Thread(target=publish)
    publisher.start()
    wait_until(lambda: len(published) > 20)
    with bench.client() as client:
        past = client.subscribe(1000)
        events = client.events(timeout=SECONDS)
        assert [int(next(events)["text"]) for _ in range(1000)] == list(range(1000))
        assert past <= 1000
        with pytest.raises(ControlError, match="already follows events"):
            client.request("subscribe")
        bench.server.publish(notice(1000))
        assert client.request("echo") == {}, "a request in between"
        assert next(events)["text"] == "1000"
    publisher.join()


@fails_without("control/server.py", "while first and size + len(lines[first - 1]) <= MAX_REPLAY_BYTES:", "while first:")
def test_what_a_subscription_leaves_out_and_what_it_can_not_read(bench: Bench) -> None:
    with bench.client() as client, bench.client() as other:
        assert client.subscribe(progress=False) == 0 and other.subscribe() == 0
        bench.server.publish(Progress(phase="update", done=1, total=2, unit="groups"))
        bench.server.publish(notice(1))
        assert next(client.events(SECONDS))["event"] == "notice"
        assert next(other.events(SECONDS))["event"] == "progress"
    past = notice(2)
    bench.history = lambda count: [past]
    with bench.client() as client:
        assert client.subscribe(10) == 1
        for event in (past, notice(3)):
            bench.server.publish(event)
        events = client.events(SECONDS)
        # The journal holds an event before the node publishes it.
        assert [next(events)["text"] for _ in range(2)] == ["2", "3"]
    bench.history = lambda count: [Notice(level="info", text="x" * 100_000)] * count
    with bench.client() as client:
        assert client.subscribe(100) == control.MAX_REPLAY_BYTES // 100_100 > 1
    bench.history = Mock(side_effect=StateError("the journal is damaged", "rename it"))
    with bench.client() as client:
        with pytest.raises(ControlError, match="the journal is damaged; rename it"):
            client.subscribe(10)
        assert client.subscribe(0) == 0


LARGE = Notice(level="info", text="x" * 10_000)


@fails_without("control/server.py", "self.subscribed and self.backlog + len(line) > MAX_BACKLOG_BYTES", "False")
def test_a_slow_reader_is_dropped_with_a_reason_and_slows_down_nobody(bench: Bench) -> None:
    slow, quick = bench.raw(b'{"id":1,"method":"subscribe"}\n'), bench.client()
    quick.subscribe()
    replies = lines(slow)
    assert next(replies)["hello"] and next(replies)["result"] == {"replayed": 0}
    start = time.monotonic()
    for _ in range(400):
        bench.server.publish(LARGE)
        assert next(quick.events(SECONDS))["text"] == LARGE.text
    assert time.monotonic() - start < SECONDS
    *_, last = replies
    assert last["end"]["code"] == "slow" and "read faster" in last["end"]["remedy"]
    quick.close()


def test_a_dropped_client_that_reads_nothing_is_closed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "FAREWELL_SECONDS", 0.05)
    client = bench.raw(b'{"id":1,"method":"subscribe"}\n')
    replies = lines(client)
    assert next(replies)["hello"] and "result" in next(replies)
    for _ in range(400):
        bench.server.publish(LARGE)
    wait_until(lambda: is_closed(client))


@fails_without("control/server.py", "self.closing or self.backlog <= MAX_BACKLOG_BYTES", "True")
def test_a_client_that_reads_no_answers_is_not_read_any_further(bench: Bench) -> None:
    line = encode({"id": 1, "method": "echo", "params": {"text": "x" * (MAX_REQUEST_BYTES - 100)}})
    connection = bench.raw()
    connection.settimeout(1)
    with pytest.raises(TimeoutError):
        for _ in range(5 * control.MAX_BACKLOG_BYTES // len(line)):
            connection.sendall(line)
    assert connects(bench)


@fails_without("control/server.py", "if len(self._clients) > MAX_CLIENTS:")
def test_new_clients_replace_idle_ones(bench: Bench) -> None:
    for _ in range(3 * MAX_CLIENTS):
        bench.raw(b'{"id":1,"meth')
    assert connects(bench)
    assert sum(not is_closed(connection) for connection in bench.raws) <= MAX_CLIENTS


def test_too_many_followers_are_rejected_until_one_leaves_or_stops_reading(bench: Bench) -> None:
    followers = [bench.client() for _ in range(MAX_CLIENTS)]
    for client in followers:
        client.subscribe()
    with pytest.raises(ControlError, match="too many clients") as error:
        bench.client()
    assert error.value.code == "busy"
    followers[0].close()
    wait_until(lambda: connects(bench))
    followers[0] = bench.client()
    followers[0].subscribe()
    assert not connects(bench)
    for _ in range(40):
        bench.server.publish(LARGE)
    # A follower that does not read is replaced.
    wait_until(lambda: connects(bench))
    for client in followers:
        client.close()


def test_a_slow_handler_delays_only_its_own_client(bench: Bench) -> None:
    bench.raw(b'{"id":1,"method":"wait"}\n' * 100)
    with bench.client() as client:
        assert client.request("echo", timeout=SECONDS) == {}
        with pytest.raises(NoNodeError, match="does not answer"):
            client.request("wait", timeout=0.05)


def test_clients_notice_their_own_end_and_the_node_s_and_another_node_replaces_the_socket(bench: Bench) -> None:
    closed, follower, waiting = (bench.client() for _ in range(3))
    for client in (closed, follower):
        client.subscribe()
    threading.Timer(0.05, closed.close).start()
    assert list(closed.events(SECONDS)) == []
    with pytest.raises(NoNodeError, match="the node has stopped"):
        closed.request("echo")
    threading.Timer(0.05, bench.server.stop).start()
    assert list(follower.events(SECONDS)) == []
    assert waiting.wait_for_end(SECONDS)
    bench.server.stop()
    with pytest.raises(NoNodeError, match="no node runs here; start one"):
        bench.client()
    # As a killed node leaves it.
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(bench.path))
    with pytest.raises(NoNodeError):
        bench.client()
    bench.start()
    assert connects(bench)


@pytest.mark.parametrize(("greeting", "message"), [
    (encode({"v": 2, "hello": "sapo-edge", "version": "9.0"}), "another version .'9.0'.; stop it"),
    (encode({"hello": "other"}), "not a node"), (b"SSH-2.0\n", "not a node"), (b"[]\n", "not a node"),
    (b"", "has stopped"),
])  # fmt: skip
def test_another_program_at_the_socket_is_reported(tmp_path: Path, greeting: bytes, message: str) -> None:
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


def test_where_no_thread_can_be_started_others_are_served_later(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
    with pytest.raises(NoNodeError):
        bench.client()
    monkeypatch.undo()
    assert connects(bench)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_process_of_another_user_gets_no_answer(bench: Bench) -> None:
    """Because of the modes of directory and socket and, where both are open, of the user at the other end."""
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

    def result() -> str:
        command = [sys.executable, "-I", "-c", code, str(bench.path)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.strip()

    assert result() == "PermissionError"
    bench.path.parent.chmod(0o755)
    assert result() == "PermissionError"
    if sys.platform == "linux":
        bench.path.chmod(0o777)
        assert result() in ("heard b''", "ConnectionResetError", "BrokenPipeError")
    assert connects(bench)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems tell nothing of the other end")
def test_a_user_with_a_large_number_is_this_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """As domains give them, and namespaces of users."""
    user, other = 4_000_000_000, 4_000_000_001
    monkeypatch.setattr(os, "geteuid", lambda: user)
    for found, is_same in ((user, True), (other, False), (0, True)):
        connection: Any = Mock(getsockopt=lambda *_, found=found: struct.pack("iII", 7, found, found))
        assert protocol.same_user(connection) is is_same


def test_a_deep_state_directory_gets_a_short_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as short:
        monkeypatch.setattr(tempfile, "tempdir", short)
        paths = Paths.default(tmp_path / ("d" * 90) / ("e" * 90))
        paths.create()
        assert not node_runs(paths)
        path = claim_socket_path(paths)
        assert path.is_relative_to(short) and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        # The client's temporary directory may differ.
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        assert protocol.socket_path(paths) == path
        server = ControlServer(path, {"echo": dict})
        server.start()
        with connect(paths) as client:
            assert client.request("echo", {"a": 1}) == {"a": 1}
        path.parent.chmod(0o755)
        for use in (lambda: connect(paths), lambda: claim_socket_path(paths)):
            monkeypatch.setattr(tempfile, "tempdir", short)
            with pytest.raises(StateError, match="other users can enter"):
                use()
        server.stop()


@fails_without("control/protocol.py", "not stat.S_ISDIR(status.st_mode) or ")
@fails_without("control/protocol.py", " or status.st_uid != os.geteuid():", ":")
def test_a_directory_that_somebody_else_made_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, link = tmp_path / "directory", tmp_path / "link"
    directory.mkdir(mode=0o700)
    link.symlink_to(directory)
    protocol.check_private(directory)
    with pytest.raises(StateError, match="not a directory of this user"):
        protocol.check_private(link)
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    with pytest.raises(StateError, match="not a directory of this user"):
        protocol.check_private(directory)


def test_a_node_that_holds_the_lock_and_does_not_listen_yet_is_waited_for() -> None:
    with tempfile.TemporaryDirectory() as directory:
        paths = Paths.default(Path(directory))
        paths.create()
        with StateLock(paths.lock):
            with pytest.raises(NoNodeError, match=f"starting or stopping .process {os.getpid()}."):
                connect(paths)
            server = ControlServer(claim_socket_path(paths), {"echo": dict})
            starter = threading.Timer(0.1, server.start)
            starter.start()
            try:
                with connect(paths, patience=SECONDS) as client:
                    assert client.request("echo") == {}
            finally:
                starter.join()
                server.stop()
        with pytest.raises(NoNodeError, match="no node runs here"):
            connect(paths, patience=SECONDS)
