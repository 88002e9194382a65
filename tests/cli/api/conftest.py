"""`sapo api` in this process: a loop in a thread, so that tests ask it as programs do, by a socket."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from sapo_edge.cli.api import token as tokens
from sapo_edge.cli.api.engine import Engine
from sapo_edge.cli.api.models import Catalogue
from sapo_edge.cli.api.serve import listen
from sapo_edge.cli.api.server import ApiServer
from sapo_edge.cli.workspace import open_workspace
from sapo_edge.policy import Policy

SECONDS = 60


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        record: dict[str, Any] = json.loads(self.body)
        return record

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = self.json["error"]
        return error

    @property
    def text(self) -> str:
        """Of a chat's answer."""
        assert self.status == 200, self.body
        return str(self.json["choices"][0]["message"]["content"])

    @property
    def events(self) -> list[dict[str, Any]]:
        """Of a stream, without its end."""
        parts = self.body.decode().split("\n\n")
        assert parts[-2:] == ["data: [DONE]", ""], parts[-2:]
        return [json.loads(part.removeprefix("data: ")) for part in parts[:-2]]


@dataclass
class Api:
    """A running server.

    Attributes:
        said: what it told its owner.
    """

    port: int
    token: str
    token_file: Path
    engine: Engine
    policy: Policy
    said: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def request(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Reply:
        """One request, with the token unless the headers have another one."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        shown = {"Authorization": f"Bearer {self.token}", **headers}
        try:
            connection.request(method, path, body, {name: value for name, value in shown.items() if value})
            reply = connection.getresponse()
            return Reply(reply.status, dict(reply.getheaders()), reply.read())
        finally:
            connection.close()

    def start(self, length: int | None = None, body: bytes = b"", **fields: Any) -> socket.socket:
        """A connection on which a chat was asked for, whose answer nobody reads yet.

        Args:
            length: that is announced; None: that of the body.
            body: instead of a streamed question of these fields.
        """
        messages = [{"role": "user", "content": "x"}]
        body = body or json.dumps({"model": "tiny", "messages": messages, "stream": True, **fields}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self.token}\r\n"
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS)
        connection.sendall(f"{head}Content-Length: {len(body) if length is None else length}\r\n\r\n".encode() + body)
        return connection

    def models(self) -> list[str]:
        return [model["id"] for model in self.request("GET", "/v1/models").json["data"]]

    def chat(self, model: str, text: str = "What is 3 + 4?", **fields: Any) -> Reply:
        body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 24, **fields}
        return self.request("POST", "/v1/chat/completions", json.dumps(body).encode())


Serving = Callable[..., Api]


@contextmanager
def serving(home: Path, model: Path, directory: Path, policy: Policy | None = None, threads: int = 1) -> Iterator[Api]:
    """A server whose base model is called tiny."""
    workspace = open_workspace(home, {"model": str(model), "threads": threads})
    with ExitStack() as stack:
        opened = policy or workspace.open_policy(directory, trainable=False, seed=0)[0]
        stack.callback(opened.close)
        said: list[str] = []
        engine = Engine(workspace, opened, said.append)
        stack.callback(engine.close)
        catalogue = Catalogue(workspace, "tiny", opened.model_digest, said.append)
        file = workspace.paths.api_token
        listening = stack.enter_context(listen("127.0.0.1", 0))
        api = Api(listening.getsockname()[1], tokens.read_or_make(file), file, engine, opened, said)
        server = ApiServer(engine, catalogue, lambda: tokens.read(file), True, said.append)
        loop, ready, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()

        async def run() -> None:
            async with server.listening(listening):
                ready.set()
                await stop.wait()

        thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
        thread.start()
        assert ready.wait(SECONDS)
        try:
            yield api
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join(SECONDS)
            assert not thread.is_alive()
            loop.close()


@pytest.fixture
def serve(home: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    """Starts servers on the trained home, which end after the test."""
    monkeypatch.setenv("SAPO_EDGE_NETWORK", "solo")
    with ExitStack() as stack:
        yield lambda policy=None: stack.enter_context(serving(home, model, tmp_path, policy))


@pytest.fixture
def api(serve: Serving) -> Api:
    return serve()
