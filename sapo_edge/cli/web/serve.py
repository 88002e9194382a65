"""`sapo web`: the terminal app in a browser on this machine."""

from __future__ import annotations

import contextlib
import io
import socket
from typing import TYPE_CHECKING, Annotated

import typer

from sapo_edge.care.signals import ending_event
from sapo_edge.children import python_command
from sapo_edge.cli.options import Home
from sapo_edge.errors import SapoError
from sapo_edge.plain import narrate
from sapo_edge.state.paths import HOME_VARIABLE, Paths

if TYPE_CHECKING:
    from sapo_edge.cli.web.server import PageServer

DEFAULT_PORT = 8042
HOST = "127.0.0.1"
"""Loopback only: whoever opens the page acts as the node's owner, and nothing is encrypted."""
COMMAND = python_command("-m", "sapo_edge.cli.web.app")


def web(
    port: Annotated[int, typer.Option(min=0, max=65535, help="TCP port on 127.0.0.1; 0 for any.")] = DEFAULT_PORT,
    home: Home = None,
) -> None:
    """Show the terminal app in a browser on this machine; print the address to open. Ctrl-C ends it, not the node."""
    try:
        from sapo_edge.cli.web.server import PageServer
    except ModuleNotFoundError as error:
        from sapo_edge.installing import how_to_install_extra

        problem = "the app in a browser needs textual-serve, which is not installed"
        raise SapoError(problem, how_to_install_extra("web")) from error
    import asyncio

    paths = Paths.default(home)
    paths.check()
    environment = {} if home is None else {HOME_VARIABLE: str(paths.home)}
    with _listen(port) as listening:
        server = PageServer(COMMAND, environment)
        bound = listening.getsockname()[1]
        print(f"http://{HOST}:{bound}/{server.token}/", flush=True)
        narrate(
            "open this address in a browser on this machine; whoever has it controls the node. Ctrl-C ends it\n"
            f"from another machine: ssh -L {bound}:{HOST}:{bound} THIS-MACHINE, then open the same address there"
        )
        with contextlib.redirect_stdout(_Narration()):
            asyncio.run(_serve(server, listening))


def _listen(port: int) -> socket.socket:
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        problem = f"can't listen on port {port} of {HOST} ({error.strerror})"
        raise SapoError(problem, "choose another one with --port") from error


async def _serve(server: PageServer, listening: socket.socket) -> None:
    from aiohttp import web

    ended = ending_event()
    # Without an access log: it would contain the secret address.
    runner = web.AppRunner(await server.make_app(), access_log=None, shutdown_timeout=10.0)
    await runner.setup()
    try:
        await web.SockSite(runner, listening).start()
        await ended.wait()
        narrate("closing the pages; the node keeps running")
    finally:
        await runner.cleanup()


class _Narration(io.TextIOBase):
    """Narrates what textual-serve prints: errors of apps may quote anything."""

    def write(self, text: str) -> int:
        if text.strip():
            narrate(text.rstrip())
        return len(text)
