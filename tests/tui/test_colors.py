"""Curves are readable in both themes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import astuple

import pytest
from rich.color_triplet import ColorTriplet
from rich.style import Style
from textual.color import Color

from sapo_edge.tui.app import SapoApp
from sapo_edge.tui.look.themes import DARK, LIGHT, curve_colors
from sapo_edge.tui.screens.dashboard.curves import CurvesPlot
from sapo_edge.tui.screens.view import VIEWS
from tests.tui.fake_launcher import FakeLauncher
from tests.tui.shell import TRUECOLOR, following, segments, still, switch, until

READABLE = 4.5
"""Contrast of WCAG 2.1, level AA."""


def luminance(color: Color) -> float:
    parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in color.normalized]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(one: Color, other: Color) -> float:
    """The contrast ratio of WCAG 2.1, 1 to 21."""
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


async def test_what_the_dashboard_draws_in_colour_can_be_read(launcher: FakeLauncher) -> None:
    async with following(launcher) as (pilot, app):
        plot = app.screen.query_one(CurvesPlot)
        for theme in (DARK, LIGHT):
            app.theme = theme.name
            curves = {tuple(Color.parse(color).rgb) for color in astuple(curve_colors(theme))}
            await until(pilot, lambda curves=curves: curves <= {tuple(color) for color, _ in drawn(app, plot)})  # type: ignore[misc]
            for color, background in drawn(app, plot):
                if tuple(color) in curves:
                    assert contrast(Color(*color), Color(*background)) >= READABLE, (color, background)


def drawn(app: SapoApp, plot: CurvesPlot) -> set[tuple[ColorTriplet, ColorTriplet]]:
    """The colours of the curves and what is behind them."""
    return {
        (segment.style.color.get_truecolor(), segment.style.bgcolor.get_truecolor())
        for strip in app.screen._compositor.render_strips()[plot.region.y : plot.region.bottom]
        for segment in strip
        if segment.style and segment.style.color and segment.style.bgcolor and segment.text.strip(" │─╭╮╰╯┤└┬")
    }


@pytest.mark.parametrize("environ", [{"TERM": "linux", "LANG": "C.UTF-8"}, TRUECOLOR], ids=["16 colours", "truecolor"])
async def test_without_colours_everything_can_be_read(
    launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch, environ: Mapping[str, str]
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with following(launcher, environ=environ) as (pilot, app):
        themes = itertools.cycle((app.theme, "ansi-dark", "sapo-light", "ansi-light", "sapo-dark"))
        for number, (title, theme) in enumerate(zip(VIEWS.values(), themes, strict=False), 1):
            await switch(pilot, number)
            app.theme = theme
            # More than a colour marks the current screen.
            await until(pilot, lambda title=title: is_reversed(app, title))  # type: ignore[misc]
            await still(pilot, 3)
            for segment in segments(app):
                style = segment.style or Style()
                colors = [color for color in (style.color, style.bgcolor) if color is not None]
                assert all(color.is_default or is_grey(color.get_truecolor()) for color in colors), segment
                if len(colors) == 2 and segment.text.strip():
                    by_default = all(color.is_default for color in colors)
                    assert by_default if app.native_ansi_color else colors[0] != colors[1], segment


def is_reversed(app: SapoApp, title: str) -> bool:
    return any(title in segment.text for segment in segments(app) if segment.style and segment.style.reverse)


def is_grey(color: ColorTriplet) -> bool:
    return max(color) - min(color) <= 2
