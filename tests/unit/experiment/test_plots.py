"""What plots show is right and can be read: ticks, labels, titles, a baseline that other curves don't hide."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sapo_edge.experiment import plots
from sapo_edge.experiment.plan import Arm, Plan, Setting
from sapo_edge.experiment.scales import tiny
from sapo_edge.experiment.statistics import SettingResult, evaluate
from tests.unit.experiment.synthetic import swarm

NO_BREAK = "\N{NO-BREAK SPACE}"


HOSTILE = next(setting for setting in tiny().settings if setting.name == "hostile")
"""Its titles are the longest."""


def result_of(*arms: Arm) -> SettingResult:
    """Of one swarm of each arm; the first is the baseline."""
    plan = Plan("tiny", (Setting("plain", "A title that is as long as the longest of them", arms, arms[0].name),), 1)
    (result,) = evaluate(plan, [swarm(arm.name, 0) for arm in arms])
    return result


@settings(max_examples=20)
@given(st.floats(0.1, 1e6))
def test_ticks_stand_where_their_labels_say(end: float) -> None:
    axes = Figure(figsize=(8.0, 3.0)).subplots(1, 3)[0]
    plots._limits(axes, [plots.Curve([0.0, end], [0.1, 0.2], [0.1, 0.2], [0.1, 0.2])])
    assert all(tick == round(tick) for tick in axes.get_xticks())


def test_settings_whose_names_differ_only_in_signs_have_pictures_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "saved", lambda name, _figure: [(name, b"")])
    result = result_of(*HOSTILE.arms[:1])
    names = ("known", "known!", "known-2", "Known")
    results = [replace(result, setting=replace(result.setting, name=name)) for name in names]
    drawn = [name for name, _ in plots.pictures(results)]
    assert [name for name in drawn if name.endswith("-rounds")] == [
        "known-rounds", "known-2-rounds", "known-2-2-rounds", "known-3-rounds",
    ]  # fmt: skip
    assert len(set(drawn)) == len(drawn)


def test_rows_of_long_labels_are_apart() -> None:
    figure = plots._dots(result_of(*HOSTILE.arms))
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    labels = figure.axes[0].get_yticklabels()
    assert max(label.get_text().count("\n") for label in labels) >= 1
    boxes = sorted((label.get_window_extent() for label in labels), key=lambda box: box.y0)
    gaps = [upper.y0 - lower.y1 for lower, upper in itertools.pairwise(boxes)]
    assert min(gaps) > 4, "pixels, where a line has 11"


def test_a_number_stays_beside_its_unit_and_what_a_curve_is_stands_in_a_line_of_its_own() -> None:
    arm = Arm("flood 10 %", "flood, 10 % hostile")
    for width in range(6, 40):
        assert plots._label(arm, width).count(f"10{NO_BREAK}%") == 2
    assert plots._subtitle(result_of(*HOSTILE.arms[:1])).splitlines()[-1] == "mean and 95 % band of 1 swarms"


def test_each_round_of_slow_members_is_the_mean_of_the_swarms_that_have_it() -> None:
    """A swarm has no reward of a round in which none of its members was due."""
    result = result_of(*HOSTILE.arms[:1])
    chart = plots._charts(result)[-1]
    (swarm,) = result.arms[0].swarms
    gaps = ({2, 3, 9}, {5, 20}, set[int]())
    rows = [[(float(round), round / 20) for round in range(1, 21) if round not in gap] for gap in gaps]
    curve = plots.curve_of([replace(swarm, own_by_round=row) for row in rows], chart.series, chart.by_x)
    assert curve is not None and curve.x == [float(round) for round in range(1, 21)]
    # The mean of the last two rounds.
    assert curve.y[9:12] == pytest.approx([(2 * 9.5 + 10) / 60, 10.5 / 20, 11.5 / 20])


def test_the_baseline_lies_on_top() -> None:
    result = result_of(*HOSTILE.arms[:3])
    (chart, *_) = plots._charts(result)
    curves = {arm.arm.name: curve for arm in result.arms if (curve := plots.curve_of(arm.swarms, chart.series))}
    (axes, *_) = plots._draw(result, chart, curves).axes
    top = max(axes.lines, key=lambda line: line.get_zorder())
    assert top.get_color() == plots.BASELINE_COLOR and top.get_zorder() > axes.lines[1].get_zorder()
