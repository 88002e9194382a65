"""`sapo swarm`: create, find, invite, join, leave, show."""

from __future__ import annotations

import secrets
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sapo_edge.cli import codes
from sapo_edge.cli.finding import find
from sapo_edge.cli.options import Home, Json
from sapo_edge.cli.output import emit, print_json
from sapo_edge.cli.workspace import open_workspace
from sapo_edge.control.client import START_SECONDS, ControlClient, connect, node_runs
from sapo_edge.control.protocol import ControlError
from sapo_edge.errors import ConfigError, NoNodeError, StateError
from sapo_edge.library.joining import check_state, is_code, join
from sapo_edge.library.workspace import Workspace
from sapo_edge.plain import counted, line, narrate

if TYPE_CHECKING:
    from sapo_edge.state.paths import Paths
    from sapo_edge.swarm.joining.invite import Swarm
    from sapo_edge.tasks.manifest import Manifest

PASTED_CHARACTERS = 1000
"""Longest invite that is printed: some terminals accept at most 1024 characters when a line is pasted."""

app = typer.Typer(no_args_is_help=True, help="Create, find, join and leave swarms; invite others.")


@app.command()
def create(
    manifest: Annotated[
        str | None, typer.Argument(help="What to train on, as --manifest of `sapo run`; default: the one in use.")
    ] = None,
    private: Annotated[
        bool | None,
        typer.Option("--private/--open", help="Only those with its invite can join; default for own questions."),
    ] = None,
    bootstrap: Annotated[
        list[str] | None, typer.Option("--bootstrap", metavar="ADDR", help="A peer or relay to dial first; repeatable.")
    ] = None,
    home: Home = None,
    json: Json = False,
) -> None:
    """Create the swarm of a manifest and join it."""
    from sapo_edge.swarm.joining.invite import KEY_BYTES, Swarm, check_address

    workspace = open_workspace(home, {"manifest": manifest})
    tasks = workspace.require_manifest()
    if private is None:
        private = tasks.own_questions > 0
    key = secrets.token_bytes(KEY_BYTES) if private else None
    swarm = Swarm.of(tasks, tuple(check_address(address) for address in bootstrap or ()), key)
    check_state(workspace.paths, workspace.membership, swarm)
    workspace.paths.create()
    workspace.membership.keep_manifest(tasks.to_bytes(), swarm.manifest, tasks.store)
    _print_swarms(workspace, workspace.membership.join(swarm), as_json=json)
    for text in describe_questions(tasks, swarm):
        narrate(text)
    if not private and not bootstrap:
        narrate(
            "the open swarm of a manifest is the same everywhere: anybody can find it (`sapo swarm find`) and take part"
        )
    _print_next_step(workspace, "`sapo run` takes part; `sapo swarm invite` prints the invite for others")


app.command()(find)

At = Annotated[
    list[str] | None,
    typer.Option("--at", metavar="HOST[:PORT]", help="For a code: a relay or member where both meet; repeatable."),
]


