"""`sapo start` and `sapo run --detach`: a node in the background, for machines without a service manager."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sapo_edge.cli.consent import ask_for_consent
from sapo_edge.cli.options import Agree, Home
from sapo_edge.cli.workspace import open_workspace
from sapo_edge.errors import NoNodeError, StateError
from sapo_edge.library.workspace import Workspace
from sapo_edge.plain import narrate

if TYPE_CHECKING:
    from sapo_edge.node.background import Background

WAIT_SECONDS = 60.0
"""How long the command waits for the node to answer: loading a model takes a while."""
_POLL_SECONDS = 0.1


def start(agree: Agree = False, home: Home = None) -> None:
    """Start a node in the background, with the settings of `sapo config show`; does nothing if one runs."""
    start_detached(open_workspace(home), home, {}, (), agree=agree)


def start_detached(
    workspace: Workspace, home: Path | None, flags: Mapping[str, object], settings: Iterable[str], *, agree: bool
) -> None:
    """Start a node that outlives this command and its terminal; return once it answers. Flags of None are left out."""
    from sapo_edge.node.background import Background

    background = Background(workspace.paths, home)
    if background.running():
        narrate("a node runs here already; `sapo status` shows it")
        return
    workspace.check_swarm()
    _, alone = ask_for_consent(workspace, agree=agree)
    if alone:
        narrate(alone)
    background.start(_options(flags, settings))
    pid = _wait_until_it_answers(background, workspace)
    if pid is None:
        narrate("still starting; `sapo logs --follow` shows when it trains")
    else:
        narrate(f"started (process {pid}); see it with `sapo status` or `sapo`, end it with `sapo stop`")


def _options(flags: Mapping[str, object], settings: Iterable[str]) -> list[str]:
    """The flags of `sapo run` again; the consent is recorded already."""
    options = [
        "--solo" if name == "network" else f"--{name.replace('_', '-')}={value}"
        for name, value in flags.items()
        if value is not None
    ]
    return [*options, *(f"--set={assignment}" for assignment in settings)]


def _wait_until_it_answers(background: Background, workspace: Workspace) -> int | None:
    """The node's process id; None if it takes long."""
    from sapo_edge.control.client import connect

    until, told = time.monotonic() + WAIT_SECONDS, 0
    while time.monotonic() < until:
        output = background.last_output()
        for text in output[told:]:
            # An error is what this command ends with.
            if not text.startswith("sapo: "):
                narrate(f"  {text}")
        # The last lines only: more than so many are no messages about a start.
        told = len(output)
        ended = background.ended()
        if ended is not None:
            raise StateError(f"the node has ended: {ended.reason}", "`sapo logs` shows what happened before")
        try:
            with connect(workspace.paths) as client:
                return int(client.hello["pid"])
        except NoNodeError:
            time.sleep(_POLL_SECONDS)
    return None
