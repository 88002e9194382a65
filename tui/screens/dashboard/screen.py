"""The dashboard: what the node does, whether it learns, with whom, and what it uses."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.widgets import ContentSwitcher, Static

from sapo_edge.plain import printable
from sapo_edge.tui.look.themes import curve_colors
from sapo_edge.tui.node.state import Standing
from sapo_edge.tui.screens.dashboard.curves import CurvesPlot
from sapo_edge.tui.screens.dashboard.texts import batch_text, is_it_working, machine_text, now_text, peers_text
from sapo_edge.tui.screens.view import Change, View

MOODS = {"good": "▲", "bad": "▼", "unsure": "•", "early": "•"}
"""A mark for each verdict."""
ABREAST = (78, 20)
"""Columns and lines of a terminal from which the three panels have room beside each other below the curves."""

TALL, TALL_LINES, LINES = 32, 7, 5
"""Lines from which a terminal is tall; lines of text in a panel then, and else."""


class Dashboard(View):
    """Progress of the round, the verdict in words, curves, and three panels."""

    MODE = "dashboard"
    _verdict = ""
    DEFAULT_CSS = """
    Dashboard #running { height: 1fr; }
    Dashboard #now { height: 1fr; }
    Dashboard #progress { height: auto; max-height: 3; padding: 0 1; }
    Dashboard #verdict { height: auto; max-height: 3; padding: 0 1; }
    Dashboard #verdict.-good { color: $text-success; }
    Dashboard #verdict.-bad { color: $text-error; }
    Dashboard #verdict.-early { color: $text-muted; }
    Dashboard #curves { height: 1fr; min-height: 5; }
    Dashboard #panels { height: 7; }
    Dashboard #panels Static { width: 1fr; height: 1fr; }
    Dashboard.-tall #panels { height: 9; }
    Dashboard #now { scrollbar-size: 1 1; }
    Dashboard.-stacked #panels { layout: vertical; height: auto; }
    Dashboard.-stacked #panels Static { height: auto; }
    Dashboard.-stacked #verdict { max-height: 6; }
    Dashboard.-stacked #curves { height: 9; }
    Dashboard #waiting { height: 1fr; padding: 1 2; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,pageup", "scroll(-1)", "Scroll up", show=False, id="dashboard.up"),
        Binding("down,pagedown", "scroll(1)", "Scroll down", show=False, id="dashboard.down"),
    ]
    HELP_TEXT = """\
**Round**: the model answers questions, then learns from those whose answers did not all get the same reward
(*update*). Every few rounds it answers *held-out* questions, which it is never trained on.

**Curves**: mean reward of own answers, mean reward of other nodes' answers, and held-out accuracy. Only held-out
accuracy tells whether the model got better.

**Last batch**: own and other nodes' questions in the last update. A question *teaches* if some of its answers are
better than others; the model learns only from those.
**Rejected**: rollouts of others that this node did not accept, by reason.

In a small terminal the panels stand one below the other: `↑` and `↓` scroll.
"""

    def content(self) -> ComposeResult:
        """The widgets."""
        with ContentSwitcher(initial="waiting", id="running"):
            yield Static(id="waiting", markup=False)
            with VerticalScroll(id="now", can_focus=False):
                yield Static(id="progress", markup=False)
                yield Static(id="verdict", markup=False)
                yield CurvesPlot(id="curves", classes="panel")
                with Horizontal(id="panels"):
                    yield Static(id="batch", classes="panel", markup=False)
                    yield Static(id="company", classes="panel", markup=False)
                    yield Static(id="machine", classes="panel", markup=False)

    def on_mount(self) -> None:
        """Title the panels."""
        for name, title in (
            ("batch", "Last batch"),
            ("company", "Swarm"),
            ("machine", "Machine"),
        ):
            self.query_one(f"#{name}").border_title = title

    def on_resize(self) -> None:
        """Arrange the panels for the new size, and redraw."""
        columns, rows = ABREAST
        self.set_class(self.app.size.width < columns or self.app.size.height < rows, "-stacked")
        self.refresh_node(Change.ALL)

    def action_scroll(self, pages: int) -> None:
        """Scroll to the panels, where they don't fit."""
        now = self.query_one("#now")
        now.scroll_relative(y=pages * max(1, now.size.height - 2), animate=False)

    def node_changed(self, change: Change) -> None:
        """Show changes."""
        state = self.sapo.state
        has_data = state.standing is Standing.ATTACHED or bool(state.history.last_round)
        self.query_one("#running", ContentSwitcher).current = "now" if has_data else "waiting"
        if not has_data:
            self.query_one("#waiting", Static).update(self._waiting())
            return
        if change & (Change.PROGRESS | Change.ROUND | Change.STATUS | Change.STANDING):
            # Without padding and, if there is one, the scroll bar.
            width = self.app.size.width - 2 - self.has_class("-stacked")
            line = now_text(state, self.sapo.keeper.lines, max(36, width))
            # Only a sentence may need more than one line.
            self.query_one("#progress", Static).update(line, layout=bool(change & Change.STANDING))
        if change & (Change.ROUND | Change.STATUS):
            mood, sentences = is_it_working(state.history, state.status)
            text = f"{MOODS[mood]} Is it working? {sentences}"
            if text != self._verdict:
                # The height may change, which lays out the whole screen again.
                verdict = self.query_one("#verdict", Static)
                verdict.set_classes(f"-{mood}")
                verdict.update(text)
                self._verdict = text
            stacked = self.has_class("-stacked")
            lines = 100 if stacked else TALL_LINES if self.app.size.height >= TALL else LINES
            colors = curve_colors(self.app.current_theme)
            self.query_one("#batch", Static).update(batch_text(state.status, colors, lines), layout=stacked)
            self.query_one("#company", Static).update(peers_text(state, lines), layout=stacked)
            self.query_one("#machine", Static).update(machine_text(state), layout=stacked)
        if change & Change.ROUND:
            self.query_one(CurvesPlot).show(state.history)

    def _waiting(self) -> str:
        match self.sapo.state.standing:
            case Standing.LOOKING:
                return "Looking for a running node ..."
            case Standing.STARTING:
                lines = "\n".join(f"  {printable(line)}" for line in self.sapo.keeper.lines[-12:])
                return (
                    f"A node is starting in the background. The first time it measures what is fastest here.\n\n{lines}"
                )
            case _:
                return f"No node runs: {self.sapo.state.ended_text}.\n\nPress s to start one."
