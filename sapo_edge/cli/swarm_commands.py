"""The commands `sapo swarm`, `sapo identity`, `sapo answer` and `sapo relay`; what they do loads when called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sapo_edge.cli.options import Home, Json

swarm_app = typer.Typer(no_args_is_help=True, help="Create, join and leave swarms; invite others.")
identity_app = typer.Typer(no_args_is_help=True, help="Show, back up and restore the node's key.")

Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.add_typer(swarm_app, name="swarm")
    app.add_typer(identity_app, name="identity")
    app.command("answer")(answer)
    app.command("relay")(relay)


@swarm_app.command("create")
def swarm_create(
    manifest: Annotated[
        str | None, typer.Argument(help="What to train on: a shipped name or a TOML file; without it, the setting.")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Only holders of its invite can take part.")] = False,
    bootstrap: Annotated[
        list[str] | None, typer.Option("--bootstrap", metavar="ADDR", help="A peer or relay to dial first; repeatable.")
    ] = None,
    home: Home = None,
    json: Json = False,
) -> None:
    """Make the swarm of a manifest, and be in it."""
    from sapo_edge.cli.swarm import run_create
    from sapo_edge.cli.workspace import open_workspace

    workspace = open_workspace(home, {"manifest": manifest})
    run_create(workspace, private=private, bootstrap=bootstrap or [], as_json=json)


@swarm_app.command("invite")
def swarm_invite(home: Home = None, json: Json = False) -> None:
    """Print the line by which others join; with the running node's addresses, if one runs."""
    from sapo_edge.cli.swarm import run_invite
    from sapo_edge.cli.workspace import open_workspace

    run_invite(open_workspace(home), as_json=json)


@swarm_app.command("join")
def swarm_join(
    invite: Annotated[
        str | None, typer.Argument(help="An invite, or the name of a known swarm; without it, asked for.")
    ] = None,
    home: Home = None,
    json: Json = False,
) -> None:
    """Be in the swarm of an invite."""
    from sapo_edge.cli.swarm import run_join
    from sapo_edge.cli.workspace import open_workspace

    run_join(open_workspace(home), invite, as_json=json)


@swarm_app.command("leave")
def swarm_leave(home: Home = None, json: Json = False) -> None:
    """Be in no swarm, and work alone."""
    from sapo_edge.cli.swarm import run_leave
    from sapo_edge.cli.workspace import open_workspace

    run_leave(open_workspace(home), as_json=json)


@swarm_app.command("show")
def swarm_show(home: Home = None, json: Json = False) -> None:
    """Show the swarm that this node is in, and others that it knows."""
    from sapo_edge.cli.swarm import run_show
    from sapo_edge.cli.workspace import open_workspace

    run_show(open_workspace(home), as_json=json)


@identity_app.command("show")
def identity_show(home: Home = None, json: Json = False) -> None:
    """Show who this node is; nothing of it is secret."""
    from sapo_edge.cli.identity import run_show

    run_show(home, as_json=json)


@identity_app.command("backup")
def identity_backup(
    file: Annotated[Path, typer.Argument(help="Where to write.")], force: Force = False, home: Home = None
) -> None:
    """Write the key into a file, encrypted with a passphrase (asked for, or SAPO_EDGE_PASSPHRASE)."""
    from sapo_edge.cli.identity import run_backup

    run_backup(home, file, force=force)


@identity_app.command("restore")
def identity_restore(
    file: Annotated[Path, typer.Argument(help="What `sapo identity backup` wrote.")],
    force: Force = False,
    home: Home = None,
    json: Json = False,
) -> None:
    """Take the key of a backup."""
    from sapo_edge.cli.identity import run_restore

    run_restore(home, file, force=force, as_json=json)


def answer(home: Home = None, json: Json = False) -> None:
    """Answer a question yourself, and share it like the model's answers."""
    from sapo_edge.cli.answer import run_answer
    from sapo_edge.cli.workspace import open_workspace

    raise typer.Exit(run_answer(open_workspace(home), as_json=json))


def relay(
    port: Annotated[int, typer.Option(min=0, max=65535, help="TCP port to listen on; 0 for any.")] = 4001,
    announce: Annotated[
        list[str] | None,
        typer.Option("--announce", metavar="HOST", help="A host name or IP address of this machine."),
    ] = None,
    loopback: Annotated[bool, typer.Option("--loopback", help="Serve programs on this machine alone.")] = False,
    upload: Annotated[int, typer.Option(min=0, help="Most bytes a second to send; 0: no limit.")] = 0,
    download: Annotated[int, typer.Option(min=0, help="Most bytes a second to receive; 0: no limit.")] = 0,
    home: Home = None,
    json: Json = False,
) -> None:
    """Run a meeting point and relay for a swarm, without a model; of a private swarm that was joined, for it alone."""
    from sapo_edge.cli.relay import relay as run_relay
    from sapo_edge.state.paths import Paths
    from sapo_edge.swarm.joining.membership import Membership

    current = Membership(Paths.default(home).state).current
    code = run_relay(
        home,
        port=port,
        listen="loopback" if loopback else "all",
        announce=tuple(announce or ()),
        psk=None if current is None else current.key,
        upload=upload,
        download=download,
        as_json=json,
    )
    raise typer.Exit(code)
