"""The runs of this installation: two compared, a new one begun, an experiment watched."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import getters, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import ContentSwitcher, Static

from sapo_edge.errors import ConfigError, SapoError
from sapo_edge.plain import printable
from sapo_edge.state.paths import check_run_name
from sapo_edge.tui.node.history import History
from sapo_edge.tui.node.state import Standing
from sapo_edge.tui.screens.runs.texts import comparison_text, experiment_text
from sapo_edge.tui.screens.runs.widgets import RunList, RunsPlot
from sapo_edge.tui.screens.view import Change, View
from sapo_edge.tui.widgets.cursor_list import CursorList
from sapo_edge.tui.widgets.dialog import Ask, typed_path
from sapo_edge.tui.widgets.job_line import JobLine
from sapo_edge.tui.widgets.restart import stopped

if TYPE_CHECKING:
    from sapo_edge.control.runs import RunView

BOTH = 72
"""Columns from which curves and words stand beside each other; v shows the curves below."""
WATCH_SECONDS = 5.0
"""Seconds between two looks at an experiment."""
NEW = (
    "A run from the untrained model, with the settings of now. The others stay as they are. A running node finishes "
    "its round and stops, and the new run begins. Its name:"
)
USE = "A running node finishes its round and stops; then this run goes on from its last checkpoint."
SHARED = " It was in a swarm. The node works alone now, as the setting network (7) says, and that stays so."
WATCH = "A directory that `sapo experiment` writes to. Nothing in it is changed."
IN_RUNS = frozenset({"mark", "new", "use", "watch", "view"})


class Runs(View):
    """The list of runs, and the one under the cursor compared with another; or an experiment."""

    MODE = "runs"
    NAV = "results"
    DEFAULT_CSS = """
    Runs #list { min-height: 3; max-height: 6; }
    Runs.-tall #list { max-height: 12; }
    Runs.-one #plot { display: none; }
    Runs.-one.-curves #plot { display: block; }
    Runs.-one.-curves #words { display: none; }
    Runs.-tiny #list { max-height: 4; }
    """
    HELP_TEXT = """\
A **run** is a journal, checkpoints and a pool of its own. All runs share this node's identity, its swarm and the
settings. **●** is the run that goes on.

Below the list, the run under the cursor is compared with the one marked **=** (`space` marks another): curves of own
answers as lines, held-out accuracy as points, right answers by task, settings that differ. It says which run is better
only if both were asked the same questions; the best evaluation of a long run looks a little better than it is.

`n` begins a new run beside the others, `u` returns to the one under the cursor. Both stop a running node after its
round.

