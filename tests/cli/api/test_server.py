"""Who may ask, what is bounded, and how answers look."""

from __future__ import annotations

import asyncio
import gzip
import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from urllib.request import Request, urlopen

import pytest
from aiohttp import web

from sapo_edge.cli.api import engine as engine_module
from sapo_edge.cli.api import server as server_module
from sapo_edge.cli.api import token as tokens
from sapo_edge.cli.api.serve import listen, show
from sapo_edge.cli.api.server import ApiServer, is_this_machine
from sapo_edge.errors import ModelError
from sapo_edge.policy import Message
from tests.cli.api.conftest import SECONDS, Api, Serving
from tests.cli.inprocess import Invoke
from tests.cli.process import assert_refused, fork
from tests.defences.defence import fails_without
from tests.fakes import FakePolicy
from tests.waiting import wait_until

SCHEMA = {
    "type": "object", "required": ["name", "level"], "additionalProperties": False,
    "properties": {"name": {"enum": ["on", "off"]}, "level": {"type": "integer", "minimum": 0, "maximum": 9}},
}  # fmt: skip
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "call", "schema": SCHEMA}}


@contextmanager
def held(serve: Serving) -> Iterator[tuple[Api, FakePolicy, ThreadPoolExecutor, threading.Event]]:
    """A server whose first question is being answered until the test sets the event."""
    begun, let_go = threading.Event(), threading.Event()

    def hold(_policy: FakePolicy) -> None:
        begun.set()
        assert let_go.wait(SECONDS)

    policy = FakePolicy(script=lambda prompt, _: f"to {prompt[-1].content}", before_evaluate=hold)
    with ThreadPoolExecutor(100) as pool:
        api = serve(policy)
        first = pool.submit(api.chat, "tiny", "0")
        assert begun.wait(SECONDS)
        try:
            yield api, policy, pool, let_go
        finally:
            let_go.set()
        assert first.result(SECONDS).text == "to 0"


def connect(api: Api) -> socket.socket:
    return socket.create_connection(("127.0.0.1", api.port), timeout=SECONDS)


@fails_without("cli/api/server.py", 'if not tokens.is_shown(request.headers.get("Authorization", ""), self._token()):')
def test_without_the_token_nothing_is_answered(api: Api) -> None:
    for header in ("", "Bearer", "Bearer sapo-wrong", "Basic {}", "Bearer {}x", "Bearer \xff", "{}"):
        for method, path in (("GET", "/v1/models"), ("POST", "/v1/chat/completions"), ("GET", "/v1/nothing")):
            reply = api.request(method, path, b"{}", Authorization=header.format(api.token))
            assert reply.status == 401 and reply.error["code"] == "invalid_api_key", header
            assert api.token not in reply.body.decode()
        assert api.request("GET", "/health", Authorization=header.format(api.token)).json == {"status": "ok"}


def test_a_new_token_holds_from_the_next_request_on(api: Api) -> None:
    assert api.request("GET", "/v1/models").status == 200
    new = tokens.make(api.token_file)
    assert api.request("GET", "/v1/models").status == 401
    api.token = new
    assert api.request("GET", "/v1/models").status == 200
    api.token_file.chmod(0o644)
    assert api.request("GET", "/v1/models").status == 500
    assert any("other users may read the token" in text for text in api.said)


def test_runs_that_can_not_be_read_are_an_error_in_openais_form(api: Api, home: Path) -> None:
    runs = home / "state" / "runs"
    runs.rename(home / "away")
    runs.touch()
    for reply in (api.request("GET", "/v1/models"), api.chat("first")):
        assert reply.status == 500 and "its output says why" in reply.error["message"]
    assert [text for text in api.said if f"can't read {runs}" in text] == api.said
    runs.unlink()
    (home / "away").rename(runs)
    assert api.chat("first").status == 200


