"""The results: what the run has learned, and what to do with it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.widgets import Button, Static

from sapo_edge.control.report_words import MORE_ROUNDS, spoken
from sapo_edge.errors import SapoError
from sapo_edge.plain import counted, printable
from sapo_edge.tui.node.launcher import Outcome
from sapo_edge.tui.node.processes import JobResult
from sapo_edge.tui.node.state import Standing
from sapo_edge.tui.screens.results.texts import report_text
from sapo_edge.tui.screens.view import Change, View
from sapo_edge.tui.widgets.job_line import JobLine
from sapo_edge.tui.widgets.restart import STARTS

if TYPE_CHECKING:
    from sapo_edge.control.report import Report

ROOMY = 72
"""Columns from which the buttons have whole labels."""
TWO_ROWS, ONE_ROW = 24, 56
"""Columns from which the buttons stand in two rows, and in one. Below, a third of the width holds no letter."""
PICTURE = "sapo-curve"
"""Name of the picture's files, without their ends."""


class Results(View):
    """What was learned: before and now, by task, three questions, the adapter."""

    MODE = "results"
    SCROLLED = "#learned"
    DEFAULT_CSS = """
    Results #actions { height: 1; padding: 0 1; }
    Results #actions.-rows { layout: grid; grid-size: 3 2; height: 2; }
    Results #actions Button { min-width: 4; width: auto; margin-right: 1; background: $panel; padding: 0 1; }
    Results #actions Button:focus { background: $primary; color: $background; text-style: bold underline; }
    """
    HELP_TEXT = """\
What the run has learned so far; the screen opens by itself when a run ends.

**Before and now** are shares of right answers to questions that the model is never trained on: of the model before
training, and of the best adapter. The interval of the rise says what luck could explain: if it includes 0, nothing is
shown yet. **Test questions** (`y`) ask both models questions by which nothing was chosen.

**Export** (`x`) writes the adapter, or a whole model, for another program. **40 rounds more** (`u`) continues the run
from where it is. **Picture** (`P`) saves the curve as an SVG file, which every browser opens, and as a PNG file where
matplotlib is installed. **Runs** (`R`) lists all runs, compares two, begins a new one beside the old one, and watches
an experiment.
"""
    BUTTONS: ClassVar = {
        "export": ("x", "Export", "Export", "Write the adapter for another program"),
        "chat": ("4", "Chat", "Chat", ""),
        "test": ("y", "Test questions", "Test", "Ask both models the test questions"),
        "more": ("u", f"{MORE_ROUNDS} rounds more", "More", f"Continue the run for {MORE_ROUNDS} rounds"),
        "picture": ("P,shift+p", "Picture", "Picture", "Save a picture of the curve"),
    }
    """Keys, label, short label and, of a key of this screen, what it does, by action."""
    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(keys, action, label, show=False, id=f"results.{action}", tooltip=does)
            for action, (keys, label, _, does) in BUTTONS.items()
            if does
        ),
        Binding("c", "copy", "Copy the result", show=False, id="results.copy"),
        Binding(
            "R,shift+r",
            "app.switch_mode('runs')",
            "Runs",
            key_display="R",
            id="results.runs",
            tooltip="All runs, compared",
        ),
        Binding("up,k", "scroll(-1)", "Scroll up", show=False, id="results.up"),
        Binding("down,j", "scroll(1)", "Scroll down", show=False, id="results.down"),
        Binding("pageup", "scroll(0, -1)", "Scroll up a page", show=False, id="results.page_up"),
        Binding("pagedown", "scroll(0, 1)", "Scroll down a page", show=False, id="results.page_down"),
        Binding("escape", "stop", "Stop the command", show=False, id="results.stop"),
    ]
    _outcome: Outcome | None = None
    _tested: Report | None = None
    _tested_adapter = ""
    _read: tuple[object, ...] = ()

    def content(self) -> ComposeResult:
        with VerticalScroll(id="learned", classes="panel", can_focus=False) as panel:
            panel.border_title = "What was learned"
            yield Static("reading ...", id="report", markup=False)
        yield JobLine(id="job")
        with Horizontal(id="actions"):
            for action in self.BUTTONS:
                run = "app.switch_mode('chat')" if action == "chat" else f"screen.{action}"
                yield Button(id=action, action=run, compact=True)

    def on_resize(self) -> None:
        roomy = self.app.size.width >= ROOMY
        self.query_one("#actions").set_class(TWO_ROWS <= self.app.size.width < ONE_ROW, "-rows")
        for action, (keys, label, short, _) in self.BUTTONS.items():
            self.query_one(f"#{action}", Button).label = f"{keys[0]} {label if roomy else short}"
        self._show()

    def node_changed(self, change: Change) -> None:
        state = self.sapo.state
        now = (state.standing, len(state.history.held_out), state.status.get("comparison"), state.round // 10)
        if change == Change.ALL or now != self._read:
            self._read = now
            self.action_reload()

    @work(group="results-read", exclusive=True)
    async def action_reload(self) -> None:
        report = self.query_one("#report", Static)
        outcome = await self.read(self.sapo.launcher.outcome, lambda error: report.update(printable(error)))
        if outcome is None:
            return
        if outcome.report.adapter != self._tested_adapter:
            self._tested = None
        self._outcome = outcome
        self._show()
        self.refresh_bindings()

    def _show(self) -> None:
        if self._outcome is None or not self.has_widgets:
            return
        panel = self.query_one("#learned")
        rounds = self._outcome.report.run.rounds
        report = self._report
        learned = rounds if report is None else report.round
        since = f"; {counted(rounds, 'round')} are done" if learned < rounds else ""
        course = counted(learned, "round") if learned else "the head start"
        panel.border_title = "What was learned" + (f" in {course}{since}" if rounds or report else "")
        text = report_text(self._outcome.report, report, max(36, self.app.size.width - 5))
        self.query_one("#report", Static).update(text)

    @property
    def _report(self) -> Report | None:
        return self._tested or (None if self._outcome is None else self._outcome.report.learned)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        busy = self.has_widgets and self.query_one(JobLine).busy
        if action == "stop":
            return busy
        outcome = self._outcome
        if action in ("export", "test"):
            return True if outcome is not None and outcome.report.adapter and not busy else None
        if action == "copy":
            return True if self._report is not None else None
        if action == "picture":
            return True if outcome is not None and outcome.history.get("round") else None
        return True

    def action_export(self) -> None:
        from sapo_edge.tui.screens.results.export import Export

        self.app.push_screen(Export(self.sapo.launcher))

    def action_test(self) -> None:
        job = self.sapo.launcher.job("eval")
        self.query_one(JobLine).begin(job, "both models answer the test questions", self._show_test)

    def _show_test(self, result: JobResult) -> None:
        if self._outcome is None:
            return
        report, adapter = self._outcome.report, str(result.record["adapter_path"])
        if adapter != report.adapter:
            self.query_one(JobLine).say("the adapter that was asked is no longer the one above: y asks again", "bad")
            return
        self._tested, self._tested_adapter = tested(result.record, report.adapter_round, report.learned), adapter
        self.query_one(JobLine).say("✓ asked: the figures above are of the test questions", "good")
        self._show()

    @work(group="results-more", exclusive=True)
    async def action_more(self) -> None:
        outcome = self._outcome
        if outcome is None:
            return
        state, line = self.sapo.state, self.query_one(JobLine)
        if state.standing is Standing.ATTACHED:
            round, limit = state.round, state.status.get("rounds")
        elif state.standing is Standing.ENDED:
            # Another run may have been chosen since: its rounds are those of the outcome.
            round, limit = 0, await asyncio.to_thread(self.sapo.launcher.setting, "rounds")
        else:
            # It has read its settings already.
            line.say(STARTS, "bad")
            return
        target = max(round, outcome.report.run.rounds, int(limit or 0)) + MORE_ROUNDS
        try:
            await asyncio.to_thread(self.sapo.launcher.set, "rounds", str(target))
            if state.standing is Standing.ATTACHED:
                await self.sapo.request("settings", {"rounds": target})
        except SapoError as error:
            line.fail(error)
            return
        if state.standing is Standing.ENDED:
            self.sapo.keeper.start()
        line.say(f"✓ the run continues and stops after round {target}; the setting rounds says so", "good")

    def action_picture(self) -> None:
        from sapo_edge.tui.screens.results.picture import draw_run, to_png, to_svg

        if self._outcome is None:
            return
        shapes = draw_run(self._outcome.report, self._report, self._outcome.history)
        self.sapo.save(to_svg(shapes).encode(), f"{PICTURE}.svg")
        if (png := to_png(shapes)) is not None:
            self.sapo.save(png, f"{PICTURE}.png")

    def action_copy(self) -> None:
        if self._report is not None:
            self.app.copy_to_clipboard("\n".join(spoken(self._report)))
            self.notify("the result is copied", timeout=3)

    def action_stop(self) -> None:
        self.query_one(JobLine).stop()


def tested(record: Mapping[str, Any], round: int, before: Report | None) -> Report:
    """The report of `sapo eval --json`, with the examples of the journal's report before it."""
    from sapo_edge.control.report import Report, by_task
    from sapo_edge.evaluate import Gain

    base, adapter = record["base"], record["adapter"]
    marks = ({name: counts["marks"] for name, counts in side["entries"].items()} for side in (base, adapter))
    examples, own = ((), ()) if before is None else (before.examples, before.own)
    counts = base["questions"], base["correct"], adapter["correct"]
    formed = base["formed"], adapter["formed"]
    return Report(
        "test", round, *counts, Gain(**record["gain"]), by_task(*marks), examples, formed, record["base_examples"], own
    )
