"""`sapo relay`: a bootstrap and relay node for swarms, without a model."""

from __future__ import annotations

import os
from json import dumps as to_json
from typing import Annotated

import typer

from sapo_edge.children import python_command
from sapo_edge.cli import relaying
from sapo_edge.cli.options import Home, Json
from sapo_edge.cli.relaying import DEFAULT_MEMBERS, DEFAULT_PORT, check_names


def relay(
    port: Annotated[int, typer.Option(min=0, max=65535, help="TCP port to listen on; 0 for any.")] = DEFAULT_PORT,
    announce: Annotated[
        list[str] | None,
        typer.Option("--announce", metavar="HOST", help="A host name or IP address of this machine; repeatable."),
    ] = None,
    loopback: Annotated[bool, typer.Option("--loopback", help="Serve only programs on this machine.")] = False,
    upload: Annotated[int, typer.Option(min=0, help="Most bytes a second to send; 0: no limit.")] = 0,
    download: Annotated[int, typer.Option(min=0, help="Most bytes a second to receive; 0: no limit.")] = 0,
    members: Annotated[int, typer.Option(min=1, max=100_000, help="Most connected nodes.")] = DEFAULT_MEMBERS,
    per_address: Annotated[
        int,
        typer.Option(
            "--members-per-address", min=0, help="Most of one IPv4 address or IPv6 /64; 0: half of --members."
        ),
    ] = 0,
    public: Annotated[
        bool, typer.Option("--public", help="Volunteer: strangers find the relay in BitTorrent's public table.")
    ] = False,
    home: Home = None,
    json: Json = False,
) -> None:
    """Run a meeting point and relay for swarms, without a model; for a joined private swarm, for that one only."""
    check_names(tuple(announce or ()))
    options = {
        "home": home and str(home), "port": port, "listen": "loopback" if loopback else "all",
        "announce": announce or [], "upload": upload, "download": download, "members": members,
        "members_per_address": per_address, "public": public, "as_json": json,
    }  # fmt: skip
    command = python_command("-m", relaying.__name__, to_json(options))
    os.execv(command[0], command)