def test_only_an_address_is_listened_on_and_the_token_is_made_once_for_its_owner(home: Path, invoke: Invoke) -> None:
    for host in ("example.org", "", "127.0.0.1:80"):
        assert_refused(invoke("api", "--host", host, "--home", home), 2, "is no address")
    file = home / "state" / "api-token"
    first = invoke("api", "--show-token", "--home", home).out.strip()
    assert file.stat().st_mode & 0o777 == 0o600 and len(first) > 40
    assert invoke("api", "--show-token", "--home", home).out.strip() == first
    second = invoke("api", "--new-token", "--home", home).out.strip()
    assert second != first and tokens.read(file) == second and file.stat().st_mode & 0o777 == 0o600


@fails_without("cli/api/server.py", "if not is_this_machine(host, self._loopback):")
def test_other_pages_and_names_are_turned_away_even_with_the_token(api: Api) -> None:
    names = ("evil.example", "evil.example:80", "127.0.0.1.evil.example")
    for headers in (*({"Host": name} for name in names), {"Origin": "http://evil.example"}, {"Origin": "null"}):
        for path in ("/v1/models", "/health"):
            assert api.request("GET", path, None, **headers).status == 403, headers


@pytest.mark.parametrize(("host", "loopback", "is_own"), [
    ("127.0.0.1:8043", True, True), ("localhost", True, True), ("[::1]:8043", True, True), ("[::1]", True, True),
    ("", True, False), ("192.168.1.2:8043", True, False), ("localhost:x", True, False),
    ("host.docker.internal:8043", True, False), ("host.docker.internal:8043", False, True),
    ("192.168.1.2:8043", False, True), (f"{socket.gethostname()}.local", False, True), ("evil.example", False, False),
    ("192.168.1.2.evil.example", False, False),
])  # fmt: skip
def test_hosts_are_this_machine(host: str, loopback: bool, is_own: bool) -> None:
    assert is_this_machine(host, loopback) == is_own


def test_the_command_prints_where_to_ask_and_ends_by_a_signal(home: Path, model: Path, tmp_path: Path) -> None:
    with fork("api", "--home", home, "--model", model, "--port", "0", directory=tmp_path) as process:
        try:
            url, token = (process.stdout.readline().strip().partition("=")[2] for _ in range(2))
            request = Request(f"{url}/models", headers={"Authorization": f"Bearer {token}"})
            with urlopen(request, timeout=SECONDS) as reply:
                assert [entry["id"] for entry in json.load(reply)["data"]][1:] == ["first", "first-chat", "first-base"]
            process.send_signal(signal.SIGTERM)
            told = process.communicate(SECONDS)[1]
            assert process.returncode == 0 and 'model="first"' in told and told.endswith("ending\n")
            # The token is data, not narration, which may be kept somewhere.
            assert token not in told
        finally:
            process.kill()


