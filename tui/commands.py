"""The app's own commands in the palette, and the ids of all keys."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING

from textual.app import SystemCommand
from textual.binding import Binding

from sapo_edge.tui.node.state import Standing
from sapo_edge.tui.screens.view import VIEWS

if TYPE_CHECKING:
    from sapo_edge.tui.app import SapoApp


def node_commands(app: SapoApp) -> Iterator[SystemCommand]:
    """Commands for the node in its current state, one for each screen, and one to quit."""
    standing = app.state.standing
    if standing is Standing.ATTACHED:
        if app.state.paused:
            yield SystemCommand("Resume the node", "Continue, whatever the reason for the pause", app.action_pause)
        else:
            yield SystemCommand("Pause the node", "Within a second; it still receives rollouts", app.action_pause)
        yield SystemCommand("Stop the node", "Asks once; the round is finished and saved", app.action_start_or_stop)
    elif standing is Standing.ENDED:
        yield SystemCommand("Start the node", "Continue from the last checkpoint", app.action_start_or_stop)
    for number, (mode, title) in enumerate(VIEWS.items(), 1):

        def show(mode: str = mode) -> None:
            app.switch_mode(mode)

        yield SystemCommand(f"Show {title}", f"The screen of key {number}", show)
    yield SystemCommand("Quit sapo", "Leave the app; asks once whether the node keeps running", app.action_ask_quit)


def binding_ids(app: SapoApp) -> set[str]:
    """The ids of all keys of the app, its screens, dialogs and widgets. Slow: it imports all of them."""
    from sapo_edge.tui import screens, widgets

    owners: set[type] = {type(app)}
    for package in (screens, widgets):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            owners.update(item for item in vars(import_module(module.name)).values() if isinstance(item, type))
    bindings = (binding for owner in owners for binding in vars(owner).get("BINDINGS", ()))
    return {binding.id for binding in bindings if isinstance(binding, Binding) and binding.id}
