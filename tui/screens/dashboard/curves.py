"""Curves over rounds: rewards, the share of questions that teach, speed; before the first round, the head start."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from rich.text import Text
from textual.app import RenderResult
from textual.geometry import Size

from sapo_edge.tui.look.themes import CurveColors, curve_colors
from sapo_edge.tui.node.history import Curves, Evaluation, History
from sapo_edge.tui.widgets.plot import NO_ROUND, RoundsPlot, top_of_share

INTERVAL_COLUMNS = 5
"""Columns for each evaluation from which its interval is drawn; with less, only that of the last one."""
INTERVAL_MARKS = 40
"""Marks of an interval: more than a plot has rows, so that it has no gaps."""
LEAST = 10
"""Fewest rounds of a part."""


@dataclass(frozen=True, slots=True)
class Window:
    """The rounds that are shown: so many, 0 for the whole run, up to `end`; 0 follows the newest round."""

    rounds: int = 0
    end: int = 0

    def limits(self, last: int) -> tuple[int, int]:
        """The first and the last round of the axis, of a run whose newest round is `last`."""
        if not self.rounds:
            return 0, max(last, LEAST)
        end = max(min(self.end or last, last), self.rounds)
        return end - self.rounds, end

    def zoomed(self, nearer: bool, last: int) -> Window:
        """Half or twice as many rounds, with the same middle unless it follows the newest round."""
        first, end = self.limits(last)
        span = end - first
        rounds = max(LEAST, span // 2) if nearer else 2 * span
        if rounds >= max(last, LEAST):
            return Window()
        if not self.end:
            return Window(rounds)
        return Window(rounds, self.end + (rounds - span) // 2)._within(last)

    def moved(self, parts: int, last: int) -> Window:
        """Later by so many halves of it; earlier if negative."""
        if not self.rounds:
            return self
        _, end = self.limits(last)
        return Window(self.rounds, end + parts * max(1, self.rounds // 2))._within(last)

    def _within(self, last: int) -> Window:
        """This window, within the run; at its end it follows the newest round."""
        return Window(self.rounds, 0 if self.end >= last else max(self.rounds, self.end))


class Shown(StrEnum):
    """What the curves show; the title of the plot."""

    REWARD = "Reward"
    TEACHING = "Questions that teach"
    SPEED = "Speed, tokens a second"


class CurvesPlot(RoundsPlot):
    """Rewards from 0 to 1 with held-out accuracy as points and their intervals; or one other curve."""

    def __init__(self, *, id: str, classes: str) -> None:
        super().__init__(id=id, classes=classes)
        self.shown = Shown.REWARD
        self.window = Window()
        self._history = History()
        self._part: Curves | None = None
        self._drawn: tuple[Size, str] | None = None
        self._version: tuple[object, ...] = ()
        self._picture = Text()

    def on_mount(self) -> None:
        self._title()
        self.app.theme_changed_signal.subscribe(self, lambda theme: self._title())

    def _title(self) -> None:
        colors = curve_colors(self.app.current_theme)
        self.border_subtitle = "updates, not rounds: these follow" if self._is_ahead else ""
        if self._is_ahead:
            self.border_title = f"Head start by update  [{colors.held_out}]● held-out[/]"
            return
        curves = f"  [{colors.own}]⠒⠒ own[/]  [{colors.external}]∙∙ others[/]  [{colors.held_out}]● held-out[/]"
        first, last = self.window.limits(self._history.last_round)
        rounds = f", rounds {first} to {last}" if self.window.rounds else " by round"
        self.border_title = f"{self.shown}{rounds}{curves if self.shown is Shown.REWARD else ''}"

    def show(self, history: History, part: Curves | None = None) -> None:
        """Draw a history, if anything has changed; a `part` has more points for the window, where they are known."""
        version = (
            id(history), history.last_round, len(history.held_out), len(history.ahead), self.shown, self.window,
            id(part),
        )  # fmt: skip
        if version == self._version:
            return
        self._history, self._part, self._version = history, part, version
        self._title()
        self._drawn = None
        self.refresh()

    @property
    def _is_ahead(self) -> bool:
        return self.shown is Shown.REWARD and not self._history.last_round and bool(self._history.ahead)

    def render(self) -> RenderResult:
        """The plot; redrawn only after a change, as it takes some milliseconds."""
        if not self._history.last_round and not self._history.held_out and not self._is_ahead:
            return Text(NO_ROUND, style="dim")
        look = (self.size, self.app.theme)
        if self._drawn != look:
            self._draw()
            rendered = super().render()
            assert isinstance(rendered, Text)
            self._picture, self._drawn = rendered, look
        return self._picture

    def _draw(self) -> None:
        self.plt.clear_figure()
        if self._is_ahead:
            self._draw_ahead()
            return
        curves = self._part or self._history.curves
        colors = curve_colors(self.app.current_theme)
        first, last = self.window.limits(self._history.last_round)
        lines = {
            Shown.REWARD: ((curves.external, colors.external, "∙"), (curves.own, colors.own, "braille")),
            Shown.TEACHING: ((curves.informative, colors.own, "braille"),),
            Shown.SPEED: ((curves.speed, colors.own, "braille"),),
        }[self.shown]
        highest = 0.0
        for values, color, marker in lines:
            highest = max(highest, self.line(curves.round, values, first, last, color, marker))
        if self.shown is Shown.REWARD:
            highest = max(highest, self._draw_held_out(first, last, colors))
        top = _nice(highest) if self.shown is Shown.SPEED else top_of_share(highest)
        self.set_axes(first, last, top)

    def _draw_ahead(self) -> None:
        """Draw the accuracies before training, and after so many updates of the head start."""
        base = [item for item in self._history.held_out if not item.round]
        points = [*((0, item.accuracy) for item in base), *self._history.ahead]
        updates, color = [x for x, _ in points], curve_colors(self.app.current_theme).held_out
        highest = self.line(updates, [y for _, y in points], 0, updates[-1], color)
        self.points([mark for item in base for mark in _interval(item)], color, "│")
        self.points(points, color, "●")
        self.set_axes(0, updates[-1], top_of_share(highest))

    def _draw_held_out(self, first: int, last: int, colors: CurveColors) -> float:
        """Draw accuracies as points and their 95 % intervals as lines; return the highest point."""
        seen = [item for item in self._history.held_out if first <= item.round <= last]
        roomy = len(seen) * INTERVAL_COLUMNS <= self.size.width
        marks = [mark for item in (seen if roomy else seen[-1:]) for mark in _interval(item)]
        self.points(marks, colors.held_out, "│")
        self.points([(item.round, item.accuracy) for item in seen], colors.held_out, "●")
        return max((item.accuracy for item in seen), default=0.0)


def _interval(item: Evaluation) -> list[tuple[int, float]]:
    step = (item.high - item.low) / INTERVAL_MARKS
    return [(item.round, item.low + number * step) for number in range(INTERVAL_MARKS + 1)]


def _nice(highest: float) -> float:
    """The least of 1, 2 or 5 times a power of ten above a number."""
    power = 10.0 ** math.floor(math.log10(highest)) if highest > 0 else 1.0
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= highest)