`w` watches an experiment of `sapo experiment` while it runs: how far it is, and the arms so far.
"""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "new", "New run", id="runs.new", tooltip="Begin a run beside the others"),
        Binding("u", "use", "Go on", id="runs.use", tooltip="Return to this run"),
        Binding("space", "mark", "Compare", id="runs.mark", tooltip="Compare others with this run"),
        Binding("w", "watch", "Experiment", id="runs.watch", tooltip="Watch an experiment"),
        Binding("v", "view", "Curves or words", show=False, id="runs.view"),
        Binding("pageup", "scroll(0, -1)", "Scroll up", show=False, id="runs.up"),
        Binding("pagedown", "scroll(0, 1)", "Scroll down", show=False, id="runs.down"),
        Binding("escape", "back", "Back", id="runs.back", tooltip="Back to the runs"),
    ]
    list = getters.query_one(RunList)

    def __init__(self) -> None:
        super().__init__()
        self._histories: dict[str, History] = {}
        self._compared = ""
        self._experiment = ""
        self._read: tuple[object, ...] = ()

    def content(self) -> ComposeResult:
        with ContentSwitcher(initial="all", id="pages"):
            with Vertical(id="all"):
                yield RunList(id="list")
                with Horizontal(id="two"):
                    yield RunsPlot(id="plot", classes="panel")
                    with VerticalScroll(id="words", classes="panel", can_focus=False) as words:
                        words.border_title = "Compared"
                        yield Static(id="comparison", markup=False)
            with VerticalScroll(id="experiment", classes="panel", can_focus=False):
                yield Static(id="arms", markup=False)
        yield JobLine(id="job")

    def on_mount(self) -> None:
        self.list.focus()
        self.set_interval(WATCH_SECONDS, self._look_again)

    def on_resize(self) -> None:
        self.set_class(self.app.size.width < BOTH or self.app.size.height < 20, "-one")

    @property
    def in_experiment(self) -> bool:
        return self.query_one("#pages", ContentSwitcher).current == "experiment"

    def node_changed(self, change: Change) -> None:
        state = self.sapo.state
        now = (state.standing, len(state.history.held_out), state.round // 10)
        if change == Change.ALL or now != self._read:
            self._read = now
            self._load()

    @work(group="runs-read", exclusive=True)
    async def _load(self) -> None:
        runs = await self.read(self.sapo.launcher.runs, self._fail)
        if runs is None:
            return
        self._histories.clear()
        names = [run.name for run in runs]
        if self._compared not in names:
            self._compared = next((run.name for run in runs if run.current), "")
        self.list.show(runs, self._compared)
        self._compare()
        self.refresh_bindings()

    @work(group="runs-compare", exclusive=True)
    async def _compare(self) -> None:
        run, other = self.list.chosen, self._other
        if run is None:
            return
        self.query_one("#comparison", Static).update(comparison_text(run, other))
        shown = [run] if other is None else [run, other]
        for name in (view.name for view in shown):
            if name not in self._histories:
                reply = await self.read(partial(self.sapo.launcher.history, name), self._fail)
                if reply is None:
                    return
                self._histories[name] = History.from_reply(reply)
        self.query_one(RunsPlot).show([(view.name, self._histories.get(view.name, History())) for view in shown])

    @property
    def _other(self) -> RunView | None:
        """The run to compare with: the marked one, or any other if that is under the cursor."""
        chosen = self.list.chosen
        others = [run for run in self.list.rows if run is not chosen]
        marked = [run for run in others if run.name == self._compared]
        return next(iter((*marked, *others)), None)

    def _fail(self, error: SapoError) -> None:
        self.query_one(JobLine).fail(error)

    def on_cursor_list_moved(self, message: CursorList.Moved) -> None:
        message.stop()
        self._compare()
        self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if not self.has_widgets:
            return True
        if action == "back":
            return self.in_experiment
        if action == "use" and not self.in_experiment:
            run, node_runs = self.list.chosen, self.sapo.state.standing is not Standing.ENDED
            # A node continues the current one already, unless none runs.
            return True if run is not None and not (run.current and node_runs) else None
        return not (action in IN_RUNS and self.in_experiment)

    def action_mark(self) -> None:
        if (run := self.list.chosen) is not None:
            self._compared = run.name
            self.list.show(self.list.rows, run.name)
            self._compare()

    def action_view(self) -> None:
        self.toggle_class("-curves")

    @property
    def scrolled(self) -> Widget:
        return self.query_one("#experiment" if self.in_experiment else "#words")

    def action_back(self) -> None:
        self._experiment = ""
        self.query_one("#pages", ContentSwitcher).current = "all"
        self.list.focus()
        self.refresh_bindings()

    @work(group="runs-change")
    async def action_new(self) -> None:
        from sapo_edge.state.runs import unused

        proposed = unused([run.name for run in self.list.rows])
        ask = Ask("A new run beside the old one", NEW, proposed, problem=self._wrong_name)
        if name := await self.app.push_screen_wait(ask):
            await self._change("new", name)

    def _wrong_name(self, text: str) -> str:
        """Why a new run can't have a name, told before the node is stopped for it; "" if it can."""
        try:
            name = check_run_name(text.strip())
        except ConfigError as error:
            return printable(error)
        return f"there is a run {name} already" if name in [run.name for run in self.list.rows] else ""

    @work(group="runs-change")
    async def action_use(self) -> None:
        run = self.list.chosen
        if run is None:
            return
        if run.current:
            self.sapo.keeper.start()
            self.query_one(JobLine).say(f"✓ the node starts the run {run.name}", "good")
        else:
            alone = run.settings.get("network") == "swarm" and self.sapo.launcher.setting("network") == "solo"
            about = USE + (SHARED if alone else "")
            if await self.app.push_screen_wait(Ask(f"Go on with {run.name}?", about)):
                await self._change("use", run.name)

    async def _change(self, verb: str, name: str) -> None:
        """Stop the node after its round, change the run, and start the node."""
        line = self.query_one(JobLine)
        if await stopped(self.sapo, line):
            job = self.sapo.launcher.job("runs", verb, name)
            line.begin(job, f"changing to {name}", lambda result: self._changed(name))

    def _changed(self, name: str) -> None:
        self.query_one(JobLine).say(f"✓ the node starts the run {name}", "good")
        self._compared = ""
        self._load()
        self.sapo.state.history = History()
        self.sapo.keeper.start()

    @work(group="runs-watch", exclusive=True)
    async def action_watch(self) -> None:
        here = Path(typed_path("."))
        proposed = next(iter(sorted(here.glob("sapo-experiment-*"))), here)
        directory = await self.app.push_screen_wait(Ask("Watch an experiment", WATCH, str(proposed)))
        if directory:
            self._experiment = typed_path(directory)
            self.query_one("#arms", Static).update("reading ...")
            self.query_one("#experiment").border_title = Content(printable(self._experiment))
            self.query_one("#pages", ContentSwitcher).current = "experiment"
            self.refresh_bindings()
            self._look()

    def _look_again(self) -> None:
        # The first look may take longer than the time between two.
        if self._experiment and self.is_current and not self.sapo.busy("runs-look"):
            self._look()

    @work(group="runs-look", exclusive=True)
    async def _look(self) -> None:
        directory, arms = self._experiment, self.query_one("#arms", Static)
        tell = partial(self.sapo.launcher.experiment, Path(directory))
        state = await self.read(tell, lambda error: arms.update(printable(error)))
        if state is not None and directory == self._experiment:
            arms.update(experiment_text(state, max(36, self.app.size.width - 5)))
