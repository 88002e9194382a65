"""`sapo swarm`: create, invite, join, leave, show."""

from __future__ import annotations

import secrets
import sys
import time
from typing import Any

from sapo_edge.cli.output import narrate, print_json
from sapo_edge.cli.workspace import Workspace
from sapo_edge.control.client import ControlClient, connect, node_runs
from sapo_edge.control.protocol import ControlError
from sapo_edge.errors import CheckpointError, ConfigError, NoNodeError, StateError
from sapo_edge.plain import counted, line
from sapo_edge.state.checkpoints import Checkpoints
from sapo_edge.state.paths import Paths
from sapo_edge.swarm.joining.invite import KEY_BYTES, MAX_LINE, PREFIX, check_address, parse_invite, worth_sharing
from sapo_edge.swarm.joining.membership import Membership, Swarm

PASTED_CHARACTERS = 1000
"""Longest line that is printed: some terminals take no more than 1024 when it is pasted."""

START_SECONDS = 30.0
"""How long a node that was just started is waited for."""


def run_create(workspace: Workspace, *, private: bool, bootstrap: list[str], as_json: bool) -> None:
    """Make the swarm of the manifest that the workspace has, and be in it."""
    manifest = workspace.require_manifest()
    key = secrets.token_bytes(KEY_BYTES) if private else None
    swarm = Swarm.of(manifest, tuple(check_address(address) for address in bootstrap), key)
    membership = _open(workspace.paths)
    _check_state(workspace.paths, membership, swarm)
    membership.keep_manifest(manifest.to_bytes(), swarm.manifest)
    _tell(workspace, membership, membership.join(swarm), as_json=as_json)
    if not private and not bootstrap:
        narrate("an open swarm of a manifest is the same one everywhere: whoever trains on it can take part")
    _tell_next(workspace, "`sapo run` takes part; `sapo swarm invite` prints the line for others")


def run_invite(workspace: Workspace, *, as_json: bool) -> None:
    """Print the line by which others join; with the addresses of the running node, if one runs."""
    swarm = workspace.swarm
    if swarm is None:
        raise StateError("this node is in no swarm", "make one with `sapo swarm create`, or join one")
    addresses = worth_sharing([*_own_addresses(workspace.paths, swarm), *swarm.bootstrap])
    while len(text := swarm.invite(addresses).to_line()) > PASTED_CHARACTERS:
        addresses = addresses[:-1]
    if as_json:
        print_json({"invite": text, "addresses": addresses, "private": swarm.private})
    else:
        print(text)
    if not addresses:
        narrate("no address is known: only nodes on the same local network will find each other by this line")
        narrate("start `sapo run` first, then ask again, and the line says where you are")
    if swarm.private:
        narrate("whoever has this line can take part: send it to nobody else")
    narrate("they paste it behind: sapo swarm join")


def run_join(workspace: Workspace, text: str | None, *, as_json: bool) -> None:
    """Be in the swarm of an invite, or in one that is known by name or id."""
    membership, swarm = join(workspace.paths, text or _ask_for_invite())
    _tell(workspace, membership, swarm, as_json=as_json)
    _tell_next(workspace, "`sapo run` takes part")


def join(paths: Paths, text: str) -> tuple[Membership, Swarm]:
    """Be in the swarm of an invite, or in one that is known by name or id, and tell nobody.

    Raises:
        ConfigError: if the text is neither.
        StateError: if what was learnt here belongs to another manifest, or the swarms can't be read or written.
    """
    membership = _open(paths)
    known = not text.strip().lower().startswith((PREFIX, "sapo:")) and len(text) <= 64
    swarm = membership.find(text.strip()) if known else Swarm.from_invite(parse_invite(text))
    _check_state(paths, membership, swarm)
    return membership, membership.join(swarm)


def run_leave(workspace: Workspace, *, as_json: bool) -> None:
    """Be in no swarm from now on."""
    membership = _open(workspace.paths)
    if membership.alone:
        raise StateError("this node is in no swarm already", "join one with `sapo swarm join`, or work alone")
    left = membership.leave()
    if as_json:
        print_json({"left": None if left is None else left.id.hex()})
    else:
        print(f"left {left.name}" if left is not None else "left the open swarm of the manifest")
    if left is not None and left.private:
        narrate("its key is forgotten: to come back, ask a member for an invite")
    _tell_next(workspace, "`sapo run` works alone from now on; what was learnt stays")


