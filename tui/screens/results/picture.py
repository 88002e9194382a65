"""A picture of the curve of a run, to be shown to others: SVG, which every browser opens, and PNG."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from sapo_edge.control.report import Report, TaskCourse
from sapo_edge.control.report_words import describe_energy, describe_task, one_line, spoken
from sapo_edge.control.run_report import RunReport
from sapo_edge.plain import counted, duration, printable
from sapo_edge.tui.look.themes import DARK, CurveColors, curve_colors
from sapo_edge.tui.node.history import History

if TYPE_CHECKING:
    from PIL import ImageDraw

WIDTH, HEIGHT = 1200, 630
"""Pixels: the shape in which most places show a shared picture."""
LEFT, TOP, RIGHT, BOTTOM = 90, 176, 1160, 560
"""Edges of the plot in pixels."""
TASKS, ROW = 840, 54
"""Where the list of tasks begins, and the height of one, in pixels."""
MOST_TASKS = (BOTTOM - TOP) // ROW
LINES = 5
"""Horizontal lines of the grid."""
MOST_CHARACTERS = 90
"""Most characters of a line below the title: in a wide font they fill the width."""
SCALE = 2
"""A PNG is drawn so many times as large, then reduced: Pillow draws lines with hard edges."""
FONT = Path("mpl-data", "fonts", "ttf", "DejaVuSans.ttf")
"""In matplotlib's directory. Pillow's own font lacks most letters with accents."""
GRAY, GRID = "#8b98a5", "#27323a"


@dataclass(frozen=True, slots=True)
class Line:
    """A line through points, in pixels."""

    points: Sequence[tuple[float, float]]
    color: str
    width: int = 1

    def svg(self) -> str:
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in self.points)
        return f'<polyline points="{points}" fill="none" stroke="{self.color}" stroke-width="{self.width}"/>'

    def paint(self, image: ImageDraw.ImageDraw, font: Path) -> None:
        points = [(SCALE * x, SCALE * y) for x, y in self.points]
        image.line(points, self.color, SCALE * self.width, joint="curve")


@dataclass(frozen=True, slots=True)
class Dot:
    """A filled circle, in pixels."""

    x: float
    y: float
    color: str
    radius: int = 8

    def svg(self) -> str:
        return f'<circle cx="{self.x:.1f}" cy="{self.y:.1f}" r="{self.radius}" fill="{self.color}"/>'

    def paint(self, image: ImageDraw.ImageDraw, font: Path) -> None:
        image.circle((SCALE * self.x, SCALE * self.y), SCALE * self.radius, self.color)


@dataclass(frozen=True, slots=True)
class Text:
    """A printable text on its base line, in pixels."""

    x: float
    y: float
    text: str
    size: int
    color: str
    at_end: bool = False

    def svg(self) -> str:
        anchor = "end" if self.at_end else "start"
        place = f'x="{self.x:.1f}" y="{self.y:.1f}" font-size="{self.size}" fill="{self.color}" text-anchor="{anchor}"'
        return f"<text {place}>{escape(printable(self.text))}</text>"

    def paint(self, image: ImageDraw.ImageDraw, font: Path) -> None:
        from PIL import ImageFont

        # DejaVu is a tenth wider than the fonts of a browser.
        loaded = ImageFont.truetype(font, SCALE * self.size * 0.9)
        anchor = "rs" if self.at_end else "ls"
        image.text((SCALE * self.x, SCALE * self.y), printable(self.text), self.color, loaded, anchor)


Shape = Line | Dot | Text


def draw_run(run: RunReport, learned: Report | None, history: Mapping[str, Any]) -> list[Shape]:
    """Draw a run of at least one round, with what it has learned by the questions that were asked last."""
    power = describe_energy(run) if run.watt_hours else ""
    parts = (run.manifest, counted(run.run.rounds, "round"), f"{duration(run.worked)} of work", power)
    lines = [] if learned is None else [*spoken(learned)]
    subtitle = [" · ".join(filter(None, parts)), *lines[:1], " · ".join(lines[1:3])]
    tasks = () if learned is None else learned.tasks
    title = "What a small model learned on one computer"
    return draw(History.from_reply(history), title, subtitle, tasks)


def draw(history: History, title: str, subtitle: Sequence[str], tasks: Sequence[TaskCourse] = ()) -> list[Shape]:
    """Draw own and others' rewards as lines, and held-out accuracy as points with their 95 % intervals.

    The history has at least one round. Of the subtitle three lines are drawn, whose ends may be cut off. The tasks'
    right answers are listed beside the plot.
    """
    right, colors = TASKS - 60 if tasks else RIGHT, curve_colors(DARK)
    last = max(1, history.last_round, *(evaluation.round for evaluation in history.held_out))
    pixels = (right - LEFT) / last
    lines = [one_line(line, MOST_CHARACTERS) for line in subtitle[:3]]
    return [
        Text(LEFT, 56, title, 36, DARK.foreground or ""),
        *(Text(LEFT, 92 + 28 * number, line, 22, GRAY) for number, line in enumerate(lines)),
        *_grid(last, right),
        *_curve(history.curves.round, history.curves.external, pixels, colors.external),
        *_curve(history.curves.round, history.curves.own, pixels, colors.own),
        *_points(history, pixels, colors.held_out),
        *_list(tasks, colors.held_out),
        *_legend(colors),
    ]


def to_svg(shapes: Sequence[Shape]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="Inter, Helvetica, Arial, sans-serif">'
    )
    background = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="{DARK.background}"/>'
    return "\n".join([head, background, *(shape.svg() for shape in shapes), "</svg>\n"])


def to_png(shapes: Sequence[Shape]) -> bytes | None:
    """The picture for everything else; None without Pillow and matplotlib's font: the extra `experiment` has both."""
    try:
        from PIL import Image, ImageDraw
    except ImportError:
        return None
    # Without loading it, which takes long.
    matplotlib = find_spec("matplotlib")
    font = Path((matplotlib and matplotlib.origin) or "").parent / FONT
    if not font.is_file():
        return None
    image = Image.new("RGB", (SCALE * WIDTH, SCALE * HEIGHT), DARK.background or "")
    painter = ImageDraw.Draw(image)
    for shape in shapes:
        shape.paint(painter, font)
    data = io.BytesIO()
    image.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS).save(data, "PNG")
    return data.getvalue()


