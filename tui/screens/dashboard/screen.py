"""The dashboard: what the node does, whether it learns, with whom, and what it uses."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.widgets import ContentSwitcher, Static

from sapo_edge.plain import printable
from sapo_edge.tui.look.themes import curve_colors
from sapo_edge.tui.node.history import Curves
from sapo_edge.tui.node.state import Standing
from sapo_edge.tui.screens.dashboard import texts
from sapo_edge.tui.screens.dashboard.curves import CurvesPlot, Shown, Window
from sapo_edge.tui.screens.view import Change, View
from sapo_edge.tui.widgets.small import Steady

if TYPE_CHECKING:
    from sapo_edge.control.report import TaskCourse

MOODS = {"good": "▲", "bad": "▼", "unsure": "•", "early": "•"}
"""A mark for each verdict."""
ABREAST = (78, 20)
"""Columns and lines of a terminal from which the three panels have room beside each other below the curves."""
BY_TASK = "tasks"
"""The part of the run that is shown as bars instead of curves."""
TWO_PANES = 140
"""Columns of a terminal from which the bars stand beside the curves."""
PANE_SHARE = 3
"""The bars take one of so many parts of the width then."""
TERMS = {
    "curves": ("", "The share of right answers after each round: of the model itself, of the other nodes, and to "
               "held-out questions, which it is never trained on. The lines through a point are its 95 % interval. v "
               "shows other curves."),
    "by_task": ("Right answers by task, before → now",
                "Right answers to held-out questions of each task, before training and now."),
    "batch": ("Last batch", "The questions of the last round. A question teaches if some of its answers are better "
              "than others. Rejected: what others sent and this node did not accept."),
    "company": ("Swarm", "The other nodes, and how much text came and went. Only text does, never the model."),
    "machine": ("Machine", "What learning takes of this machine. An estimate of power counts 5 W for each busy core."),
}  # fmt: skip
"""Titles of the panels, and what they say to a mouse that rests on them."""
STARTING = (
    "A node is starting in the background. The first time, it measures what is fastest here, which takes about half a "
    "minute where nothing else runs."
)
TALL, TALL_LINES, LINES = 32, 7, 5
"""Lines from which a terminal is tall; lines of text in a panel then, and else."""


class Dashboard(View):
    """Progress of the round, the verdict in words, curves, and three panels."""

    MODE = "dashboard"
    SCROLLED = "#now"
    DEFAULT_CSS = """
    Dashboard #news { max-height: 3; padding: 0 1; color: $text-success; display: none; }
    Dashboard #news.-some { display: block; }
    Dashboard #progress, Dashboard #verdict { max-height: 3; padding: 0 1; }
    Dashboard #verdict.-good { color: $text-success; }
    Dashboard #verdict.-bad { color: $text-error; }
    Dashboard #verdict.-early { color: $text-muted; }
    Dashboard #charts { min-height: 5; }
    Dashboard #curves { width: 2fr; border-subtitle-color: $text-muted; }
    Dashboard #by_task { display: none; }
    Dashboard.-both #by_task, Dashboard.-tasks #by_task { display: block; }
    Dashboard.-tasks #curves { display: none; }
    Dashboard #panels { height: 7; }
    Dashboard #panels Static { width: 1fr; height: 1fr; }
    Dashboard.-tall #panels { height: 9; }
    Dashboard.-stacked #panels { layout: vertical; height: auto; }
    Dashboard.-stacked #panels Static { height: auto; }
    Dashboard.-stacked #verdict { max-height: 6; }
    Dashboard.-stacked #charts { height: 9; }
    Dashboard #waiting { height: 1fr; padding: 1 2; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,pageup", "scroll(0, -1)", "Scroll up", show=False, id="dashboard.up"),
        Binding("down,pagedown", "scroll(0, 1)", "Scroll down", show=False, id="dashboard.down"),
        Binding("v", "next_view", "View", id="dashboard.view", tooltip="Rewards, tasks, questions that teach, speed"),
        Binding("plus,equals_sign", "zoom(1)", "Fewer rounds", show=False, id="dashboard.nearer"),
        Binding("minus", "zoom(-1)", "More rounds", show=False, id="dashboard.farther"),
        Binding("left", "shift(-1)", "Earlier rounds", show=False, id="dashboard.earlier"),
        Binding("right", "shift(1)", "Later rounds", show=False, id="dashboard.later"),
        Binding("0", "whole", "The whole run", show=False, id="dashboard.whole"),
    ]
    HELP_TEXT = """\
**Round**: the model answers questions, then learns from those whose answers did not all get the same reward
(*update*). Every few rounds it answers *held-out* questions, which it is never trained on.

**Curves**: mean reward of own answers, mean reward of other nodes' answers, and held-out accuracy. Only held-out
accuracy tells whether the model got better; the line through a point is its 95 % interval. `v` shows right answers by
task as bars, then the share of questions that teach, then the speed. `+` and `-` zoom, `←` and `→` move, `0` shows the
whole run. During a head start, before the first round, the curve is its held-out accuracy by update.

**Last batch**: own and other nodes' questions in the last update. A question *teaches* if some of its answers are
better than others; the model learns only from those.
**Rejected**: rollouts of others that this node did not accept, by reason.

**Machine**: where other programs slow the node, how many cores they keep busy. *Power* is what the battery or the
processor's own counter tells, of the whole machine or the whole processor. Where neither can be read it is an estimate
for this node's share of the processor, 5 W for each busy core, which can be wrong by a factor of two; the energy since
the node's start always is that estimate.

In a small terminal the panels stand one below the other: `↑` and `↓` scroll.
"""

    _view: str = Shown.REWARD
    _tasks: tuple[TaskCourse, ...] = ()
    _evaluated: tuple[int, ...] = ()
    _part: Curves | None = None

    def content(self) -> ComposeResult:
        yield Steady(id="news")
        with ContentSwitcher(initial="waiting", id="running"):
            yield Static(id="waiting", markup=False)
            with VerticalScroll(id="now", can_focus=False):
                yield Steady(id="progress")
                yield Steady(id="verdict")
                with Horizontal(id="charts"):
                    yield CurvesPlot(id="curves", classes="panel")
                    with VerticalScroll(id="by_task", classes="panel", can_focus=False):
                        yield Static(id="tasks", markup=False)
                with Horizontal(id="panels"):
                    for name in ("batch", "company", "machine"):
                        yield Steady(id=name, classes="panel")

    def on_mount(self) -> None:
        for name, (title, text) in TERMS.items():
            panel = self.query_one(f"#{name}")
            # The curves name themselves.
            panel.border_title = title or panel.border_title
            panel.tooltip = text

    def on_resize(self) -> None:
        columns, rows = ABREAST
        self.set_class(self.app.size.width < columns or self.app.size.height < rows, "-stacked")
        self._arrange()
        self.refresh_node(Change.ALL)

    def _arrange(self) -> None:
        both = self.app.size.width >= TWO_PANES
        self.set_class(both, "-both")
        self.set_class(self._view == BY_TASK and not both, "-tasks")
        if both and self._view == BY_TASK:
            self._view = Shown.REWARD
        self.query_one(CurvesPlot).shown = Shown.REWARD if self._view == BY_TASK else Shown(self._view)

    def action_next_view(self) -> None:
        views = [Shown.REWARD, *(() if self.has_class("-both") else (BY_TASK,)), Shown.TEACHING, Shown.SPEED]
        self._view = views[(views.index(self._view) + 1) % len(views)]
        self._arrange()
        # In a small terminal the panels may be in sight instead.
        self.query_one("#now").scroll_home(animate=False)
        self.refresh_node(Change.ROUND)

    def action_zoom(self, nearer: int) -> None:
        self._look(self.query_one(CurvesPlot).window.zoomed(nearer > 0, self.sapo.state.history.last_round))

    def action_shift(self, by: int) -> None:
        self._look(self.query_one(CurvesPlot).window.moved(by, self.sapo.state.history.last_round))

    def action_whole(self) -> None:
        self._look(Window())

    def _look(self, window: Window) -> None:
        self.query_one(CurvesPlot).window = window
        self._part = None
        self.refresh_node(Change.ROUND)

    @work(group="part", exclusive=True)
    async def _read_part(self) -> None:
        """Read the rounds of the window in full; the history of a long run has means of many."""
        plot = self.query_one(CurvesPlot)
        limits = plot.window.limits(self.sapo.state.history.last_round)
        reply = await self.read(partial(self.sapo.launcher.history, rounds=limits))
        if reply is not None and limits == plot.window.limits(self.sapo.state.history.last_round):
            self._part = Curves.from_reply(reply)
            plot.show(self.sapo.state.history, self._part)

    @work(group="tasks", exclusive=True)
    async def _read_tasks(self) -> None:
        if (outcome := await self.read(self.sapo.launcher.outcome)) is not None:
            self._tasks = () if outcome.report.learned is None else outcome.report.learned.tasks
            self._show_tasks()

    def _show_tasks(self) -> None:
        width = self.app.size.width
        columns = (width // PANE_SHARE if self.has_class("-both") else width) - 7
        self.query_one("#tasks", Static).update(texts.tasks_text(self._tasks, columns))

    def _show_charts(self) -> None:
        history, plot = self.sapo.state.history, self.query_one(CurvesPlot)
        if plot.window.rounds and history.curves.bucket > 1:
            self._read_part()
        else:
            self._part = None
        plot.show(history, self._part)
        if self.has_class("-both") or self._view == BY_TASK:
            self._show_tasks()
            evaluated = (id(history), *(item.round for item in history.held_out[-1:]))
            if evaluated != self._evaluated:
                self._evaluated = evaluated
                self._read_tasks()

    def node_changed(self, change: Change) -> None:
        state = self.sapo.state
        if change & Change.EVENT:
            self._show_news()
        has_data = state.standing is Standing.ATTACHED or bool(state.history.last_round)
        self.query_one("#running", ContentSwitcher).current = "now" if has_data else "waiting"
        if not has_data:
            self.query_one("#waiting", Static).update(self._waiting())
            return
        if change & (Change.PROGRESS | Change.ROUND | Change.STATUS | Change.STANDING):
            # Without padding and, if there is one, the scroll bar.
            width = self.app.size.width - 2 - self.has_class("-stacked")
            line = texts.now_text(state, self.sapo.keeper.lines, max(36, width))
            # Only a sentence may need more than one line.
            sentence = bool(change & Change.STANDING) or state.standing is Standing.STARTING
            self.query_one("#progress", Steady).put(line, layout=sentence)
        if change & (Change.ROUND | Change.STATUS):
            mood, sentences = texts.is_it_working(state.history, state.status)
            verdict = self.query_one("#verdict", Steady)
            verdict.set_classes(f"-{mood}")
            verdict.put(f"{MOODS[mood]} Is it working? {sentences}")
            stacked = self.has_class("-stacked")
            lines = 100 if stacked else TALL_LINES if self.app.size.height >= TALL else LINES
            colors = curve_colors(self.app.current_theme)
            self.query_one("#batch", Steady).put(texts.batch_text(state.status, colors, lines), layout=stacked)
            self.query_one("#company", Steady).put(texts.peers_text(state, lines), layout=stacked)
            self.query_one("#machine", Steady).put(texts.machine_text(state, lines), layout=stacked)
        if change & Change.ROUND:
            self._show_charts()

    def _show_news(self) -> None:
        """Show what was learned while nobody looked, until another screen is shown."""
        news = self.query_one("#news", Steady)
        news.set_class(bool(self.sapo.news), "-some")
        if self.sapo.news:
            news.put(f"{self.sapo.news}. Key 8 shows more.")

    def on_screen_suspend(self) -> None:
        self.sapo.news = ""

    def _waiting(self) -> str:
        match self.sapo.state.standing:
            case Standing.LOOKING:
                return "Looking for a running node ..."
            case Standing.STARTING:
                lines = "\n".join(f"  {printable(line)}" for line in self.sapo.keeper.lines[-12:])
                crowded = texts.crowded_text(self.sapo.state.load)
                return "\n\n".join(filter(None, (STARTING, lines, crowded and f"{crowded.capitalize()}.")))
            case _:
                return self.sapo.state.no_node_text("")