@pytest.mark.parametrize(("host", "name"), [("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("::1", "[::1]")])
def test_the_address_that_is_printed_is_listened_on(host: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    catalogue: Any = SimpleNamespace(models=lambda: {"first": SimpleNamespace(name="first", about="")})
    with listen(host, 0) as listening:
        address, port = listening.getsockname()[:2]
        show(address, port, "token", catalogue)
        assert f"OPENAI_BASE_URL=http://{name}:{port}/v1\n" in capsys.readouterr().out
        socket.create_connection((name.strip("[]"), port), SECONDS).close()


def test_what_is_not_there_is_said_in_openais_form_and_unknown_fields_once(api: Api) -> None:
    assert "/v1/chat/completions" in api.request("GET", "/v1/responses").error["message"]
    assert api.request("GET", "/v1/chat/completions").status == 405
    assert api.request("GET", "/v1/models/first").json["id"] == "first"
    assert api.request("GET", "/v1/models/none").error["code"] == "model_not_found"
    for _ in range(2):
        assert api.chat("tiny", chat_id="webui").status == 200
    assert len([text for text in api.said if "chat_id" in text]) == 1


def test_an_answer_counts_its_tokens_and_a_stream_is_the_same_piece_by_piece(api: Api) -> None:
    record = api.chat("first-chat", max_tokens=5).json
    assert record["choices"][0]["finish_reason"] == "length" and record["object"] == "chat.completion"
    prompt = api.policy.context - api.policy.room((Message("user", "What is 3 + 4?"),))
    assert record["usage"] == {"prompt_tokens": prompt, "completion_tokens": 5, "total_tokens": prompt + 5}
    whole = api.chat("first-chat", max_tokens=40).json
    events = api.chat("first-chat", max_tokens=40, stream=True, stream_options={"include_usage": True}).events
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    pieces = [event["choices"][0]["delta"].get("content", "") for event in events[:-1]]
    assert "".join(pieces) == whole["choices"][0]["message"]["content"]
    assert events[-2]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert events[-1]["choices"] == [] and events[-1]["usage"] == whole["usage"]
    assert len({event["id"] for event in events}) == 1
    # Stop texts end an answer before them, in a stream too.
    text = whole["choices"][0]["message"]["content"]
    stop = text[10:13]
    cut = text[: text.find(stop)]
    reply = api.chat("first-chat", max_tokens=40, stop=["never said", stop]).json
    assert reply["choices"][0]["message"]["content"] == cut and reply["choices"][0]["finish_reason"] == "stop"
    events = api.chat("first-chat", max_tokens=40, stop=stop, stream=True).events
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == cut


def test_a_completion_is_answered(api: Api) -> None:
    body = {"model": "first-chat", "prompt": "What is 3 + 4?", "max_tokens": 24}
    record = api.request("POST", "/v1/completions", json.dumps(body).encode()).json
    assert record["object"] == "text_completion" and record["choices"][0]["text"] == api.chat("first-chat").text
    events = api.request("POST", "/v1/completions", json.dumps({**body, "stream": True}).encode()).events
    assert "".join(event["choices"][0]["text"] for event in events) == record["choices"][0]["text"]


def test_a_seed_draws_the_same_answer_and_a_limit_inside_of_an_object_is_said(api: Api) -> None:
    texts = [api.chat("tiny", temperature=1.0, seed=seed).text for seed in (5, 5, 6)]
    assert texts[0] == texts[1] != texts[2]
    choice = api.chat("tiny", max_tokens=4, response_format=FORMAT).json["choices"][0]
    assert choice["finish_reason"] == "length" and choice["message"]["content"].startswith("{")


def test_a_hundred_answers_obey_their_schema(api: Api) -> None:
    def ask(number: int) -> Any:
        fields = {"max_tokens": 60, "temperature": 1.0, "response_format": FORMAT}
        return json.loads(api.chat(("tiny", "first")[number % 2], f"question {number}", **fields).text)

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(ask, range(100)))
    assert all(set(answer) == {"name", "level"} and answer["level"] in range(10) for answer in answers)
    assert {answer["name"] for answer in answers} <= {"on", "off"}


def test_a_prompt_that_does_not_fit_is_refused_and_a_limit_that_does_not_is_lowered(api: Api) -> None:
    for stream in (False, True):
        reply = api.chat("tiny", "x" * 3000, stream=stream)
        assert reply.status == 400 and reply.error["code"] == "context_length_exceeded"
    assert api.chat("tiny", "x" * 2000, max_tokens=100_000).json["usage"]["total_tokens"] <= api.policy.context


def test_askers_of_one_adapter_share_a_batch(serve: Serving) -> None:
    with held(serve) as (api, policy, pool, let_go):
        asked = [pool.submit(api.chat, "tiny", str(number)) for number in range(1, 9)]
        hot = pool.submit(api.chat, "tiny", "hot", temperature=1.0)
        wait_until(lambda: len(api.engine._waiting) == 9)
        let_go.set()
        assert [reply.result(SECONDS).text for reply in asked] == [f"to {number}" for number in range(1, 9)]
        assert hot.result(SECONDS).text == "to hot"
    assert sorted(len(call.prompts) for call in policy.calls) == [1, 1, 8]


@fails_without(
    "cli/api/engine.py",
    "if goes_on and self._waiting and not pending.is_seeded and tokens >= len(pending.drawn) + SLICE_TOKENS:",
)
def test_who_asks_during_a_long_answer_waits_for_a_slice_of_it(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "SLICE_TOKENS", 8)
    whole = api.chat("first-chat", max_tokens=30).json
    generate, begun = api.policy.generate, threading.Event()
    calls: list[list[int]] = []

    def watched(prompts: Any, *arguments: Any, **options: Any) -> Any:
        begun.set()
        wait_until(lambda: bool(calls) or len(api.engine._waiting) == 2)
        groups = generate(prompts, *arguments, **options)
        calls.append([len(sample.token_ids) for group in groups for sample in group])
        return groups

    api.policy.generate = watched  # type: ignore[method-assign]
    with ThreadPoolExecutor(3) as pool:
        long = pool.submit(api.chat, "first-chat", max_tokens=30)
        assert begun.wait(SECONDS)
        other = pool.submit(api.chat, "tiny", max_tokens=5)
        wait_until(lambda: len(api.engine._waiting) == 1)
        same = pool.submit(api.chat, "first-chat", "x", max_tokens=5)
        assert all(reply.result(SECONDS).json["usage"]["completion_tokens"] == 5 for reply in (other, same))
        after = long.result(SECONDS).json
    # It goes on behind the one of another model, and beside the one of its own.
    wait_until(lambda: len(calls) == 3)
    assert calls == [[8], [5], [5, 30]]
    assert after["usage"] == whole["usage"] and after["choices"][0]["finish_reason"] == "length"
    assert after["choices"][0]["message"]["content"][:8] == whole["choices"][0]["message"]["content"][:8]


def test_a_full_queue_says_when_to_come_back(serve: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "MAX_WAITING", 3)
    with held(serve) as (api, _, pool, let_go):
        asked = [pool.submit(api.chat, "tiny", str(number)) for number in range(3)]
        wait_until(lambda: len(api.engine._waiting) == 3)
        reply = api.chat("tiny", "one more")
        assert reply.status == 503 and int(reply.headers["Retry-After"]) > 0 and "seconds" in reply.error["message"]
        let_go.set()
        assert all(one.result(SECONDS).status == 200 for one in asked)
    assert api.chat("tiny", "now").text == "to now"


def test_a_batch_stays_within_the_context_and_the_memory(serve: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakePolicy, "memory_estimate", lambda _self, groups, *_: groups)
    with held(serve) as (api, policy, pool, let_go):
        api.engine._memory = 3
        asked = [pool.submit(api.chat, "tiny", str(number)) for number in range(7)]
        wait_until(lambda: len(api.engine._waiting) == 7)
        let_go.set()
        assert all(one.result(SECONDS).status == 200 for one in asked)
    assert [len(call.prompts) for call in policy.calls] == [1, 3, 3, 1]


def test_a_client_that_leaves_ends_its_answer_and_nobody_elses(api: Api) -> None:
    counts: list[int] = []
    generate = api.policy.generate

    def counting(*arguments: Any, **options: Any) -> Any:
        groups = generate(*arguments, **options)
        counts.extend(len(sample.token_ids) for group in groups for sample in group)
        return groups

    api.policy.generate = counting  # type: ignore[method-assign]
    with api.start(max_tokens=1900) as leaving:
        assert leaving.recv(100).startswith(b"HTTP/1.1 200")
    assert api.chat("tiny", max_tokens=5).status == 200
    wait_until(lambda: len(counts) == 2)
    assert counts[0] < 1900 and counts[1] == 5


def test_a_body_that_is_too_large_is_refused_before_it_is_read(api: Api) -> None:
    with api.start(10**12) as sending:
        assert sending.recv(100).startswith(b"HTTP/1.1 413")
    # Without a length it is read up to the bound.
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {api.token}\r\n"
    with connect(api) as sending:
        sending.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        piece = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        for _ in range(server_module.MAX_BODY // 0x10000 + 1):
            sending.sendall(piece)
        assert sending.recv(100).startswith(b"HTTP/1.1 413")


@fails_without("cli/api/server.py", "auto_decompress=False", "auto_decompress=True")
def test_a_compressed_body_is_not_unpacked(api: Api) -> None:
    reply = api.request("POST", "/v1/chat/completions", gzip.compress(b" " * 10**7), **{"Content-Encoding": "gzip"})
    assert reply.status == 400 and "not JSON" in reply.error["message"]


def test_what_is_no_request_is_answered_and_not_told(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    for more in ("", "Host: a\r\nX y: z\r\n"):
        with connect(api) as connection:
            connection.sendall(f"GET /health HTTP/1.1\r\n{more}\r\n".encode())
            assert b" 400 " in connection.recv(100)
        assert not caplog.text and api.request("GET", "/health").status == 200


def test_slow_senders_are_cut_off(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("READ_SECONDS", "IDLE_SECONDS", "LOOK_SECONDS"):
        monkeypatch.setattr(server_module, name, 0.2)
    with api.start(100, b"{") as body, connect(api) as silent, connect(api) as half:
        half.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n")
        assert body.recv(100).startswith(b"HTTP/1.1 408")
        for connection in (silent, half):
            assert receive(connection) == b""


def test_a_connection_in_use_is_kept(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "IDLE_SECONDS", 1.0)
    monkeypatch.setattr(server_module, "LOOK_SECONDS", 0.01)
    begin = time.monotonic()
    with connect(api) as connection:
        while time.monotonic() - begin < 1.5:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert connection.recv(1000).startswith(b"HTTP/1.1 200")
            time.sleep(0.05)


def receive(connection: socket.socket) -> bytes:
    """What comes next; nothing after its end."""
    try:
        return connection.recv(1 << 20)
    except ConnectionResetError:
        return b""


def test_two_hundred_connections_and_slow_readers_hold_nobody_up(api: Api) -> None:
    with ExitStack() as stack:
        for number in range(200):
            # Some ask and never read.
            stack.enter_context(connect(api) if number % 20 else api.start(max_tokens=300))
        begin = time.monotonic()
        assert api.chat("tiny", max_tokens=5).status == 200
        assert time.monotonic() - begin < SECONDS / 2


def test_a_reader_that_stands_still_is_cut_off(serve: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "WRITE_SECONDS", 0.2)
    # More than the system's buffers hold, so that a write waits.
    policy = FakePolicy(script=lambda *_: "x" * 30_000_000)
    api = serve(policy)
    with api.start() as reader:
        wait_until(lambda: bool(policy.calls))
        time.sleep(1)
        received = 0
        while piece := receive(reader):
            received += len(piece)
        assert received < 30_000_000


def test_an_open_answer_holds_the_end_up_no_longer_than_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "CLOSE_SECONDS", 0.5)

    async def end() -> float:
        asked = asyncio.Event()
        none: Any = None

        async def answer(_server: ApiServer, _request: web.Request) -> web.Response:
            asked.set()
            await asyncio.sleep(SECONDS)
            return web.Response()

        monkeypatch.setattr(ApiServer, "_health", answer)
        with listen("127.0.0.1", 0) as listening:
            async with ApiServer(none, none, str, True, print).listening(listening):
                _, writer = await asyncio.open_connection(*listening.getsockname())
                writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                await asked.wait()
                begin = time.monotonic()
            writer.close()
            return time.monotonic() - begin

    assert 0.4 < asyncio.run(end()) < 3.5


def test_connections_beyond_the_bound_are_told(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 5)
    with ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(connect(api))
        wait_until(lambda: api.request("GET", "/health").status == 503)
    wait_until(lambda: api.request("GET", "/health").status == 200)


def test_a_fault_of_the_model_fails_its_batch_alone(serve: Serving) -> None:
    schema = ModelError("a JSON schema can't be followed", "simplify it")
    fails = Mock(side_effect=[RuntimeError("it broke \x1b[31mred"), None, schema, schema])
    api = serve(FakePolicy(script=lambda *_: "fine", before_evaluate=fails))
    reply = api.chat("tiny")
    assert reply.status == 500 and "broke" not in reply.error["message"]
    assert any("it broke" in text and "\x1b" not in text for text in api.said)
    assert api.chat("tiny").text == "fine"
    reply = api.chat("tiny", response_format=FORMAT)
    assert reply.status == 400 and "can't be followed; simplify it" in reply.error["message"], "the asker's fault"
    assert api.chat("tiny").status == 500
