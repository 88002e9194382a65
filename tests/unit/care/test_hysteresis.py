"""When a level is a reason to rest: two levels, two times, and a person who overrules it."""

from __future__ import annotations

import pytest

from sapo_edge.care.hysteresis import GAP, Limits, State, Watch

LIMITS = Limits(pause=90, pause_after=10, resume=80, resume_after=20)
WATCHING, RESTING, OVERRULED = State.WATCHING, State.RESTING, State.OVERRULED


def states(
    levels: list[float | None], watch: Watch | None = None, limits: Limits | None = LIMITS, begin: float = 0.0
) -> list[State]:
    """What a look every 5 seconds finds."""
    looked = watch or Watch()
    return [looked.look(begin + 5 * number, level, limits) for number, level in enumerate(levels)]


def resting() -> Watch:
    """One that rests since its look at 10 s."""
    watch = Watch()
    assert states([95, 95, 95], watch)[-1] is RESTING
    return watch


def test_it_rests_once_the_level_was_reached_for_long_enough() -> None:
    assert states([89, 90, 95, 91, 95]) == [WATCHING, WATCHING, WATCHING, RESTING, RESTING]


def test_a_short_spike_is_no_reason() -> None:
    assert set(states([50, 99, 99, 89, 99, 99, 89, 50])) == {WATCHING}


def test_it_goes_on_once_the_level_fell_far_enough_for_long_enough() -> None:
    told = states([81, 80, 70, 60, 79, 80], resting(), begin=15)
    assert told == [RESTING, RESTING, RESTING, RESTING, RESTING, WATCHING]


def test_a_short_dip_does_not_end_a_rest() -> None:
    assert set(states([70, 70, 70, 81, 70, 70, 70, 89], resting(), begin=15)) == {RESTING}


def test_a_level_between_the_two_changes_nothing() -> None:
    assert set(states([85] * 50)) == {WATCHING}
    assert set(states([85] * 50, resting(), begin=15)) == {RESTING}


def test_without_times_it_turns_at_the_first_look() -> None:
    assert states([0, 1, 1, 0, 1], limits=Limits(1, 0, 0, 0)) == [WATCHING, RESTING, RESTING, WATCHING, RESTING]


def test_no_reading_is_no_reason_and_ends_a_rest_in_time() -> None:
    assert set(states([None] * 10)) == {WATCHING}
    assert states([None] * 6, resting(), begin=15) == [*[RESTING] * 4, WATCHING, WATCHING]


def test_a_reading_that_is_missed_once_ends_nothing() -> None:
    assert set(states([95, None, 95, None, 95] * 5, resting(), begin=15)) == {RESTING}


@pytest.mark.parametrize("level", [95.0, 50.0])
def test_what_was_before_a_sleep_of_the_machine_does_not_count(level: float) -> None:
    watch = resting() if level < 90 else Watch()
    before, after = (RESTING, WATCHING) if level < 90 else (WATCHING, RESTING)
    watch.look(15, level, LIMITS)
    woken = 15 + GAP + 1
    assert watch.look(woken, level, LIMITS) is before
    assert watch.look(woken + 9, level, LIMITS) is before
    assert watch.look(woken + 20, level, LIMITS) is after


def test_a_reason_that_does_not_count_any_more_ends_at_once() -> None:
    watch = resting()
    assert watch.look(15, 99, None) is WATCHING
    assert states([99, 99, 99], watch, begin=20) == [WATCHING, WATCHING, RESTING]


def test_levels_may_change_meanwhile() -> None:
    watch = resting()
    higher = Limits(pause=100, pause_after=10, resume=96, resume_after=20)
    assert states([95] * 5, watch, higher, begin=15) == [*[RESTING] * 4, WATCHING]


def test_an_overruled_reason_comes_back_only_after_it_was_clear_once() -> None:
    watch = resting()
    watch.overrule()
    assert set(states([99, 95, 85, 99, 70, 99], watch, begin=15)) == {OVERRULED}
    assert states([70, 80, 70, 75, 60], watch, begin=45)[-1] is WATCHING
    assert states([99, 99, 99], watch, begin=70)[-1] is RESTING


def test_switching_an_overruled_reason_off_and_on_asks_anew() -> None:
    watch = resting()
    watch.overrule()
    watch.look(15, 99, None)
    assert states([99, 99, 99], watch, begin=20)[-1] is RESTING


def test_it_goes_on_beside_what_stirs_now_and_then() -> None:
    watch, limits = Watch(), Limits(70, 10, 35, 60)
    for now in range(0, 20, 5):
        watch.look(now, 90, limits)
    assert watch.state is State.RESTING
    # A minute without any stir never comes, but most of the time is calm.
    for now in range(20, 220, 5):
        watch.look(now, 90 if now % 40 == 0 else 5, limits)
    assert watch.state is State.WATCHING
