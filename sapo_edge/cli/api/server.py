"""The web server of `sapo api`: who may ask, what is bounded, and answers in OpenAI's form.

Any user of this machine and any page in the owner's browser can reach a port on loopback. So every request but
`/health` shows the token, names a host that is this machine, and, if it has an Origin, comes from this server.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import math
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any
from uuid import uuid4

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler

from sapo_edge.cli.api import token as tokens
from sapo_edge.cli.api.engine import Engine, Pending
from sapo_edge.cli.api.messages import ApiError, read_chat, read_completion
from sapo_edge.cli.api.models import Catalogue, Once, Served
from sapo_edge.errors import StateError

MAX_BODY = 512 * 1024
"""Largest body of a request, in bytes: more text than the contexts of the models here hold."""
MAX_CONNECTIONS = 256
READ_SECONDS = 20.0
"""How long a program may take to send a body."""
IDLE_SECONDS = 30.0
"""How long a connection may stay open without a complete head of a request."""
WRITE_SECONDS = 30.0
"""How long a program may take to read a piece of an answer."""
LOOK_SECONDS = 1.0
"""How often idle connections are looked for."""
CLOSE_SECONDS = 5.0
"""How long answers have when the server ends."""
LOCAL_NAMES = ("localhost", "host.docker.internal", "host.containers.internal")
"""Names of this machine that no stranger's name server answers for; the last two are a container's for its host."""
BUSY = ApiError(f"{MAX_CONNECTIONS} connections are open already; try again in 5 seconds", 503, code="busy", retry=5)

CHAT = "/v1/chat/completions"

_logger = logging.getLogger(__name__)
# What is no request of HTTP is answered, but not told: any program here can send it, as often as it likes.
_logger.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError)))

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ApiServer:
    """Answers programs with an engine.

    Args:
        token: reads the token, for each request: a new one holds from then on.
        loopback: whether only this machine can connect.
    """

    def __init__(
        self, engine: Engine, catalogue: Catalogue, token: Callable[[], str], loopback: bool, say: Callable[[str], None]
    ) -> None:
        self._engine, self._catalogue, self._token, self._loopback = engine, catalogue, token, loopback
        self._once = Once(say)
        self._idle_since: dict[RequestHandler, float] = {}

    def make_app(self) -> web.Application:
        app = web.Application(middlewares=[self._guard], client_max_size=MAX_BODY)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/v1/models/{name}", self._model)
        app.router.add_post(CHAT, self._answer)
        app.router.add_post("/v1/completions", self._answer)
        return app

    @asynccontextmanager
    async def listening(self, listening: socket.socket) -> AsyncIterator[None]:
        """Serve on a socket until the block ends."""
        # Without an access log: paths and addresses are nobody's business. Bodies are taken as they are: one that
        # is compressed could be larger than it is. When it ends, aiohttp waits for an answer so long, and then again.
        runner = web.AppRunner(
            self.make_app(), access_log=None, handler_cancellation=True, auto_decompress=False, lingering_time=1.0,
            shutdown_timeout=CLOSE_SECONDS / 2, logger=_logger,
        )  # fmt: skip
        await runner.setup()
        handlers = runner.server
        assert handlers is not None

        def accept() -> asyncio.Protocol:
            return handlers() if len(handlers.connections) < MAX_CONNECTIONS else _Full()

        server = await asyncio.get_running_loop().create_server(accept, sock=listening)
        looking = asyncio.create_task(self._close_idle(handlers))
        try:
            yield
        finally:
            looking.cancel()
            server.close()
            await runner.cleanup()

    async def _close_idle(self, handlers: web.Server) -> None:
        """Close connections on which nothing is asked: also those whose head comes byte by byte."""
        while True:
            now, since = time.monotonic(), self._idle_since
            self._idle_since = {handler: since.get(handler, now) for handler in handlers.connections}
            for handler, begin in self._idle_since.items():
                if now - begin > IDLE_SECONDS and handler.transport is not None:
                    # Without waiting until somebody reads what is left.
                    handler.transport.abort()
            await asyncio.sleep(LOOK_SECONDS)

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        self._idle_since[request.protocol] = math.inf
        try:
            self._check(request)
            return await handler(request)
        except ApiError as error:
            return _error(error)
        except StateError as error:
            self._once(str(error))
            return _error(ApiError("the server can't read its files; its output says why", 500))
        except web.HTTPException as error:
            paths = "/v1/models, /v1/chat/completions, /v1/completions and /health"
            message = {404: f"there is nothing here; there are {paths}", 413: f"a body has at most {MAX_BODY} bytes"}
            return _error(ApiError(message.get(error.status, error.reason), error.status))
        finally:
            self._idle_since[request.protocol] = time.monotonic()

    def _check(self, request: web.Request) -> None:
        """Raise an ApiError if a request does not come from a program of the token's owner."""
        host = request.headers.get("Host", "")
        if not is_this_machine(host, self._loopback):
            # DNS rebinding: a foreign page whose host name now resolves to this machine.
            raise ApiError("this server answers only to its own address, such as 127.0.0.1", 403)
        if request.headers.get("Origin", f"http://{host}") != f"http://{host}":
            raise ApiError("pages of other servers may not use this one", 403)
        if request.path == "/health":
            return
        if not tokens.is_shown(request.headers.get("Authorization", ""), self._token()):
            raise ApiError(
                "the token is missing or wrong: send it as `Authorization: Bearer TOKEN`; `sapo api --show-token` "
                "prints it", 401, code="invalid_api_key",
            )  # fmt: skip

    async def _health(self, _request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _models(self, _request: web.Request) -> web.Response:
        models = await asyncio.to_thread(self._catalogue.models)
        return web.json_response({"object": "list", "data": [_described(model) for model in models.values()]})

    async def _model(self, request: web.Request) -> web.Response:
        return web.json_response(_described(await self._served(request.match_info["name"])))

    async def _served(self, name: str) -> Served:
        models = await asyncio.to_thread(self._catalogue.models)
        if name not in models:
            there = ", ".join(list(models)[:20])
            raise ApiError(f"there is no such model; there are {there}", 404, "model", "model_not_found")
        return models[name]

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body, is_chat = await _body(request), request.path == CHAT
        # In a thread: a schema may take a while.
        question = await asyncio.to_thread(read_chat if is_chat else read_completion, body)
        if question.unknown:
            self._once(f"a program sends fields that are ignored: {', '.join(question.unknown)[:200]}")
        served = await self._served(question.model)
        changed = asyncio.Event()
        loop = asyncio.get_running_loop()

        def wake() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(changed.set)

        pending = self._engine.ask(question, served, wake)
        try:
            while not (pending.done or (pending.started and question.stream)):
                await _change(changed)
            # What was wrong with a question is its status, also of a stream.
            if pending.error is not None:
                raise pending.error
            form = _Form(pending, is_chat=is_chat)
            return await _stream(request, form, changed) if question.stream else web.json_response(form.whole())
        finally:
            # Also if the program has left: then the answer ends at its next token.
            pending.left = True


class _Full(asyncio.Protocol):
    """A connection for which there is no place."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        body = json.dumps(BUSY.body).encode()
        head = (
            f"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: {BUSY.retry}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        transport.write(head.encode() + body)
        transport.close()


class _Form:
    """An answer in OpenAI's form: of a chat, or of the older completions."""

    def __init__(self, pending: Pending, *, is_chat: bool) -> None:
        self.pending, self._is_chat = pending, is_chat
        name = f"{'chatcmpl' if is_chat else 'cmpl'}-{uuid4().hex}"
        self._head = {"id": name, "created": int(time.time()), "model": pending.served.name}

    def whole(self) -> dict[str, Any]:
        message = {"role": "assistant", "content": self.pending.text, "refusal": None}
        said = {"message": message} if self._is_chat else {"text": self.pending.text}
        return {**self._record("chat.completion", said, self.pending.finish), "usage": self._usage()}

    def part(self, text: str, *, first: bool = False, last: bool = False) -> dict[str, Any]:
        delta = {**({"role": "assistant"} if first else {}), **({"content": text} if text or first else {})}
        said = {"delta": delta} if self._is_chat else {"text": text}
        record = self._record("chat.completion.chunk", said, self.pending.finish if last else None)
        return {**record, "usage": None} if self.pending.question.usage else record

    def usage_part(self) -> dict[str, Any]:
        return {**self._record("chat.completion.chunk", {}, None), "choices": [], "usage": self._usage()}

    def _record(self, name: str, said: Mapping[str, Any], finish: str | None) -> dict[str, Any]:
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": finish}
        return {**self._head, "object": name if self._is_chat else "text_completion", "choices": [choice]}

    def _usage(self) -> dict[str, int]:
        asked, answered = self.pending.prompt_tokens, self.pending.tokens
        return {"prompt_tokens": asked, "completion_tokens": answered, "total_tokens": asked + answered}


async def _body(request: web.Request) -> bytes:
    if (request.content_length or 0) > MAX_BODY:
        raise ApiError(f"a body has at most {MAX_BODY} bytes", 413)
    try:
        async with asyncio.timeout(READ_SECONDS):
            return await request.read()
    except TimeoutError as error:
        raise ApiError(f"the body did not come within {READ_SECONDS:g} seconds", 408) from error


async def _change(changed: asyncio.Event) -> None:
    await changed.wait()
    changed.clear()


async def _stream(request: web.Request, form: _Form, changed: asyncio.Event) -> web.StreamResponse:
    """Send an answer while it grows, as events. A program that reads slowly gets larger pieces, not a longer queue."""
    headers = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
    response = web.StreamResponse(headers=headers)
    pending = form.pending

    async def send(record: Mapping[str, Any]) -> None:
        async with asyncio.timeout(WRITE_SECONDS):
            await response.write(f"data: {json.dumps(record)}\n\n".encode())

    await response.prepare(request)
    try:
        await send(form.part("", first=True))
        sent = 0
        while True:
            # Whether it ends first, then its text: the engine writes them in the other order.
            done, text = pending.done, pending.text
            if len(text) > sent:
                await send(form.part(text[sent:]))
                sent = len(text)
            if done:
                break
            await _change(changed)
        if pending.error is not None:
            await send(pending.error.body)
        else:
            await send(form.part("", last=True))
            if pending.question.usage:
                await send(form.usage_part())
        async with asyncio.timeout(WRITE_SECONDS):
            await response.write_eof(b"" if pending.error is not None else b"data: [DONE]\n\n")
    except (TimeoutError, ConnectionResetError):
        # It does not read, or has left: what waits to be sent goes with the connection.
        if request.transport is not None:
            request.transport.abort()
    return response


def _described(model: Served) -> dict[str, Any]:
    entry = {"id": model.name, "object": "model", "created": model.created, "owned_by": "sapo-edge"}
    return {**entry, "description": model.about}


def _error(error: ApiError) -> web.Response:
    headers = {"Retry-After": str(error.retry)} if error.retry else {}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    response = web.json_response(error.body, status=error.status, headers=headers)
    if error.status in (408, 413):
        # The rest of the body is not waited for.
        response.force_close()
    return response


def is_this_machine(host: str, loopback: bool) -> bool:
    """Whether a Host header names this machine; any port, because a tunnel may use another one.

    Unless only this machine can connect (`loopback`), it may be named by any address and its own names.
    """
    name, colon, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
    name = (name if colon else host).strip("[]").lower()
    if colon and not (port.isascii() and port.isdigit()):
        return False
    address: ipaddress.IPv4Address | ipaddress.IPv6Address | None = None
    with suppress(ValueError):
        address = ipaddress.ip_address(name)
    if loopback:
        return name == "localhost" or (address is not None and address.is_loopback)
    own = socket.gethostname().lower()
    return address is not None or name in (*LOCAL_NAMES, own, f"{own}.local")
