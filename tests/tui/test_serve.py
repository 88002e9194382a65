"""`sapo web`: who is let in, what becomes of the apps, and the app in a real browser."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import psutil
import pytest

from sapo_edge.cli.web.server import ASSETS, MAX_MESSAGE_BYTES, MAX_SESSIONS
from sapo_edge.state.paths import Paths
from tests.defences.defence import fails_without
from tests.tui.browser import browser, chromium
from tests.tui.fake_node import ScriptedNode
from tests.tui.served import APP, SCREEN, STUB, Served, gone, serving, started

pytestmark = pytest.mark.asyncio


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server for all tests that leave nothing behind."""
    with serving(tmp_path_factory.mktemp("served"), [sys.executable, "-c", STUB, "tell"]) as found:
        yield found


async def told(websocket: aiohttp.ClientWebSocketResponse[bool]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(await websocket.receive_bytes(timeout=30))
    return found


async def status(url: str, **headers: str) -> int:
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as reply:
        return reply.status


async def handshake(served: Served, path: str = "ws", **headers: str) -> int:
    """The status of an attempt to open the websocket; 101 if it opens."""
    async with aiohttp.ClientSession() as session:
        try:
            async with session.ws_connect(served.url + path, headers=headers):
                return 101
        except aiohttp.WSServerHandshakeError as error:
            return error.status


async def test_an_app_runs_for_as_long_as_its_page_is_open(served: Served) -> None:
    async with aiohttp.ClientSession() as session:
        async with served.websocket(session) as websocket:
            app = await told(websocket)
            assert (app["COLUMNS"], app["ROWS"], app["TERM"]) == ("100", "30", "xterm-256color")
            assert Path(app["SAPO_EDGE_HOME"]).is_absolute() and app["SAPO_EDGE_HOME"].endswith("home")
            await websocket.send_json(["stdin", "é"])
            assert await websocket.receive_bytes(timeout=30) == "typed é".encode()
            assert [process.pid for process in served.apps] == [app["pid"]]
        assert gone(app["pid"])


@fails_without(
    "cli/web/server.py",
    'first != "download" and not hmac.compare_digest(os.fsencode(first), self.token.encode())',
    "False",
)
@pytest.mark.parametrize("token", ["", "wrong", "%ff%00", "static", "ws", "{}x", "{:.20}"])
async def test_without_the_token_there_is_nothing(served: Served, token: str) -> None:
    right = served.url.split("/")[-2]
    for path in ("", "ws", "static/textual.js"):
        url = f"{served.origin}/{token.format(right)}/{path}"
        async with aiohttp.ClientSession() as session, session.get(url, headers={"Origin": served.origin}) as reply:
            text = await reply.text()
            assert reply.status == 403 and "sapo web" in text and right not in text
    assert len(right) >= 43


@pytest.mark.parametrize("host", [
    "evil.example", "127.0.0.1.evil.example", "evil.example:127", "127.0.0.1:80@evil.example", "[::1]", "", "127.1",
])  # fmt: skip
async def test_a_name_that_was_made_to_point_here_is_turned_away(served: Served, host: str) -> None:
    assert await status(served.url, Host=host) == 403
    assert await handshake(served, Host=host, Origin=f"http://{host}") == 403
    assert await status(served.url + "static/textual.js", Host=host) == 403
    assert await status(served.origin + "/download/x", Host=host) == 403


async def test_the_far_end_of_a_tunnel_may_have_another_port(served: Served) -> None:
    headers = {"Host": "localhost:9999", "Origin": "http://localhost:9999"}
    assert await status(served.url, **headers) == 200
    assert await handshake(served, **headers) == 101
    async with aiohttp.ClientSession() as session, session.get(served.url, headers=headers) as reply:
        assert 'data-session-websocket-url="ws://localhost:9999/' in await reply.text()
        assert "connect-src 'self' ws://localhost:9999;" in reply.headers["Content-Security-Policy"]


@fails_without("cli/web/server.py", 'if request.headers.get("Origin", f"http://{host}") != f"http://{host}":')
@fails_without("cli/web/server.py", 'if "Origin" not in request.headers:')
async def test_another_page_is_turned_away_even_with_the_token(served: Served) -> None:
    host = urlsplit(served.url).netloc
    others = ("https://evil.example", "null", "http://127.0.0.1:1", f"https://{host}", f"http://{host}.evil.example")
    for origin in others:
        assert await handshake(served, Origin=origin) == 403
        assert await status(served.url, Origin=origin) == 403
        assert await status(served.url + "static/xterm.css", Origin=origin) == 403
    assert await handshake(served) == 403  # A browser always says where it comes from.
    assert await status(served.url) == 200


@fails_without("cli/web/server.py", "script-src 'self' 'nonce-{nonce}';", "script-src 'self' 'unsafe-inline';")
@fails_without("cli/web/server.py", "nonce = secrets.token_urlsafe(16)", 'nonce = 22 * "x"')
@fails_without("cli/web/server.py", "form-action 'none'; ")
@fails_without("cli/web/server.py", "base-uri 'none'; ")
@fails_without(
    "cli/web/server.py",
    'min(max(to_int(request.query.get("fontsize", ""), 15), 8), 40)',
    'request.query.get("fontsize", "15")',
)
@fails_without("cli/web/server.py", '    headers["X-Content-Type-Options"] = "nosniff"\n')
@fails_without("cli/web/server.py", '    headers["Cross-Origin-Resource-Policy"] = "same-origin"\n')
async def test_the_page_names_no_other_host_and_may_load_from_none(served: Served) -> None:
    async with aiohttp.ClientSession() as session, session.get(served.url) as reply:
        text, headers = await reply.text(), reply.headers
        assert re.findall(r"https?://", text) == []
        policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
        scripts = policy.pop("script-src")
        assert re.fullmatch(r"'self' 'nonce-[\w-]{22}'", scripts)
        nothing = ("default-src", "base-uri", "form-action", "frame-ancestors")
        assert {policy.pop(name) for name in nothing} == {"'none'"}
        assert not [source for source in policy.values() if not source.startswith("'self'") or "*" in source]
        assert (headers["Referrer-Policy"], headers["Cache-Control"]) == ("no-referrer", "no-store")
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cross-Origin-Resource-Policy"] == headers["Cross-Origin-Opener-Policy"] == "same-origin"
        async with session.get(served.url, params={"fontsize": '"><script>'}) as other:
            assert scripts not in other.headers["Content-Security-Policy"], "each page has a secret of its own"
            assert '"><script>' not in await other.text()
        for name in ASSETS:
            assert f"static/{name}" in text and await status(f"{served.url}static/{name}") == 200
    for name in ("nothing.js", "..%2fapp_service.py", "%2e%2e/%2e%2e/server.py", ""):
        assert await status(f"{served.url}static/{name}") in (403, 404)


async def test_only_loopback_is_listened_on(served: Served) -> None:
    sockets = psutil.Process(served.process.pid).net_connections("inet")
    assert {item.laddr.ip for item in sockets if item.status == psutil.CONN_LISTEN} == {"127.0.0.1"}


@fails_without("cli/web/server.py", "if len(self._sessions) >= MAX_SESSIONS:")
async def test_a_few_pages_at_a_time(served: Served) -> None:
    # Of other tests.
    assert all(gone(app.pid) for app in served.apps)
    async with aiohttp.ClientSession() as session:
        open_now = [await served.websocket(session) for _ in range(MAX_SESSIONS)]
        pids = {(await told(websocket))["pid"] for websocket in open_now}
        assert len(pids) == MAX_SESSIONS
        assert await status(served.url) == 503
        assert await handshake(served, Origin=served.origin) == 503
        for websocket in open_now:
            await websocket.close()
    assert all(map(gone, pids))
    for _ in range(50):
        if await status(served.url) == 200:
            break
        await asyncio.sleep(0.1)
    assert await handshake(served, Origin=served.origin) == 101


@fails_without("cli/web/server.py", ", max_msg_size=MAX_MESSAGE_BYTES", ", max_msg_size=0")
async def test_what_no_page_sends_ends_that_session_alone(served: Served) -> None:
    async with aiohttp.ClientSession() as session:
        for sent in ("not json", "{}", "[]", '["stdin"]', '["resize", 7]', "x" * (1 << 21)):
            async with served.websocket(session) as websocket:
                app = await told(websocket)
                await websocket.send_str(sent)
                reply = await websocket.receive(timeout=30)
                assert reply.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)
                if len(sent) > MAX_MESSAGE_BYTES:
                    assert reply.data == aiohttp.WSCloseCode.MESSAGE_TOO_BIG, "it is not even read"
            assert gone(app["pid"])
    place = urlsplit(served.url)
    for line in (b"\x16\x03\x01 noise", b"OPTIONS * HTTP/1.1", b"GET http://x/ HTTP/1.1", b"CONNECT x:1 HTTP/1.1"):
        with socket.create_connection((place.hostname, place.port), timeout=30) as raw:
            raw.sendall(line + f"\r\nHost: {place.netloc}\r\n\r\n".encode())
            assert re.match(rb"HTTP/1.. 4", raw.recv(1000))
    assert "Traceback" not in served.errors.read_text()
    assert await status(served.url) == 200


