"""The law of size: what is fitted is what the swarms show, and a size that helps nothing is said to."""

from __future__ import annotations

import csv
import math
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sapo_edge.experiment.law import Size, fit, law_pictures, law_text, sizes
from sapo_edge.experiment.plan import Plan
from sapo_edge.experiment.report import write_report
from sapo_edge.experiment.scales import LAW, SCALES, SIZES
from sapo_edge.experiment.statistics import evaluate
from tests.unit.experiment.synthetic import swarm


def rows(limit: float, gain: float, exponent: float, noise: float = 0.002) -> list[Size]:
    """Two swarms of each size, equally far above and below a law."""
    exact = [(members, limit - gain * members**-exponent) for members in SIZES]
    return [Size(members, (value + noise, value - noise), None, None, 0.0) for members, value in exact]


@pytest.mark.parametrize(("limit", "gain", "exponent"), [(0.7, 0.3, 0.5), (0.5, 0.2, 1.2), (0.6, -0.1, 1.0)])
def test_the_numbers_of_a_law_are_found_within_their_intervals(limit: float, gain: float, exponent: float) -> None:
    law = fit(rows(limit, gain, exponent))
    assert law is not None
    for (value, low, high), true in zip((law.limit, law.gain, law.exponent), (limit, gain, exponent), strict=True):
        assert low <= true <= high and value == pytest.approx(true, abs=0.05)
        assert high - low < 0.2
    assert law.at(10) == pytest.approx(limit - gain * 10**-exponent, abs=0.01)
    # 0.3 / members ** 0.5 is 0.01 at 900 members.
    assert law.saturates == pytest.approx({0.7: 900, 0.5: 13, 0.6: 1}[limit], rel=0.2)


def test_three_sizes_give_no_law_a_slow_one_no_size_that_is_enough_and_a_flat_one_is_not_told() -> None:
    assert fit(rows(0.7, 0.3, 0.5)[:3]) is None
    flat = [Size(members, (0.68 + 0.01 * (-1) ** number,), 10.0, 5.0, 0.0) for number, members in enumerate(SIZES)]
    law = fit(flat)
    assert law is not None and not law.is_told_apart
    assert "size makes no difference that can be told apart" in law_text({"honest": flat})
    slow = fit(rows(0.9, 0.5, 0.1, noise=1e-6))
    assert slow is not None and slow.saturates is None
    assert replace(slow, exponent=(0.001, 0.0, 0.1)).saturates is None


@pytest.mark.parametrize("shape", [lambda size: 0.55 + 0.01 * math.log2(size), lambda size: 0.6 + 0.05 * (size > 32)])
def test_a_plain_rise_without_a_limit_is_told(shape: Callable[[int], float]) -> None:
    """Its gain and its limit can't be told apart, and the intervals of both are wide."""
    law = fit([Size(members, (shape(members) + 0.01, shape(members) - 0.01), None, None, 0.0) for members in SIZES])
    assert law is not None and law.is_told_apart
    assert law.gain[1] < 0 < law.gain[2] or law.limit[1] < 0.6 < law.limit[2]


def test_settings_of_one_size_give_no_law_and_without_one_alone_there_is_no_goal() -> None:
    noise = random.Random(0)
    assert fit([Size(4, (0.6 + noise.gauss(0, 0.01),), None, None, 0.0) for _ in range(11)]) is None
    text = law_text({"honest": [Size(members, (0.6,), None, None, 0.0) for members in (8, 16)]})
    assert "goal" not in text.lower() and "  8 members  test 0.600\n" in text


def test_the_report_has_a_line_for_each_size_a_law_and_a_plot(tmp_path: Path) -> None:
    whole = SCALES[LAW]()
    plan = Plan(LAW, whole.settings[:5], 2)
    records = [
        swarm("honest", seed, setting=str(members), nodes=min(members, 3), skill=0.7 - 0.4 * members**-0.5, own=4)
        for members in SIZES[:5]
        for seed in range(2)
    ]
    paths = {path.name: path for path in write_report(plan, records, tmp_path)}
    assert paths["law.png"].read_bytes().startswith(b"\x89PNG") and b"<svg" in paths["law.svg"].read_bytes()
    with paths["law.csv"].open() as file:
        lines = list(csv.DictReader(file))
    written = [(line["arm"], line["members"], line["swarms"]) for line in lines]
    assert written == [("honest", str(members), "2") for members in SIZES[:5]]
    # Each round of a member took half a second.
    rounds, seconds = (float(lines[0][name]) for name in ("rounds", "member_seconds"))
    assert rounds <= 20 and seconds == pytest.approx(0.5 * rounds, rel=0.3)
    text = paths["summary.txt"].read_text()
    assert re.search(r"   16 members  test 0\.\d+  goal: \d+ rounds", text)
    assert "limit - gain * members ** -exponent: limit 0." in text


def test_each_arm_is_in_the_plot_however_many_there_are() -> None:
    found = {f"arm {number}": [Size(1, (0.5,), None, None, 0.0)] for number in range(9)}
    (_, svg), _ = law_pictures(found)
    assert all(f"<!-- {arm} -->".encode() in svg for arm in found)


def test_a_size_that_stays_below_one_alone_has_no_round() -> None:
    plan = Plan(LAW, SCALES[LAW]().settings[:2], 1)
    found = sizes(evaluate(plan, [swarm("honest", 0, setting="1"), swarm("honest", 0, setting="2", skill=0.1)]))
    alone, pair = found["honest"]
    assert alone.rounds is not None and (pair.rounds, pair.seconds) == (None, None)
