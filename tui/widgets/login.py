"""A node whenever the user logs in: `sapo service` installs or removes it, and the app says what was done."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from sapo_edge.errors import SapoError
from sapo_edge.plain import printable
from sapo_edge.tui.widgets.dialog import Ask

if TYPE_CHECKING:
    from sapo_edge.tui.app import SapoApp

STARTS = (
    "A service of yours starts the node with each session, and again after a failure. The node of now is left alone."
)
ENDS = (
    "Its service is removed. If that runs the node, the node finishes its round and stops. What was learned stays, and "
    "sapo starts a node when you open it."
)


def start_at_login(app: SapoApp) -> None:
    """Let a node start at every login, and say how that ended."""
    app.run_worker(_service(app, "install", "--no-start"), group="login")


async def change_start_at_login(app: SapoApp) -> None:
    """Ask whether a node is to start at every login, or none any more, and do it. Call it from a worker."""
    try:
        starts = await asyncio.to_thread(app.launcher.starts_at_login)
    except SapoError as error:
        app.show_error(error)
        return
    heading = "No longer start a node when you log in?" if starts else "Start a node whenever you log in?"
    if await app.push_screen_wait(Ask(heading, ENDS if starts else STARTS)) is None:
        return
    if starts:
        await _service(app, "remove")
    else:
        start_at_login(app)


async def _service(app: SapoApp, *arguments: str) -> None:
    try:
        result = await asyncio.to_thread(app.launcher.job("service", *arguments).run)
    except SapoError as error:
        app.show_error(error)
        return
    unit = result.record.get("unit")
    done = f"A node starts whenever you log in: {unit} is written." if unit else "No node starts at login any more."
    undo = "The command Start at login (: opens the list) takes it back." if unit else ""
    # It may depend on the machine what is missing for a start before anybody logs in.
    lines = [done, undo, *(line for line in result.notes if line.startswith(("it runs while", "  sudo loginctl")))]
    app.notify("\n".join(printable(line) for line in lines if line), timeout=20, markup=False)