@app.command()
def invite(
    code: Annotated[
        bool, typer.Option("--code", help="Wait for the other side with a short code instead, for one use.")
    ] = False,
    at: At = None,
    home: Home = None,
    json: Json = False,
) -> None:
    """Print the invite by which others join; with the running node's addresses, if one runs."""
    from sapo_edge.swarm.joining.invite import choose_addresses, leads_elsewhere

    if at and not code:
        raise ConfigError("--at is for a code", "add --code")
    workspace = open_workspace(home)
    swarm = workspace.swarm
    if swarm is None:
        raise StateError("this node is in no swarm", "create one with `sapo swarm create`, or join one")
    own = _own_addresses(workspace.paths, swarm)
    known = [*(own or ()), *swarm.bootstrap]
    addresses = choose_addresses(known)
    if not addresses and (workspace.is_alone or own is None):
        remedy = (
            "stop it and let it take part: `sapo run --agree`, or yes once on a terminal, without --solo and with the "
            "setting network = swarm; then invite again"
        )
        raise StateError("this node works alone, so an invite would lead to nobody", remedy)
    while len(text := replace(swarm, bootstrap=addresses).to_line()) > PASTED_CHARACTERS:
        addresses = addresses[:-1]
    if code:
        # Who has not joined a private swarm yet can't connect to its members and relays.
        places = () if swarm.is_private else (*known, *workspace.settings.addresses)
        codes.offer(text, places, at or (), workspace, as_json=json)
        return
    emit({"invite": text, "addresses": addresses, "private": swarm.is_private}, [text], json)
    if not leads_elsewhere(addresses):
        far = ", and from elsewhere if the other side's router or another member's forwards a port"
        far += "" if swarm.is_private else ", or a volunteer is found"
        near = "this machine" if workspace.settings.listen == "loopback" else "the same local network"
        where = f"from {near}{' only' if workspace.entry() is None else far}"
        narrate(f"this invite leads here {where}: no address is known{' that others can reach' if addresses else ''}")
    if not addresses:
        narrate("start `sapo run` first, then run this again for an invite with your addresses")
    elif not leads_elsewhere(text for text in addresses if not text.startswith("/ip6/") or "/p2p-circuit/" in text):
        if leads_elsewhere(addresses):
            narrate("elsewhere only its IPv6 address is of use, and only if this side's firewall lets connections in")
        narrate("somebody elsewhere can invite you instead; or create the swarm with --bootstrap and a relay's address")
    if swarm.is_private:
        narrate("anyone with this invite can join and pass it on: send it only to people you trust")
    narrate("others paste it after: sapo swarm join")


@app.command("join")
def join_swarm(
    invite: Annotated[
        list[str] | None,
        typer.Argument(help="An invite, a code, or the name or id of a known swarm; default: asked for."),
    ] = None,
    at: At = None,
    home: Home = None,
    json: Json = False,
) -> None:
    """Join the swarm of an invite, or of a code such as 7-guitar-revolver."""
    workspace = open_workspace(home)
    # A code is typed with spaces, too.
    text = " ".join(invite or ()) or _ask_for_invite()
    if is_code(workspace.membership, text):
        open_swarms = [swarm for swarm in workspace.membership.swarms if not swarm.is_private]
        known = [*workspace.settings.addresses, *(address for swarm in open_swarms for address in swarm.bootstrap)]
        text = codes.accept(text, known, at or (), workspace)
    elif at:
        raise ConfigError("--at is for a code", "leave it out: the other side's addresses are in its invite")
    swarm = join(workspace.paths, workspace.membership, text)
    _print_swarms(workspace, swarm, as_json=json)
    _print_next_step(workspace, "`sapo run` takes part")


@app.command()
def leave(home: Home = None, json: Json = False) -> None:
    """Leave the swarm; the node works alone from then on."""
    workspace = open_workspace(home, needs_manifest=False)
    membership = workspace.membership
    if membership.alone:
        raise StateError("this node is in no swarm already", "join one with `sapo swarm join`, or work alone")
    workspace.paths.create()
    left = membership.leave()
    said = "left the open swarm of the manifest" if left is None else f"left {left.name}"
    emit({"left": None if left is None else left.id.hex()}, [said], json)
    if left is not None and left.is_private:
        narrate("its key is removed: to join again, ask a member for an invite")
    _print_next_step(workspace, "`sapo run` works alone from now on; checkpoints stay")


@app.command()
def show(home: Home = None, json: Json = False) -> None:
    """Show the swarm of this node, and other known swarms."""
    workspace = open_workspace(home)
    _print_swarms(workspace, workspace.swarm, as_json=json)


def describe_questions(manifest: Manifest, swarm: Swarm | None) -> tuple[str, ...]:
    """What is shared of a manifest's own questions, and with whom; nothing if it has none.

    The app shows the last line alone while a node starts.
    """
    if not manifest.own_questions:
        return ()
    count = counted(manifest.own_questions, "question")
    contents = "each question in every rollout, and all of them, with their answers, in the manifest"
    if swarm is None:
        return (
            f"`sapo swarm create` makes a private swarm; those who have its invite would get {contents}",
            f"nothing is shared of your {count}: a node works alone on them until you create or join a swarm",
        )
    readers = "those who have the invite of" if swarm.is_private else "ANYBODY, because this swarm is open:"
    return (f"what is shared of your {count}, with {readers} {manifest.name}: {contents}",)


