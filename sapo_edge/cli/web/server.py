"""The page behind `sapo web`: textual-serve's server, only for those who know its secret address.

Any user of this machine and any page in the owner's browser can reach a port on loopback. Therefore the first part of
every path is a secret, and every request must name a loopback host and, if it has an Origin, this page's. The secret is
not a cookie: browsers send cookies to every port of a host, so to other users' servers too.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import html
import os
import secrets
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import resources
from string import Template

from aiohttp import WSCloseCode, web
from textual_serve.app_service import AppService
from textual_serve.download_manager import DownloadManager
from textual_serve.server import Server, to_int

MAX_SESSIONS = 4
"""Most apps at the same time. Each is a process of about 80 MB and two of the 16 clients that a node accepts."""
QUIT_SECONDS = 3.0
"""How long an app may take to quit."""
CLOSE_SECONDS = 2.0
"""How long a browser may take to close its websocket."""
MAX_MESSAGE_BYTES = 1 << 20
"""Largest message of a browser: keys, or pasted text."""
ASSETS = {
    "textual.js": "js/textual.js",
    "xterm.css": "css/xterm.css",
    "mono.ttf": "fonts/RobotoMono-VariableFont_wght.ttf",
    "mono-italic.ttf": "fonts/RobotoMono-Italic-VariableFont_wght.ttf",
}
"""Files that the page loads, by their path in textual-serve. Its own page loads a font from a server of Google's."""
TERMINAL = {
    "TERM": "xterm-256color",
    "COLORTERM": "truecolor",
    "LC_ALL": "C.UTF-8",
    "PYTHONUTF8": "1",
    "TEXTUAL_DRIVER": "sapo_edge.cli.web.app:Driver",
}
"""Environment of an app: its terminal is the browser, not the one in which the server was started."""

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class AppProcess(AppService):
    """One app, started without a shell and with more in its environment; `stop` ends it for certain."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        websocket: web.WebSocketResponse,
        downloads: DownloadManager,
    ) -> None:
        async def close() -> None:
            await websocket.close()

        super().__init__(
            command[0],
            write_bytes=websocket.send_bytes,
            write_str=websocket.send_str,
            close=close,
            download_manager=downloads,
        )
        self._arguments = command
        self._environment = environment
        self._ending: asyncio.Task[None] | None = None

    def _build_environment(self, width: int = 80, height: int = 24) -> dict[str, str]:
        return {**super()._build_environment(width, height), **TERMINAL, **self._environment}

    async def _open_app_process(self, width: int = 80, height: int = 24) -> Process:
        # In a process group of its own, so that its chat process ends with it. A node is in another group.
        self._process = await asyncio.create_subprocess_exec(
            *self._arguments, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True,
            env=self._build_environment(width, height),
        )  # fmt: skip
        assert self._process.stdin is not None
        self._stdin = self._process.stdin
        return self._process

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            await self.remote_close()

    async def stop(self) -> None:
        """Ask the app to quit, and kill it if it does not. May be called more than once."""
        if self._process is not None and self._ending is None:
            self._ending = asyncio.create_task(self._end(self._process))
        if self._ending is not None:
            await asyncio.shield(self._ending)

    async def _end(self, process: Process) -> None:
        ends = [asyncio.create_task(super().stop()), asyncio.create_task(process.wait())]
        await asyncio.wait(ends, timeout=QUIT_SECONDS)
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        await asyncio.wait(ends, timeout=CLOSE_SECONDS)


class PageServer(Server):
    """Serves the page, its files, and an app for each websocket; `token` is the first part of every path."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        super().__init__(command[0], title="sapo")
        self.token = secrets.token_urlsafe(256 // 8)
        self._arguments, self._environment = tuple(command), dict(environment)
        self._sessions: dict[web.WebSocketResponse, AppProcess] = {}
        self._page = Template(resources.files("sapo_edge.cli.web").joinpath("page.html").read_text("utf-8"))

    async def make_app(self) -> web.Application:
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/{token}/", self.handle_index)
        app.router.add_get("/{token}/ws", self.handle_websocket)
        app.router.add_get("/{token}/static/{name}", self.handle_asset)
        # textual-serve's script has this path built in. The key is unguessable too, and valid for one file.
        app.router.add_get("/download/{key}", self.handle_download)
        app.on_response_prepare.append(_restrict)
        app.on_shutdown.append(self.on_shutdown)
        return app

    async def handle_index(self, request: web.Request) -> web.Response:
        self._check_room()
        nonce = secrets.token_urlsafe(16)
        text = self._page.substitute(
            # The host as the browser sees it: through a tunnel, the port is another one.
            websocket=html.escape(f"ws://{request.host}/{self.token}/ws"),
            font_size=min(max(to_int(request.query.get("fontsize", ""), 15), 8), 40),
            nonce=nonce,
        )
        policy = (
            f"default-src 'none'; script-src 'self' 'nonce-{nonce}'; style-src 'self' 'unsafe-inline'; "
            f"font-src 'self'; img-src 'self' data:; connect-src 'self' ws://{request.host}; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        return web.Response(text=text, content_type="text/html", headers={"Content-Security-Policy": policy})

    async def handle_asset(self, request: web.Request) -> web.FileResponse:
        path = ASSETS.get(request.match_info["name"])
        if path is None:
            raise web.HTTPNotFound
        return web.FileResponse(self.statics_path / path)

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        if "Origin" not in request.headers:
            raise web.HTTPForbidden(text="a websocket needs an Origin\n")
        self._check_room()
        websocket = web.WebSocketResponse(heartbeat=15, timeout=CLOSE_SECONDS, max_msg_size=MAX_MESSAGE_BYTES)
        process = AppProcess(self._arguments, self._environment, websocket, self.download_manager)
        self._sessions[websocket] = process
        try:
            await websocket.prepare(request)
            await process.start(to_int(request.query.get("width", ""), 80), to_int(request.query.get("height", ""), 24))
            try:
                await self._process_messages(websocket, process)
            except (AssertionError, AttributeError, LookupError, TypeError, ValueError):
                # textual-serve can't read the message, so our page did not send it.
                await websocket.close(code=WSCloseCode.POLICY_VIOLATION)
        finally:
            try:
                await process.stop()
            finally:
                del self._sessions[websocket]
        return websocket

    async def on_shutdown(self, app: web.Application) -> None:
        sessions = dict(self._sessions)
        await asyncio.gather(*(process.stop() for process in sessions.values()))
        await asyncio.gather(*(websocket.close(code=WSCloseCode.GOING_AWAY) for websocket in sessions))

    def _check_room(self) -> None:
        if len(self._sessions) >= MAX_SESSIONS:
            raise web.HTTPServiceUnavailable(text=f"{MAX_SESSIONS} pages are open; close one, and reload this\n")

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Reject requests without the secret address, and requests of other pages."""
        host = request.headers.get("Host", "")
        if not _is_loopback(host):
            # DNS rebinding: a foreign page whose host name now resolves to this machine.
            return web.Response(status=403, text="this server answers only to 127.0.0.1 and localhost\n")
        if request.headers.get("Origin", f"http://{host}") != f"http://{host}":
            return web.Response(status=403, text="other pages may not use this server\n")
        first = request.path.removeprefix("/").partition("/")[0]
        if first != "download" and not hmac.compare_digest(os.fsencode(first), self.token.encode()):
            return web.Response(status=403, text="open the whole address that `sapo web` printed\n")
        return await handler(request)


def _is_loopback(host: str) -> bool:
    """Whether a Host header names this machine; any port, because a tunnel may use another one."""
    name, colon, port = host.partition(":")
    return name.lower() in ("127.0.0.1", "localhost") and (not colon or (port.isascii() and port.isdigit()))


async def _restrict(request: web.Request, response: web.StreamResponse) -> None:
    """Tell the browser to load, keep and reveal as little as possible."""
    headers = response.headers
    # For everything but the page itself: a downloaded file must not run as a part of it.
    headers.setdefault("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; sandbox")
    headers["Cache-Control"] = "no-store"
    headers["Cross-Origin-Opener-Policy"] = "same-origin"
    headers["Cross-Origin-Resource-Policy"] = "same-origin"
    headers["Permissions-Policy"] = "clipboard-read=()"
    headers["Referrer-Policy"] = "no-referrer"
    headers["X-Content-Type-Options"] = "nosniff"
