"""When a level pauses a node: two thresholds and two times; `test_pauses.py` has the user who overrules it."""

from __future__ import annotations

import pytest

from sapo_edge.care.hysteresis import GAP, Limits, State, Watch

LIMITS = Limits(pause=90, pause_after=10, resume=80, resume_after=20)
WATCHING, PAUSED = State.WATCHING, State.PAUSED


def states(
    levels: list[float | None], watch: Watch | None = None, limits: Limits = LIMITS, begin: float = 0.0
) -> list[State]:
    """The states after readings every 5 seconds."""
    watch = watch or Watch()
    return [watch.update(begin + 5 * number, level, limits) for number, level in enumerate(levels)]


def paused() -> Watch:
    """A watch that has asked for a pause since its reading at 10 s."""
    watch = Watch()
    assert states([95, 95, 95], watch)[-1] is PAUSED
    return watch


@pytest.mark.parametrize(("levels", "expected"), [
    pytest.param([89, 90, 95, 91, 95], [*[WATCHING] * 3, PAUSED, PAUSED], id="reached for long enough"),
    pytest.param([50, 99, 99, 89, 99, 99, 89, 50], [WATCHING] * 8, id="a short spike"),
    pytest.param([85] * 50, [WATCHING] * 50, id="between the thresholds"),
    pytest.param([None] * 10, [WATCHING] * 10, id="no readings"),
])  # fmt: skip
def test_it_pauses_at_a_level_that_lasts(levels: list[float | None], expected: list[State]) -> None:
    assert states(levels) == expected


@pytest.mark.parametrize(("levels", "expected"), [
    pytest.param([81, 80, 70, 60, 79, 80], [*[PAUSED] * 5, WATCHING], id="far enough for long enough"),
    pytest.param([70, 70, 70, 81, 70, 70, 70, 89], [PAUSED] * 8, id="a short dip"),
    pytest.param([85] * 50, [PAUSED] * 50, id="between the thresholds"),
    pytest.param([None] * 6, [*[PAUSED] * 4, WATCHING, WATCHING], id="no readings"),
    pytest.param([95, None, 95, None, 95] * 5, [PAUSED] * 25, id="single missing readings"),
])  # fmt: skip
def test_a_pause_ends_at_a_lower_level_that_lasts(levels: list[float | None], expected: list[State]) -> None:
    assert states(levels, paused(), begin=15) == expected


def test_without_times_it_changes_at_the_first_reading() -> None:
    assert states([0, 1, 1, 0, 1], limits=Limits(1, 0, 0, 0)) == [WATCHING, PAUSED, PAUSED, WATCHING, PAUSED]


@pytest.mark.parametrize("level", [95.0, 50.0])
def test_readings_before_a_sleep_of_the_machine_do_not_count(level: float) -> None:
    watch = paused() if level < 90 else Watch()
    before, after = (PAUSED, WATCHING) if level < 90 else (WATCHING, PAUSED)
    watch.update(15, level, LIMITS)
    seen = [watch.update(15 + GAP + 1 + later, level, LIMITS) for later in (0, 9, 20)]
    assert seen == [before, before, after]


def test_it_resumes_beside_short_bursts_of_load() -> None:
    watch, limits = Watch(), Limits(70, 10, 35, 60)
    for now in range(0, 20, 5):
        watch.update(now, 90, limits)
    assert watch.state == PAUSED
    # There is never a minute without a burst, but the load is low most of the time.
    for now in range(20, 220, 5):
        watch.update(now, 90 if now % 40 == 0 else 5, limits)
    assert watch.state is State.WATCHING
