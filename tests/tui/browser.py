"""A headless Chromium, controlled with the DevTools protocol, so no driver has to match its version.

async with browser(tmp_path) as page:
    await page.open("http://127.0.0.1:8042/...")
    await page.press("2")
    assert page.requests and not page.complaints
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

PATIENCE = 30.0
"""Time limit in seconds for any wait; a browser is slow on two busy cores."""
MAX_REPLY = 64 << 20
"""Most bytes of a reply, such as a screenshot."""


def chromium() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


class Page:
    """One tab.

    Attributes:
        requests: requested addresses, including websockets.
        complaints: errors on its console, and uncaught exceptions.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._socket = socket
        self._numbers = itertools.count(1)
        self._replies: dict[int, asyncio.Future[dict[str, Any]]] = {}

    async def send(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._replies[number] = reply = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        return await asyncio.wait_for(reply, PATIENCE)

    async def open(self, address: str) -> None:
        reply = await self.send("Page.navigate", url=address)
        assert "errorText" not in reply, reply

    async def before_load(self, script: str) -> None:
        """Run a script in each page opened later, before the page's own scripts."""
        await self.send("Page.addScriptToEvaluateOnNewDocument", source=script)

    async def value(self, expression: str) -> Any:
        """The value of a JavaScript expression, or of its promise."""
        reply = await self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "result" in reply and "exceptionDetails" not in reply, reply
        return reply["result"].get("value")

    async def until(self, expression: str, seconds: float = PATIENCE) -> Any:
        """Wait until an expression is true, and return its value."""
        deadline = time.monotonic() + seconds
        while not (value := await self.value(expression)):
            assert time.monotonic() < deadline, f"never true: {expression}; {self.complaints}"
            await asyncio.sleep(0.1)
        return value

    async def press(self, key: str) -> None:
        """Press and release a key that writes a character."""
        code = ord(key.upper())
        for kind, text in (("keyDown", key), ("keyUp", "")):
            await self.send("Input.dispatchKeyEvent", type=kind, key=key, text=text, windowsVirtualKeyCode=code)

    async def size(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 0, "mobile": False}
        await self.send("Emulation.setDeviceMetricsOverride", **metrics)

    async def picture(self) -> bytes:
        return base64.b64decode((await self.send("Page.captureScreenshot", format="png"))["data"])

    async def listen(self) -> None:
        """Take in what the browser tells, until it ends."""
        async for message in self._socket:
            told = message.json()
            params = told.get("params", {})
            match told.get("method"):
                case None:
                    if not (reply := self._replies.pop(told["id"])).done():
                        reply.set_result(told.get("result", told))
                case "Network.requestWillBeSent":
                    self.requests.append(params["request"]["url"])
                case "Network.webSocketCreated":
                    self.requests.append(params["url"])
                case "Log.entryAdded" if params["entry"]["level"] == "error":
                    self.complaints.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
                case "Runtime.exceptionThrown":
                    self.complaints.append(str(params["exceptionDetails"].get("exception", {}).get("description")))


@contextlib.asynccontextmanager
async def browser(directory: Path, scale: float = 1) -> AsyncIterator[Page]:
    """A browser with one empty tab.

    Args:
        directory: for its profile.
        scale: pixels of its pictures for each CSS pixel. Emulated later on, it would mislead xterm.js.
    """
    path = chromium()
    assert path is not None
    profile = directory / "chromium"
    options = [
        "--headless=new", "--remote-debugging-port=0", f"--user-data-dir={profile}", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--disable-gpu",
        # Whatever is asked of another host fails at once, and is on the list of requests.
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--force-color-profile=srgb",
        # Its sandbox starts neither for root nor in most containers, and it sees our own pages alone.
        "--no-sandbox", f"--force-device-scale-factor={scale:g}",
    ]  # fmt: skip
    nowhere = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(path, *options, "about:blank", stdout=nowhere, stderr=nowhere)
    try:
        port = await _port(profile / "DevToolsActivePort", process)
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as reply:
                (tab,) = [item for item in await reply.json() if item["type"] == "page"]
            async with session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=MAX_REPLY) as socket:
                page = Page(socket)
                listening = asyncio.create_task(page.listen())
                for domain in ("Page", "Network", "Runtime", "Log"):
                    await page.send(f"{domain}.enable")
                try:
                    yield page
                finally:
                    await page.send("Browser.close")
                    listening.cancel()
        await asyncio.wait_for(process.wait(), PATIENCE)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _port(file: Path, process: asyncio.subprocess.Process) -> int:
    end = time.monotonic() + PATIENCE
    while True:
        assert process.returncode is None and time.monotonic() < end, "the browser does not start"
        with contextlib.suppress(FileNotFoundError, IndexError):
            return int(file.read_text().splitlines()[0])
        await asyncio.sleep(0.05)
