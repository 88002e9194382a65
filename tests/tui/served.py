"""`sapo web` in a process of its own, and apps for it to show that need no terminal app."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import psutil

from tests.waiting import wait_until

TIMEOUT = 30
_SERVE = """
import sys
from pathlib import Path
from sapo_edge.cli.web import serve
home, *serve.COMMAND = sys.argv[1:]
serve.web(0, Path(home))
"""
STUB = """
import json, os, subprocess, sys, time

def send(kind, data):
    os.write(1, kind + len(data).to_bytes(4, "big") + data)

how = sys.argv[1]
if how == "crash":
    sys.exit("it broke \\x1b[31mred")
os.write(1, b"__GANGLION__\\n")
names = ("COLUMNS", "ROWS", "TERM", "SAPO_EDGE_HOME")
send(b"D", json.dumps({name: os.environ.get(name) for name in names} | {"pid": os.getpid()}).encode())
if how == "node":
    # As the app starts a node, and the process that it chats with.
    quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    sleeps = [sys.executable, "-c", "import time; time.sleep(60)"]
    node = subprocess.Popen(sleeps, start_new_session=True, **quiet)
    chat = subprocess.Popen(sleeps, **quiet)
    send(b"D", json.dumps({"node": node.pid, "chat": chat.pid}).encode())
while head := sys.stdin.buffer.read(5):
    data = sys.stdin.buffer.read(int.from_bytes(head[1:], "big"))
    if head[:1] == b"D":
        send(b"D", b"typed " + data)
    elif json.loads(data)["type"] == "quit":
        if how != "tell":
            time.sleep(60)
        send(b"M", json.dumps({"type": "exit"}).encode())
        break
"""
"""Talks like an app, but is no Textual one and starts at once. How: "tell", "crash" or "node", which never quits."""
APP = """
import io
from textual.app import App
from textual.widgets import Label

class Small(App):
    def compose(self):
        yield Label()

    def on_resize(self, event):
        self.query_one(Label).update(f"{event.size.width} columns")

    def key_f(self):
        self.deliver_text(io.StringIO("<script>alert(1)</script>"), save_filename="x.html", mime_type="text/html")

Small().run()
"""
"""A Textual app that shows its width; f hands out a file."""
SCREEN = """
Object.defineProperty(Object.prototype, "fitAddon", {configurable: true, set(addon) {
    Object.defineProperty(this, "fitAddon", {value: addon});
    window.shown = this;
}});
window.text = () => {
    if (!window.shown) return "";
    const terminal = shown.terminal, lines = terminal.buffer.active;
    return Array.from({length: terminal.rows}, (_, row) => lines.getLine(row).translateToString(true)).join("\\n");
};
"""
"""Gets hold of the page's terminal, which keeps what it shows: the canvas has no text that could be read."""


@dataclass(frozen=True, slots=True)
class Served:
    """A server that runs, with the address that it printed and the file of its stderr."""

    url: str
    process: subprocess.Popen[str]
    errors: Path

    @property
    def origin(self) -> str:
        return self.url.rsplit("/", 2)[0]

    @property
    def apps(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def websocket(
        self, session: aiohttp.ClientSession, path: str = "ws?width=100&height=30", **headers: str
    ) -> aiohttp.client._WSRequestContextManager:
        """Connect as the page does."""
        return session.ws_connect(self.url + path, headers={"Origin": self.origin} | headers)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(TIMEOUT)


@contextlib.contextmanager
def serving(directory: Path, command: Sequence[str], home: Path | None = None) -> Iterator[Served]:
    arguments = [sys.executable, "-c", _SERVE, str(home or directory / "home"), *command]
    with started(directory, arguments, network="swarm" if home else "solo") as served:
        yield served


@contextlib.contextmanager
def started(directory: Path, arguments: Sequence[str], network: str = "solo") -> Iterator[Served]:
    """A server started like this, and ended if it hasn't been."""
    errors = directory / "serve.err"
    environment = os.environ | {"SAPO_EDGE_NETWORK": network}
    with (
        errors.open("w") as stderr,
        subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment) as process,
    ):
        assert process.stdout is not None
        try:
            yield Served(process.stdout.readline().strip(), process, errors)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(TIMEOUT)


def gone(pid: int) -> bool:
    """Wait until a process has ended."""
    return wait_until(lambda: not psutil.pid_exists(pid))
