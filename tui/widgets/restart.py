"""Restarts the node after the user has confirmed it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from textual.content import Content

from sapo_edge.errors import SapoError
from sapo_edge.plain import rough_duration
from sapo_edge.tui.node.state import Standing
from sapo_edge.tui.widgets.dialog import Ask
from sapo_edge.tui.widgets.small import elapsed

if TYPE_CHECKING:
    from sapo_edge.tui.app import SapoApp
    from sapo_edge.tui.widgets.job_line import JobLine

Waiting = Sequence[tuple[str, str, str]]
"""Settings that need a restart: name, value in the running node, value after the restart."""
LOOK_SECONDS = 0.2
"""Seconds between two checks whether the node has stopped."""
QUESTION = "Restart the node?"
EXPLANATION = "The node finishes its round, saves, stops, and starts again from there, with:"
STOPS = "The node is stopping already: try again once it has ended, or runs again."
STARTS = "the node is starting: try again when it runs"
REFUSED = "This belongs to the run: the node refuses to continue it with another value."


async def restart(app: SapoApp, changes: Waiting, refused: Collection[str] = ()) -> None:
    """Stop the node after its round and start it again, if the user confirms it. Call it from a worker."""
    if app.state.stopping:
        app.notify(STOPS, severity="warning")
        return
    lines = [Content(EXPLANATION), Content()]
    for name, before, after in changes:
        lines.append(Content(f"{name}: {before} → {after}"))
        if name in refused:
            lines.append(Content.styled(f"  {REFUSED}", "$text-warning"))
    if await app.push_screen_wait(Ask(QUESTION, Content("\n").join(lines), labels=("Restart", "Not now"))) is None:
        return
    try:
        await app.request("stop", {"when": "after_round"})
    except SapoError as error:
        app.show_error(error)
        return
    app.notify("The node finishes its round, saves, and starts again.")
    await _ended(app)
    # After a crash the keeper asks whether to start again.
    if app.state.standing is Standing.ENDED and app.state.ending.expected:
        app.keeper.start()


async def stopped(app: SapoApp, line: JobLine) -> bool:
    """Let a running node finish its round, save and stop; else it is said why not. Call it from a worker."""
    if line.busy:
        app.notify("One command at a time: wait for the one that runs, or stop it with Esc.", severity="warning")
        return False
    if app.state.stopping:
        app.notify(STOPS, severity="warning")
        return False
    if app.state.standing is Standing.ATTACHED:
        try:
            await app.request("stop", {"when": "after_round"})
        except SapoError as error:
            line.fail(error)
            return False
        since = time.monotonic()

        def say() -> None:
            seconds, left = time.monotonic() - since, app.state.clock.left()
            more = f"; about {rough_duration(left)} left" if left else ""
            line.say(elapsed("the node finishes its round and saves", seconds) + more, "busy")

        await _ended(app, say)
    if app.state.standing is not Standing.ENDED:
        line.say(STARTS, "bad")
        return False
    return True


async def _ended(app: SapoApp, say: Callable[[], None] = lambda: None) -> None:
    """Wait until the node that was asked to stop has ended, or another one runs; call `say` meanwhile."""
    state, pid = app.state, app.state.status.get("pid")
    # A busy node leaves the app before it ends, and the app then looks for it.
    while state.standing is not Standing.ENDED and (
        state.standing is not Standing.ATTACHED or state.status.get("pid") == pid
    ):
        say()
        await asyncio.sleep(LOOK_SECONDS)
