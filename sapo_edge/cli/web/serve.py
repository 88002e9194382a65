"""`sapo serve`: the terminal app in a browser on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sapo_edge.cli.output import narrate
from sapo_edge.errors import ExitCode, SapoError
from sapo_edge.plain import printable
from sapo_edge.state.paths import HOME_VARIABLE, Paths

if TYPE_CHECKING:
    from sapo_edge.cli.web.server import PageServer

DEFAULT_PORT = 8042
HOST = "127.0.0.1"
"""Nothing but loopback: whoever opens the page acts as the node's owner, and nothing here is encrypted."""
COMMAND = (sys.executable, "-P", "-m", "sapo_edge.cli.web.app")
"""The terminal app. Python does not look into the current directory for it."""


def run_serve(home: Path | None, *, port: int = DEFAULT_PORT, command: Sequence[str] = COMMAND) -> ExitCode:
    """Serve the page in the foreground until Ctrl-C or SIGTERM. Its address is printed on stdout.

    Args:
        home: as of every command.
        port: TCP port; 0 for any.
        command: the app to serve.

    Returns:
        DONE.

    Raises:
        SapoError: if textual-serve is not installed, or the port can't be listened on.
    """
    try:
        from sapo_edge.cli.web.server import PageServer
    except ModuleNotFoundError as error:
        raise SapoError(
            f"the app in a browser needs textual-serve ({error})",
            "install it with: pip install 'sapo-edge[serve]', or with pipx: pipx inject sapo-edge textual-serve",
        ) from error
    Paths.default(home).create()
    environment = {} if home is None else {HOME_VARIABLE: os.path.abspath(home.expanduser())}
    with _listen(port) as listening:
        server = PageServer(command, environment)
        _tell(server.token, listening.getsockname()[1])
        with contextlib.redirect_stdout(_Narration()):
            asyncio.run(_serve(server, listening))
    return ExitCode.DONE


def _listen(port: int) -> socket.socket:
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        raise SapoError(
            f"port {port} of {HOST} can't be listened on ({error.strerror})", "choose another one with --port"
        ) from error


async def _serve(server: PageServer, listening: socket.socket) -> None:
    from aiohttp import web

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    # Without a log of requests, which would hold the address.
    runner = web.AppRunner(await server.make_app(), access_log=None, shutdown_timeout=10.0)
    await runner.setup()
    try:
        await web.SockSite(runner, listening).start()
        await stop.wait()
        narrate("closing the pages; the node goes on")
    finally:
        await runner.cleanup()


def _tell(token: str, port: int) -> None:
    print(f"http://{HOST}:{port}/{token}/", flush=True)
    narrate(
        "open this address in a browser on this machine; whoever has it is the node's owner. Ctrl-C ends it\n"
        f"from another machine: ssh -L {port}:{HOST}:{port} THIS-MACHINE, and open the same address there"
    )


class _Narration(io.TextIOBase):
    """What textual-serve prints: errors of apps, which may quote anything."""

    def write(self, text: str) -> int:
        if text.strip():
            narrate(printable(text, lines=True).rstrip())
        return len(text)
