"""The first screen: what the node does now, whether it learns, with whom, and what it costs."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widgets import ContentSwitcher, Static

from sapo_edge.tui.node.state import Standing
from sapo_edge.tui.screens.dashboard.curves import CurvesPlot
from sapo_edge.tui.screens.dashboard.panels import batch_text, machine_text, peers_text
from sapo_edge.tui.screens.dashboard.phases import PhaseStrip
from sapo_edge.tui.screens.dashboard.words import is_it_working
from sapo_edge.tui.screens.view import Change, View

MOODS = {"good": ("▲", "$success"), "bad": ("▼", "$error"), "unsure": ("•", "$warning"), "early": ("•", "$text-muted")}


class Dashboard(View):
    """Phases of the round, the verdict in words, curves, and three panels."""

    MODE = "dashboard"
    _said = ""
    DEFAULT_CSS = """
    Dashboard #running { height: 1fr; }
    Dashboard #now { height: 1fr; }
    Dashboard PhaseStrip { height: 1; padding: 0 1; }
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
**Round**: the model answers questions (*generate*), learns from those whose answers were not all rewarded alike
(*update*), and now and then answers 100 questions that it is never trained on (*evaluate*).

**Curves**: mean reward of own answers, of the answers of others as they sampled them, and held-out accuracy.
Only held-out tells whether the model got better.

**Batch**: where the groups of the last update came from. *Informative* groups are those that teach.
**Refused** is what others sent and this node did not take, by reason.
"""

    def content(self) -> ComposeResult:
        """The widgets."""
        with ContentSwitcher(initial="waiting", id="running"):
            yield Static(id="waiting", markup=False)
            with Static(id="now"):
                yield PhaseStrip(markup=False, id="strip")
                yield Static(id="verdict", markup=False)
                yield CurvesPlot(id="curves", classes="panel")
                with Horizontal(id="panels"):
                    yield Static(id="batch", classes="panel", markup=False)
                    yield Static(id="company", classes="panel", markup=False)
                    yield Static(id="machine", classes="panel", markup=False)

    def on_mount(self) -> None:
        """Name the panels."""
        for name, title in (
            ("batch", "Last batch"),
            ("company", "Swarm"),
            ("machine", "Machine"),
        ):
            self.query_one(f"#{name}").border_title = title

    def on_resize(self) -> None:
        """Draw for the new size."""
        self.refresh_node(Change.ALL)

    def node_changed(self, change: Change) -> None:
        """Show what is new."""
        state = self.sapo.state
        known = state.standing is Standing.ATTACHED or bool(state.history.last_round)
        self.query_one("#running", ContentSwitcher).current = "now" if known else "waiting"
        if not known:
            self.query_one("#waiting", Static).update(self._waiting())
            return
        if change & (Change.PROGRESS | Change.ROUND | Change.STATUS | Change.STANDING):
            self.query_one(PhaseStrip).show(state)
        if change & (Change.ROUND | Change.STATUS):
            mood, told = is_it_working(state.history, state.status)
            verdict = self.query_one("#verdict", Static)
            said = f"{MOODS[mood][0]} Is it working? {told}"
            if said != self._said:
                # Only this one has a height of its own, so that all has to be arranged anew.
                verdict.set_classes(f"-{mood}")
                verdict.update(said)
                self._said = said
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
                return f"A node is starting in the background. The first time it tries what is fastest here.\n\n{lines}"
            case _:
                return f"No node runs: {self.sapo.keeper.why}\n\nPress s to start one."
