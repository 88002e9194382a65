"""`sapo api`: what was trained here, for programs that speak OpenAI's protocol."""

from __future__ import annotations

import ipaddress
import socket
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from sapo_edge.care.signals import ending_event
from sapo_edge.cli.options import Backend, Home, Model, Set, Threads
from sapo_edge.cli.workspace import open_workspace
from sapo_edge.errors import ConfigError, SapoError
from sapo_edge.plain import narrate, printable

if TYPE_CHECKING:
    from sapo_edge.cli.api.models import Catalogue
    from sapo_edge.cli.api.server import ApiServer
    from sapo_edge.library.workspace import Workspace

DEFAULT_PORT = 8043
LOOPBACK = "127.0.0.1"


def api(
    port: Annotated[int, typer.Option(min=0, max=65535, help="TCP port; 0 for any.")] = DEFAULT_PORT,
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="Of this machine to listen on; 0.0.0.0 for all.")
    ] = LOOPBACK,
    show_token: Annotated[bool, typer.Option("--show-token", help="Print the token and end.")] = False,
    new_token: Annotated[
        bool, typer.Option("--new-token", help="Make a new token, print it and end; the old one is worth nothing.")
    ] = False,
    model: Model = None, backend: Backend = None, threads: Threads = None, settings: Set = None, home: Home = None,
) -> None:  # fmt: skip
    """Serve base model and trained adapters to programs that speak OpenAI's protocol; print address and token."""
    from sapo_edge.state.paths import Paths

    paths = Paths.default(home)
    if show_token or new_token:
        from sapo_edge.cli.api import token

        print(token.make(paths.api_token) if new_token else token.read_or_make(paths.api_token))
        return
    try:
        import aiohttp  # noqa: F401
        import llguidance  # noqa: F401
    except ModuleNotFoundError as error:
        from sapo_edge.installing import how_to_install_extra

        problem = f"`sapo api` needs {error.name}, which is not installed"
        raise SapoError(problem, how_to_install_extra("api")) from error
    paths.check()
    with listen(host, port) as listening:
        serve(open_workspace(home, {"model": model, "backend": backend, "threads": threads}, settings), listening)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens on an address of this machine."""
    try:
        address = ipaddress.ip_address(LOOPBACK if host == "localhost" else host)
    except ValueError as error:
        raise ConfigError(f"--host {host} is no address", "give one of this machine's, such as 127.0.0.1") from error
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    try:
        return socket.create_server((str(address), port), family=family, backlog=256)
    except OSError as error:
        problem = f"can't listen on port {port} of {address} ({error.strerror})"
        raise SapoError(problem, "choose another one with --port or --host") from error


def serve(workspace: Workspace, listening: socket.socket) -> None:
    """Serve in the foreground until Ctrl-C or SIGTERM."""
    import asyncio

    from sapo_edge.backends.model.source import open_source
    from sapo_edge.cli.api import token
    from sapo_edge.cli.api.engine import Engine
    from sapo_edge.cli.api.models import Catalogue
    from sapo_edge.cli.api.server import ApiServer

    base = open_source(workspace.model, mlx=True).model_name
    address, port = listening.getsockname()[:2]
    is_local = ipaddress.ip_address(address).is_loopback
    narrate(f"loading {printable(base)}")
    with workspace.answering_policy("api") as policy, closing(Engine(workspace, policy, narrate)) as engine:
        catalogue, file = Catalogue(workspace, base, policy.model_digest, narrate), workspace.paths.api_token
        show(address, port, token.read_or_make(file), catalogue)
        server = ApiServer(engine, catalogue, partial(token.read, file), is_local, narrate)
        asyncio.run(_until_signal(server, listening))


async def _until_signal(server: ApiServer, listening: socket.socket) -> None:
    ended = ending_event()
    async with server.listening(listening):
        await ended.wait()
        narrate("ending")


def show(address: str, port: int, token: str, catalogue: Catalogue) -> None:
    """Print address and token on stdout, as variables that OpenAI's own clients read; the rest is narration."""
    parsed = ipaddress.ip_address(address)
    # A socket of IPv6 takes none of IPv4.
    name = {"0.0.0.0": LOOPBACK, "::": "::1"}.get(address, address)
    name = f"[{name}]" if parsed.version == 6 else name
    url = f"http://{name}:{port}/v1"
    print(f"OPENAI_BASE_URL={url}\nOPENAI_API_KEY={token}", flush=True)
    models = catalogue.models()
    narrate("models:")
    for model in models.values():
        narrate(f"  {model.name:24} {model.about}")
    if not parsed.is_loopback:
        narrate(
            f"warning: whoever reaches port {port} of this machine and has the token can ask. Nothing is encrypted: "
            "token and texts can be read on the way. In a network that is not yours, leave --host out and use an SSH "
            "tunnel"
        )
    # The current run's adapter, or the base model.
    narrate(usage(url, list(models)[:2][-1]))


def usage(url: str, model: str) -> str:
    """What to paste where."""
    return f"""use it with
  openai          with both variables set: OpenAI().chat.completions.create(model="{model}", messages=[...])
  llm             in extra-openai-models.yaml beside `llm logs path`, then: llm keys set sapo
                  - {{model_id: sapo, model_name: {model}, api_base: "{url}", api_key_name: sapo}}
  Open WebUI      Admin Settings, Connections, OpenAI API: URL {url}, key as above. From a container:
                  --host with an address that it reaches, and http://host.docker.internal in the URL
  Home Assistant  an integration for OpenAI-compatible servers: URL {url}, model {model},
                  without control of devices (no tools); from another machine, --host
Ctrl-C ends it; `sapo api --show-token` prints the token, --new-token makes another one"""
