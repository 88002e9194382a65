"""A picture of the curve of a run, to be shown to others: SVG, which every browser opens."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from sapo_edge.plain import printable
from sapo_edge.tui.look.themes import DARK, CurveColors
from sapo_edge.tui.node.history import History

WIDTH, HEIGHT = 1200, 630
"""Pixels: the shape in which most places show a shared picture."""
LEFT, TOP, RIGHT, BOTTOM = 90, 130, 1160, 560
"""Edges of the plot in pixels."""
LINES = 5
"""Horizontal lines of the grid."""


def draw(history: History, title: str, subtitle: str, colors: CurveColors) -> str:
    """Draw own and others' rewards as lines, and held-out accuracy as points with their 95 % intervals.

    Args:
        history: of the run, with at least one round.
        title, subtitle: lines above the plot.
        colors: of the curves.
    """
    last = max(1, history.last_round, *(evaluation.round for evaluation in history.held_out))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="Inter, Helvetica, Arial, sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="{DARK.background}"/>',
        _text(LEFT, 60, title, 36, DARK.foreground or ""),
        _text(LEFT, 98, subtitle, 22, "#8b98a5"),
        *_grid(last),
        *_curve(history.curves.round, history.curves.external, last, colors.external),
        *_curve(history.curves.round, history.curves.own, last, colors.own),
        *_points(history, last, colors.held_out),
        *_legend(colors),
        "</svg>\n",
    ]
    return "\n".join(parts)


def _grid(last: int) -> Iterator[str]:
    for number in range(LINES + 1):
        share = number / LINES
        y = _y(share)
        yield f'<line x1="{LEFT}" y1="{y:.1f}" x2="{RIGHT}" y2="{y:.1f}" stroke="#27323a"/>'
        yield _text(LEFT - 12, y + 6, f"{100 * share:.0f} %", 18, "#8b98a5", "end")
    yield _text(LEFT, BOTTOM + 34, "before training", 18, "#8b98a5")
    yield _text(RIGHT, BOTTOM + 34, f"round {last}", 18, "#8b98a5", "end")


def _curve(rounds: Sequence[int], values: Sequence[float], last: int, color: str) -> Iterator[str]:
    points = " ".join(
        f"{_x(round, last):.1f},{_y(value):.1f}"
        for round, value in zip(rounds, values, strict=True)
        if not math.isnan(value)
    )
    if points:
        yield f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2" stroke-opacity="0.75"/>'


def _points(history: History, last: int, color: str) -> Iterator[str]:
    for evaluation in history.held_out:
        x = _x(evaluation.round, last)
        low, high = _y(evaluation.low), _y(evaluation.high)
        yield f'<line x1="{x:.1f}" y1="{low:.1f}" x2="{x:.1f}" y2="{high:.1f}" stroke="{color}" stroke-width="3"/>'
        yield f'<circle cx="{x:.1f}" cy="{_y(evaluation.accuracy):.1f}" r="8" fill="{color}"/>'


def _legend(colors: CurveColors) -> Iterator[str]:
    x = LEFT
    for name, color in (
        ("● new questions, with 95 % intervals", colors.held_out),
        ("— own answers", colors.own),
        ("— others' answers", colors.external),
    ):
        yield _text(x, HEIGHT - 14, name, 18, color)
        x += 12 * len(name)
    yield _text(RIGHT, HEIGHT - 14, "sapo-edge", 18, "#8b98a5", "end")


def _text(x: float, y: float, text: str, size: int, color: str, anchor: str = "start") -> str:
    shown = escape(printable(text))
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{color}" text-anchor="{anchor}">{shown}</text>'


def _x(round: int, last: int) -> float:
    return LEFT + (RIGHT - LEFT) * round / last


def _y(share: float) -> float:
    return BOTTOM - (BOTTOM - TOP) * min(1.0, max(0.0, share))