async def test_the_end_leaves_the_node_and_nothing_else(tmp_path: Path) -> None:
    with serving(tmp_path, [sys.executable, "-c", STUB, "node"]) as served:
        async with aiohttp.ClientSession() as session, served.websocket(session) as websocket:
            app, started = await told(websocket), await told(websocket)
            code = await asyncio.to_thread(served.end, signal.SIGTERM)
        assert code == 0 and "the node keeps running" in served.errors.read_text()
        # It was asked to quit and slept on.
        assert gone(app["pid"]) and gone(started["chat"])
        node = psutil.Process(started["node"])
        assert node.is_running()
        node.kill()


async def test_an_app_that_fails_is_told_and_its_page_closed(tmp_path: Path) -> None:
    with serving(tmp_path, [sys.executable, "-c", STUB, "crash"]) as served:
        async with aiohttp.ClientSession() as session, served.websocket(session) as websocket:
            assert (await websocket.receive(timeout=30)).type == aiohttp.WSMsgType.CLOSE
        assert served.end(signal.SIGINT) == 0
    assert "it broke \\x1b[31mred" in served.errors.read_text()


async def test_an_app_has_the_size_of_its_page_hands_out_files_that_run_nothing_and_outlives_no_server(
    tmp_path: Path,
) -> None:
    with serving(tmp_path, [sys.executable, "-c", APP]) as served:
        async with aiohttp.ClientSession() as session, served.websocket(session) as websocket:
            # While the app starts.
            await websocket.send_json(["resize", {"width": 77, "height": 20}])
            drawn = b""
            with contextlib.suppress(TimeoutError):
                while True:
                    drawn += await websocket.receive_bytes(timeout=30 if b"77 columns" not in drawn else 0.5)
            assert re.findall(rb"\d+ columns", drawn)[-1] == b"77 columns"
            await websocket.send_json(["stdin", "f"])
            while (message := await websocket.receive(timeout=30)).type != aiohttp.WSMsgType.TEXT:
                pass
            kind, key = message.json()
            assert kind == "deliver_file_start"
            async with session.get(f"{served.origin}/download/{key}") as reply:
                assert await reply.text() == "<script>alert(1)</script>"
                assert "sandbox" in reply.headers["Content-Security-Policy"]
                assert "attachment" in reply.headers["Content-Disposition"]
            assert await status(f"{served.origin}/download/{key}") == 404
            (app,) = served.apps
            served.end(signal.SIGKILL)
        assert gone(app.pid)


