"""The commands that talk to a running node, with their options; what they do loads when called."""

from __future__ import annotations

from typing import Annotated

import typer

from sapo_edge.cli.options import Home, Json


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    for command in (status, peers, pause, resume, stop, logs, relay):
        app.command()(command)


def status(home: Home = None, json: Json = False) -> None:
    """Show what the running node does: rounds, rewards, swarm, traffic."""
    from sapo_edge.cli.control import run_status

    run_status(home, as_json=json)


def peers(home: Home = None, json: Json = False) -> None:
    """Show the peers of the running node."""
    from sapo_edge.cli.control import run_peers

    run_peers(home, as_json=json)


def pause(home: Home = None, json: Json = False) -> None:
    """Have the running node rest; it goes on receiving."""
    from sapo_edge.cli.control import run_pause

    run_pause(home, as_json=json)


def resume(home: Home = None, json: Json = False) -> None:
    """Have the running node go on."""
    from sapo_edge.cli.control import run_resume

    run_resume(home, as_json=json)


def stop(
    now: Annotated[bool, typer.Option("--now", help="At once; the round in progress is lost.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Come back when it has ended.")] = False,
    home: Home = None,
    json: Json = False,
) -> None:
    """Have the running node finish its round, save, and end."""
    from sapo_edge.cli.control import run_stop

    run_stop(home, now=now, wait=wait, as_json=json)


def logs(
    follow: Annotated[bool, typer.Option("--follow", help="Go on with what happens from now on.")] = False,
    level: Annotated[str, typer.Option("--level", help="Least level: debug, info, warning or error.")] = "info",
    lines: Annotated[int, typer.Option("--lines", min=0, max=1000, help="Past events to begin with.")] = 50,
    home: Home = None,
    json: Annotated[bool, typer.Option("--json", help="Print one event a line on stdout as JSON.")] = False,
) -> None:
    """Show what the running node did."""
    from sapo_edge.cli.control import run_logs

    run_logs(home, follow=follow, level=level, lines=lines, as_json=json)


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
    from sapo_edge.paths import Paths
    from sapo_edge.swarm.membership import Membership

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
