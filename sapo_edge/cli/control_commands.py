"""The commands that talk to a running node or show it, with their options; what they do loads when called."""

from __future__ import annotations

from typing import Annotated

import typer

from sapo_edge.cli.options import Home, Json


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    for command in (status, peers, pause, resume, stop, logs, serve):
        app.command()(command)


def status(home: Home = None, json: Json = False) -> None:
    """Show what the running node does: rounds, rewards, swarm, traffic."""
    from sapo_edge.cli.running import run_status

    run_status(home, as_json=json)


def peers(home: Home = None, json: Json = False) -> None:
    """Show the peers of the running node."""
    from sapo_edge.cli.running import run_peers

    run_peers(home, as_json=json)


def pause(home: Home = None, json: Json = False) -> None:
    """Have the running node rest; it goes on receiving."""
    from sapo_edge.cli.running import run_pause

    run_pause(home, as_json=json)


def resume(home: Home = None, json: Json = False) -> None:
    """Have the running node go on."""
    from sapo_edge.cli.running import run_resume

    run_resume(home, as_json=json)


def stop(
    now: Annotated[bool, typer.Option("--now", help="At once; the round in progress is lost.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Come back when it has ended.")] = False,
    home: Home = None,
    json: Json = False,
) -> None:
    """Have the running node finish its round, save, and end."""
    from sapo_edge.cli.running import run_stop

    run_stop(home, now=now, wait=wait, as_json=json)


def logs(
    follow: Annotated[bool, typer.Option("--follow", help="Go on with what happens from now on.")] = False,
    level: Annotated[str, typer.Option("--level", help="Least level: debug, info, warning or error.")] = "info",
    lines: Annotated[int, typer.Option("--lines", min=0, max=1000, help="Past events to begin with.")] = 50,
    home: Home = None,
    json: Annotated[bool, typer.Option("--json", help="Print one event a line on stdout as JSON.")] = False,
) -> None:
    """Show what the running node did."""
    from sapo_edge.cli.running import run_logs

    run_logs(home, follow=follow, level=level, lines=lines, as_json=json)


def serve(
    port: Annotated[int, typer.Option(min=0, max=65535, help="TCP port on 127.0.0.1; 0 for any.")] = 8042,
    home: Home = None,
) -> None:
    """Show the terminal app in a browser on this machine; print the address to open. Ctrl-C ends it, not the node."""
    from sapo_edge.cli.web.serve import run_serve

    raise typer.Exit(run_serve(home, port=port))