def _grid(last: int, right: int) -> Iterator[Shape]:
    for number in range(LINES + 1):
        share = number / LINES
        y = _y(share)
        yield Line(((LEFT, y), (right, y)), GRID)
        yield Text(LEFT - 12, y + 6, f"{100 * share:.0f} %", 18, GRAY, at_end=True)
    yield Text(LEFT, BOTTOM + 30, "before training", 18, GRAY)
    yield Text(right, BOTTOM + 30, f"round {last}", 18, GRAY, at_end=True)


def _curve(rounds: Sequence[int], values: Sequence[float], pixels: float, color: str) -> Iterator[Shape]:
    pairs = zip(rounds, values, strict=True)
    points = [(LEFT + pixels * round, _y(value)) for round, value in pairs if not math.isnan(value)]
    if points:
        yield Line(points, color, 2)


def _points(history: History, pixels: float, color: str) -> Iterator[Shape]:
    for evaluation in history.held_out:
        x = LEFT + pixels * evaluation.round
        yield Line(((x, _y(evaluation.low)), (x, _y(evaluation.high))), color, 3)
        yield Dot(x, _y(evaluation.accuracy), color)


def _list(tasks: Sequence[TaskCourse], color: str) -> Iterator[Shape]:
    for number, task in enumerate(tasks[:MOST_TASKS]):
        y = TOP + 16 + ROW * number
        yield Text(TASKS, y, printable(task.name)[:18], 20, DARK.foreground or "")
        yield Text(RIGHT, y, f"{task.before} → {task.now} of {task.questions}", 20, color, at_end=True)
        yield Text(RIGHT, y + 22, describe_task(task), 16, GRAY, at_end=True)
    if len(tasks) > MOST_TASKS:
        yield Text(RIGHT, BOTTOM + 30, f"and {len(tasks) - MOST_TASKS} more", 18, GRAY, at_end=True)


def _legend(colors: CurveColors) -> Iterator[Shape]:
    x, y = LEFT, HEIGHT - 14
    yield Dot(x + 10, y - 6, colors.held_out)
    for name, color in (
        ("new questions, with 95 % intervals", colors.held_out),
        ("own answers", colors.own),
        ("others' answers", colors.external),
    ):
        if color != colors.held_out:
            yield Line(((x, y - 6), (x + 20, y - 6)), color, 3)
        yield Text(x + 28, y, name, 18, color)
        x += 60 + 10 * len(name)
    yield Text(RIGHT, y, "sapo-edge", 18, GRAY, at_end=True)


def _y(share: float) -> float:
    return BOTTOM - (BOTTOM - TOP) * min(1.0, max(0.0, share))