def _own_addresses(paths: Paths, swarm: Swarm) -> list[str] | None:
    """Addresses of the running node; empty without one, None of one that works alone."""
    try:
        with connect(paths, patience=START_SECONDS) as client:
            status = _wait_until_listening(client)
    except NoNodeError:
        return []
    except ControlError as error:
        narrate(f"the running node gave no addresses: {error}")
        return []
    if not status:
        return None
    if status.get("swarm") != swarm.id.hex():
        narrate("the running node is not in this swarm, so its addresses are left out; restart it")
        return []
    return [address for address in status.get("addresses", ()) if isinstance(address, str)]


def _wait_until_listening(client: ControlClient) -> dict[str, Any]:
    """Wait until the node listens and its router has answered; returns the swarm's part of its status."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        status = client.request("status").get("swarm") or {}
        if (status.get("state") != "starting" and status.get("router") != "asking") or time.monotonic() >= deadline:
            return dict(status)
        time.sleep(0.2)


def _ask_for_invite() -> str:
    from sapo_edge.swarm.codes.code import looks_like_code
    from sapo_edge.swarm.joining.invite import MAX_LINE

    if sys.stdin is None:
        raise ConfigError("no invite is given", "give it after `sapo swarm join`")
    if sys.stdin.isatty():
        narrate("paste the invite, or type the code:")
    # Some terminals break a pasted line into several; the last field of an invite shows where it ends.
    text = ""
    while "+check=" not in text and len(text) <= MAX_LINE:
        part = sys.stdin.readline(MAX_LINE + 1)
        if not part.strip():
            break
        text += part
        if looks_like_code(text):
            break
    if not text.strip():
        raise ConfigError("no invite is given", "paste what `sapo swarm invite` prints")
    return text


def _print_swarms(workspace: Workspace, swarm: Swarm | None, *, as_json: bool) -> None:
    membership = workspace.membership
    others = [other for other in membership.swarms if swarm is None or other.id != swarm.id]
    manifest = None if swarm is None else membership.manifest(swarm.manifest)
    has_manifest = manifest is not None or membership.current is None
    if as_json:
        print_json({
            "joined": membership.current is not None,
            "swarm": None if swarm is None else {**_as_dict(swarm), "manifest_known": has_manifest},
            "known": [_as_dict(item) for item in others], "solo": workspace.settings.network == "solo",
        })  # fmt: skip
        return
    if workspace.settings.network == "solo":
        print(line("network", "solo, by the settings: a node works alone until you change that"))
    if swarm is None:
        print(line("swarm", "none: this node works alone"))
    else:
        kind = "private" if swarm.is_private else "open"
        default = "" if membership.current is not None else "; by default, because no other was joined"
        print(line("swarm", f"{swarm.name}, {kind}{default}"))
        print(line("id", swarm.id.hex()))
        print(line("manifest", "known" if has_manifest else "not here yet: the next `sapo run` fetches it from a peer"))
        for address in swarm.bootstrap:
            print(line("address", address))
    for other in others:
        print(line("known too", f"{other.name}, {'private' if other.is_private else 'open'}, {other.id.hex()[:12]}"))


def _as_dict(swarm: Swarm) -> dict[str, Any]:
    """A swarm as JSON, without its key: only an invite shows that."""
    return {
        "id": swarm.id.hex(), "manifest": swarm.manifest.hex(), "name": swarm.name, "private": swarm.is_private,
        "addresses": list(swarm.bootstrap),
    }  # fmt: skip


def _print_next_step(workspace: Workspace, text: str) -> None:
    if workspace.settings.network == "solo":
        narrate("the setting network is solo, so a node works alone: `sapo config set network swarm` changes that")
    else:
        narrate(text)
    if node_runs(workspace.paths):
        narrate("the running node stays as it is until you restart it")
