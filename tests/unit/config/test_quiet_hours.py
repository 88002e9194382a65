"""Quiet hours: their form, midnight, and summer time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from datetime import time as at

import pytest

from sapo_edge.care.sensors import read_local_time
from sapo_edge.config.quiet_hours import QuietHours, parse


@pytest.mark.parametrize(("text", "hours"), [
    ("22:00-07:00", QuietHours(at(22), at(7))),
    ("9:30-17:05", QuietHours(at(9, 30), at(17, 5))),
    ("  08:00 - 12:00 ", QuietHours(at(8), at(12))),
    ("", None),
    ("  ", None),
])  # fmt: skip
def test_hours_are_parsed(text: str, hours: QuietHours | None) -> None:
    assert parse(text) == hours


@pytest.mark.parametrize("text", [
    "22-7", "22:00", "22:00-", "22:00-24:00", "22:60-07:00", "25:00-07:00", "07:00-07:00", "22:00-07:00, 12:00-13:00",
    "22:00–07:00", "22:00-07:00:00", "-1:00-07:00", "٢٢:٠٠-٠٧:٠٠", "at night",
])  # fmt: skip
def test_malformed_hours_are_rejected(text: str) -> None:
    with pytest.raises(ValueError):
        parse(text)


@pytest.mark.parametrize(("text", "within", "outside"), [
    ("22:00-07:00", [at(22), at(23, 59, 59), at(0), at(6, 59, 59)], [at(7), at(12), at(21, 59, 59)]),
    ("09:00-17:00", [at(9), at(16, 59)], [at(8, 59), at(17), at(0)]),
    ("18:00-00:00", [at(18), at(23, 59, 59)], [at(0), at(17, 59)]),
    ("00:00-06:00", [at(0), at(5, 59)], [at(6), at(23, 59)]),
])  # fmt: skip
def test_hours_may_pass_midnight(text: str, within: list[at], outside: list[at]) -> None:
    hours = parse(text)
    assert hours is not None
    assert all(hours.contain(now) for now in within) and not any(hours.contain(now) for now in outside)


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Central European time, with summer time from March 29th to October 25th 2026, 01:00 UTC."""
    if not hasattr(time, "tzset"):
        pytest.skip("this system has no tzset")
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    yield
    monkeypatch.undo()
    time.tzset()


def local_time(utc: str) -> at:
    return read_local_time(datetime.fromisoformat(utc + "+00:00").timestamp())


@pytest.mark.parametrize(("utc", "quiet"), [
    ("2026-03-28 05:59", True),  # 06:59 in winter
    ("2026-03-28 06:00", False),
    ("2026-03-29 04:59", True),  # 06:59 in summer, the clock was set forward in this night
    ("2026-03-29 05:00", False),
    ("2026-10-24 19:59", False),  # 21:59 in summer
    ("2026-10-24 20:00", True),
    ("2026-10-25 05:59", True),  # 06:59 in winter, the night had an hour more
    ("2026-10-25 06:00", False),
    ("2026-10-25 20:59", False),  # 21:59 in winter
    ("2026-10-25 21:00", True),
])  # fmt: skip
@pytest.mark.usefixtures("berlin")
def test_hours_follow_summer_time(utc: str, quiet: bool) -> None:
    hours = parse("22:00-07:00")
    assert hours is not None
    assert hours.contain(local_time(utc)) is quiet


@pytest.mark.usefixtures("berlin")
def test_a_time_zone_that_changes_while_the_node_runs_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    there = local_time("2026-01-10 12:00")
    monkeypatch.setenv("TZ", "JST-9")
    assert (there, local_time("2026-01-10 12:00")) == (at(13), at(21))
