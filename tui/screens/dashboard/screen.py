"""The dashboard: what the node does, whether it learns, with whom, and what it uses."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widgets import ContentSwitcher, Static

from sapo_edge.tui.node.state import Standing
from sapo_edge.tui.screens.dashboard.curves import CurvesPlot
from sapo_edge.tui.screens.dashboard.texts import batch_text, is_it_working, machine_text, peers_text, progress_text
from sapo_edge.tui.screens.view import Change, View

MOODS = {"good": "▲", "bad": "▼", "unsure": "•", "early": "•"}
"""A mark for each verdict."""


class Dashboard(View):
    """Progress of the round, the verdict in words, curves, and three panels."""

    MODE = "dashboard"
    _verdict = ""
    DEFAULT_CSS = """
    Dashboard #running { height: 1fr; }
    Dashboard #now { height: 1fr; }
    Dashboard #progress { height: 1; padding: 0 1; }
    Dashboard #verdict { height: auto; max-height: 3; padding: 0 1; }
    Dashboard #verdict.-good { color: $text-success; }
    Dashboard #verdict.-bad { color: $text-error; }
    Dashboard #verdict.-unsure { color: $text-warning; }
    Dashboard #verdict.-early { color: $text-muted; }
    Dashboard #curves { height: 1fr; min-height: 5; }
    Dashboard #panels { height: 7; }
    Dashboard #panels Static { width: 1fr; height: 1fr; }
    Dashboard.-tall #panels { height: 9; }
    Dashboard.-tiny #panels { display: none; }
    Dashboard #waiting { height: 1fr; padding: 1 2; }
    """
    HELP_TEXT = """\
**Round**: the model answers questions, then learns from those whose answers did not all get the same reward
(*update*). Every few rounds it answers *held-out* questions, which it is never trained on.

**Curves**: mean reward of own answers, mean reward of other nodes' answers, and held-out accuracy. Only held-out
accuracy tells whether the model got better.

**Last batch**: own and other nodes' groups in the last update. The model learns only from *informative* groups.
**Rejected**: rollouts of others that this node did not accept, by reason.
"""

    def content(self) -> ComposeResult:
        """The widgets."""
        with ContentSwitcher(initial="waiting", id="running"):
            yield Static(id="waiting", markup=False)
            with Static(id="now"):
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
        """Redraw for the new size."""
        self.refresh_node(Change.ALL)

    def node_changed(self, change: Change) -> None:
        """Show changes."""
        state = self.sapo.state
        has_data = state.standing is Standing.ATTACHED or bool(state.history.last_round)
        self.query_one("#running", ContentSwitcher).current = "now" if has_data else "waiting"
        if not has_data:
            self.query_one("#waiting", Static).update(self._waiting())
            return
        if change & (Change.PROGRESS | Change.ROUND | Change.STATUS | Change.STANDING):
            width = max(38, self.app.size.width - 2)
            self.query_one("#progress", Static).update(progress_text(state, width), layout=False)
        if change & (Change.ROUND | Change.STATUS):
            mood, sentences = is_it_working(state.history, state.status)
            text = f"{MOODS[mood]} Is it working? {sentences}"
            if text != self._verdict:
                # The height may change, which lays out the whole screen again.
                verdict = self.query_one("#verdict", Static)
                verdict.set_classes(f"-{mood}")
                verdict.update(text)
                self._verdict = text
            self.query_one("#batch", Static).update(batch_text(state.status), layout=False)
            self.query_one("#company", Static).update(peers_text(state.status), layout=False)
            self.query_one("#machine", Static).update(machine_text(state.status), layout=False)
        if change & Change.ROUND:
            self.query_one(CurvesPlot).show(state.history)

    def _waiting(self) -> str:
        match self.sapo.state.standing:
            case Standing.LOOKING:
                return "Looking for a running node ..."
            case Standing.STARTING:
                lines = "\n".join(f"  {line}" for line in self.sapo.keeper.lines[-12:])
                return (
                    f"A node is starting in the background. The first time it measures what is fastest here.\n\n{lines}"
                )
            case _:
                return f"No node runs: {self.sapo.keeper.reason}\n\nPress s to start one."