HIJACK = """
new Promise((tell) => {
    const socket = new WebSocket("%sws");
    socket.onopen = () => tell("open");
    socket.onerror = () => tell("refused");
})
"""
"""What becomes of another page's attempt."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ScriptedNode]:
    made = ScriptedNode(Paths.default(tmp_path / "home"))
    made.start()
    yield made
    made.stop()


@pytest.mark.slow
@pytest.mark.skipif(chromium() is None, reason="there is no Chromium here; Debian: apt-get install chromium")
async def test_the_app_is_drawn_and_heeds_keys_in_a_real_browser(tmp_path: Path, node: ScriptedNode) -> None:
    command = [sys.executable, "-m", "sapo_edge", "web", "--home", str(tmp_path / "home"), "--port", "0"]
    with started(tmp_path, command) as served:
        async with browser(tmp_path) as page:
            await page.before_load(SCREEN)
            await page.size(1000, 700)
            await page.open(served.url)
            await page.until("text().includes('round 40') && text().includes('Dashboard')")
            dashboard = await page.picture()
            await page.press("5")
            await page.until("text().includes('State the final answer to: 17 + 25 =')")
            answer = await page.picture()
            # Sizes of PNG files: an empty page of this size has some 4 kB.
            assert min(len(dashboard), len(answer)) > 10_000 and dashboard != answer
            assert await page.value("[...document.fonts].every(font => font.status === 'loaded')")
            (app,) = served.apps
            await page.open("about:blank")
            assert gone(app.pid)
            assert {urlsplit(url).netloc for url in page.requests} == {urlsplit(served.url).netloc}
            assert len(page.requests) > len(ASSETS) and page.complaints == []
            # A page of somebody's, and be it that it knows the token.
            assert await page.value(HIJACK % served.url.replace("http:", "ws:")) == "refused"
        assert served.end() == 0 and "Traceback" not in served.errors.read_text()
    assert node.server is not None and node.asked == []
