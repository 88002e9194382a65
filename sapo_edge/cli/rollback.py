"""`sapo rollback`: return to the best checkpoint, or to another one that is kept."""

from __future__ import annotations

from typing import Annotated

import typer

from sapo_edge.cli.options import Home, Json
from sapo_edge.cli.output import narrate, report
from sapo_edge.control.client import START_SECONDS, connect, explained_lock
from sapo_edge.errors import CheckpointError, NoNodeError
from sapo_edge.state.paths import Paths


def rollback(
    round: Annotated[
        int | None, typer.Option("--round", min=0, help="Of a checkpoint that is kept; default: the best one.")
    ] = None,
    home: Home = None,
    json: Json = False,
) -> None:
    """Return to the best checkpoint and go on from there; later ones are kept under another name."""
    paths = Paths.default(home)
    try:
        client = connect(paths, patience=START_SECONDS)
    except NoNodeError:
        # Or one that does not answer: then the lock says so.
        last, target, runs = *_roll_back_stopped(paths, round), False
    else:
        with client:
            reply = client.request("rollback", {"round": round})
        last, target, runs = int(reply["from"]), int(reply["to"]), True
    if target == last:
        text = f"nothing to do: the checkpoint of round {target} is the newest"
    elif runs:
        text = f"the node finishes its round and returns to the checkpoint of round {target}"
    else:
        text = f"returned from round {last} to the checkpoint of round {target}; `sapo run` goes on from there"
    report({"done": "rollback", "from": last, "to": target, "running": runs}, text, json)


def _roll_back_stopped(paths: Paths, round: int | None) -> tuple[int, int]:
    """Return to a checkpoint of a node that does not run; the round that was left, and that of the checkpoint."""
    from sapo_edge.node.rollback import find_target, remember_used
    from sapo_edge.state.store import Store

    if not paths.checkpoints.exists():
        # Opening the store would create a state directory.
        raise CheckpointError("there is no checkpoint yet", "train first with `sapo run`")
    with explained_lock(paths):
        opened = Store(paths)
    with opened as store:
        target = find_target(store.checkpoints, round).round
        last = target if store.latest is None else store.latest.round
        if target < last:
            remember_used(store)
            last = store.roll_back(target).from_round
        for text in store.notices:
            narrate(text)
    return last, target