def run_show(workspace: Workspace, *, as_json: bool) -> None:
    """Print the swarm, and the others that are known."""
    _tell(workspace, workspace.membership, workspace.swarm, as_json=as_json)


def _open(paths: Paths) -> Membership:
    paths.create()
    return Membership(paths.state)


def _check_state(paths: Paths, membership: Membership, swarm: Swarm) -> None:
    """Make sure that what was learnt here was learnt on the swarm's manifest."""
    checkpoints = Checkpoints(paths.checkpoints)
    for round in reversed(checkpoints.rounds()):
        try:
            found = checkpoints.read(round)
        except CheckpointError:
            continue
        if found.manifest_digest == swarm.manifest.hex():
            return
        other = membership.manifest(bytes.fromhex(found.manifest_digest))
        raise StateError(
            f"{paths.state} holds {counted(round, 'round')} on {other.name if other else 'another manifest'}, "
            f"and this swarm trains on {swarm.name}",
            "give --home DIR for a second node, or rename checkpoints and journal in there to begin anew",
        )


def _own_addresses(paths: Paths, swarm: Swarm) -> list[str]:
    """Where the running node can be reached; empty without one."""
    try:
        with connect(paths) as client:
            found = _swarm_once_it_listens(client)
    except NoNodeError:
        return []
    except ControlError as error:
        narrate(f"the running node was not asked for its addresses: {error}")
        return []
    if found.get("swarm") not in (swarm.id.hex(), swarm.manifest.hex()):
        narrate("the running node is not in this swarm, so its addresses are left out; start it again")
        return []
    return [address for address in found.get("addresses", ()) if isinstance(address, str)]


def _swarm_once_it_listens(client: ControlClient) -> dict[str, Any]:
    """The swarm's part of the node's status; a node that was just started does not listen yet."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        found = client.request("status").get("swarm") or {}
        if found.get("state") != "starting" or time.monotonic() >= deadline:
            return dict(found)
        time.sleep(0.2)


def _ask_for_invite() -> str:
    if sys.stdin is None:
        raise ConfigError("no invite is given", "give the line behind `sapo swarm join`")
    if sys.stdin.isatty():
        narrate("paste the invite:")
    # Some terminals break what is pasted into lines; its last field shows where it ends.
    text = ""
    while "+check=" not in text and len(text) <= MAX_LINE:
        part = sys.stdin.readline(MAX_LINE + 1)
        if not part.strip():
            break
        text += part
    if not text.strip():
        raise ConfigError("no invite is given", "paste the line that `sapo swarm invite` prints")
    return text


def _tell(workspace: Workspace, membership: Membership, swarm: Swarm | None, *, as_json: bool) -> None:
    others = [other for other in membership.swarms if swarm is None or other.id != swarm.id]
    manifest = None if swarm is None else membership.manifest(swarm.manifest)
    here = manifest is not None or membership.current is None
    if as_json:
        shown = None if swarm is None else {**_as_dict(swarm), "manifest_known": here}
        record = {
            "joined": membership.current is not None,
            "swarm": shown,
            "known": [_as_dict(item) for item in others],
        }
        print_json(record)
        return
    if workspace.settings.network == "solo":
        print(line("network", "solo, by the settings: a node works alone until that is changed"))
    if swarm is None:
        print(line("swarm", "none: this node works alone"))
    else:
        how = "private" if swarm.private else "open"
        default = "" if membership.current is not None else "; by default, as no other was joined"
        print(line("swarm", f"{swarm.name}, {how}{default}"))
        print(line("id", swarm.id.hex()))
        print(line("manifest", "known" if here else "not here yet: fetched from a peer by the next `sapo run`"))
        for address in swarm.bootstrap:
            print(line("address", address))
    for other in others:
        print(line("known too", f"{other.name}, {'private' if other.private else 'open'}, {other.id.hex()[:12]}"))


def _as_dict(swarm: Swarm) -> dict[str, Any]:
    """A swarm without its key, which only an invite shows."""
    return {
        "id": swarm.id.hex(), "manifest": swarm.manifest.hex(), "name": swarm.name, "private": swarm.private,
        "addresses": list(swarm.bootstrap),
    }  # fmt: skip


def _tell_next(workspace: Workspace, text: str) -> None:
    if workspace.settings.network == "solo":
        narrate("the setting network is solo, so that a node works alone: `sapo config set network swarm` changes that")
    else:
        narrate(text)
    if node_runs(workspace.paths):
        narrate("the node that runs now stays as it is until you start it again")
