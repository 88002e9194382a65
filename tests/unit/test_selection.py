"""SelectSubset: what is shared of a round, and that a whole swarm stays within its budget."""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapo_edge.pool.authors import MAX_AUTHORS, SMALL_SWARM, STEP, Authors, Sender, estimate_number
from sapo_edge.pool.pool import Pool
from sapo_edge.rollout import ScoredRollout
from sapo_edge.room import FEW, GENEROUS
from sapo_edge.selection import CORRECTION, LARGEST_SWARM, SubsetSelector
from tests.defences.defence import fails_without
from tests.fakes import make_rollout

BUDGET = 64
ROUND = [ScoredRollout(make_rollout("me", n), (1.0, 0.0) if n % 2 else (0.0, 0.0)) for n in range(8)]


def after(others: float, received: int, rounds: int = 60) -> SubsetSelector:
    """A selector among so many others, that heard so much in each of so many rounds."""
    selector = SubsetSelector(BUDGET, lambda: others)
    for _ in range(rounds):
        selector.observe(received)
    return selector


def sequences(selector: SubsetSelector, seed: int = 1) -> list[int]:
    return [rollout.sequence for rollout in selector.select(ROUND, random.Random(seed))]


@pytest.mark.parametrize("others", [0, 1, 8])
def test_everything_is_shared_while_there_is_room(others: int) -> None:
    for rounds in range(30):
        assert sequences(after(others, 8 * others, rounds)) == list(range(8))
    assert after(others, 8).select([], random.Random(1)) == []


def test_informative_groups_come_first_and_equals_by_chance() -> None:
    # 3 of 8 are shared, and 4 are informative.
    chosen = [sequences(after(BUDGET / 3, BUDGET), seed) for seed in range(200)]
    assert all(len(few) == 3 and few == sorted(few) and set(few) <= {1, 3, 5, 7} for few in chosen)
    assert all(120 < count < 180 for count in Counter(n for few in chosen for n in few).values())
    six = [sequences(after(BUDGET / 6, BUDGET), seed) for seed in range(50)]
    assert all({1, 3, 5, 7} < set(many) for many in six) and {n for many in six for n in many} == set(range(8))


def test_selection_is_a_function_of_its_random_generator_and_fractions_hold_on_average() -> None:
    selector = after(BUDGET * 4, BUDGET)
    counts = [len(sequences(selector, seed)) for seed in range(4000)]
    assert counts == [len(sequences(selector, seed)) for seed in range(4000)]
    # Standard deviation of the mean: 0.007.
    assert set(counts) == {0, 1} and abs(statistics.mean(counts) - 0.25) < 0.03


@pytest.mark.parametrize(("others", "received", "share"), [
    (32, BUDGET, 2.0),
    (FEW, 0, 4.0 * CORRECTION),
    (FEW + 1, 0, BUDGET / (FEW + 1)),
    (32, 10**6, 2.0 / CORRECTION),
    (32, BUDGET * 4 // 3, 1.5),
    (1e9, 10**9, BUDGET / LARGEST_SWARM),
    (0, 10**9, math.inf),
])  # fmt: skip
def test_the_share_is_the_budget_by_authors_corrected_by_the_inbound_rate(
    others: float, received: int, share: float
) -> None:
    assert after(others, received).share == pytest.approx(share, rel=0.01)
    # Before anything is known of the rate, the authors alone count.
    assert after(32, received, 0).share == 2.0


@pytest.mark.parametrize(("authors", "seconds"), [(1, 640), (5, 640), (60, 640), (1000, 640), (20000, 3000)])
def test_authors_are_estimated_from_a_sample(authors: int, seconds: int) -> None:
    rng, heard = random.Random(authors), Authors(3600.0)
    for time in range(10 * seconds):
        heard.hear(str(rng.randrange(authors)), time / 10)
    assert heard.estimate(float(seconds)) == pytest.approx(authors, rel=0.15)


@given(st.integers(1, 20), st.integers(1, 2000))
@settings(max_examples=5)
def test_fresh_keys_do_not_make_a_new_node_believe_in_a_large_swarm(members: int, keys: int) -> None:
    heard = Authors(3600.0)
    for minute in range(25):
        for member in range(members):
            heard.hear(f"member {member}", 60.0 * minute)
        for key in range(keys):
            heard.hear(f"key {minute} {key}", 60.0 * minute)
        assert heard.estimate(60.0 * minute) <= max(SMALL_SWARM, STEP * members)


def test_a_flooding_author_hides_no_others_and_old_authors_are_forgotten() -> None:
    heard = Authors(3600.0)
    assert heard.estimate(0.0) == 0
    for time in range(20):
        heard.hear(f"node {time}", time)
        heard.hear(f"node {time}", time)
    for _ in range(20_000):
        heard.hear("flood", 20.0)
    assert heard.estimate(20.0) == 21
    heard.hear("node 1", 3000.0)
    assert heard.estimate(3700.0) == 1 and heard.estimate(6601.0) == 0
    rng, heard = random.Random(1), Authors(float(HOUR))
    for second in range(HOUR):
        heard.hear(str(rng.randrange(10_000)), second)
        if second % 4 == 0:
            heard.hear(f"loud {second % 3}", second)
    # A factor that receivers' room allows for.
    assert heard.estimate(HOUR) > 10_000 / GENEROUS


HOUR = 3600


def share_after(members: int, keys: int, hours: int = 1) -> tuple[float, float]:
    """The share of a member before and after a crowd comes, with new keys every hour; honest ones keep the budget."""
    rng, heard = random.Random(members), Authors(float(HOUR))
    selector = SubsetSelector(BUDGET, lambda: heard.estimate(now))
    now, before = 0.0, 0.0
    for minute in range(60 * (2 + hours)):
        now = 60.0 * minute
        if minute == 120:
            before = selector.share
        share = min(8.0, selector.share)
        for member in range(members):
            for _ in range(int(share) + (rng.random() < share % 1)):
                heard.hear(f"member {member}", now)
        if minute >= 120:
            hour, turn = divmod(minute, 60)
            for key in range(turn * keys // 60, (turn + 1) * keys // 60):
                heard.hear(f"key {hour} {key}", now)
    return before, selector.share


@pytest.mark.parametrize(
    ("members", "keys"), [(2, 181), (3, 181), (20, 181), (60, 181), (5, 1000), (20, 1000), (60, 1000)]
)
def test_keys_that_send_once_silence_nobody(members: int, keys: int) -> None:
    before, after = share_after(members, keys)
    assert min(8.0, after) > 0.6 * min(8.0, before)


@fails_without(
    "pool/authors.py", "_typical([sender for sender in senders if sender.known] or senders)", "_typical(senders)"
)
@fails_without("pool/authors.py", "if known and new:")
@pytest.mark.parametrize("members", [100, 500])
def test_a_crowd_that_sends_what_a_node_accepts_of_newcomers_does_not_silence_a_large_swarm(members: int) -> None:
    """Each round 45 keys that are used once: what a node accepts of newcomers in the simulation of a crowd."""
    before, after = share_after(members, 45 * 60, hours=3)
    assert before == pytest.approx(BUDGET / members, rel=0.1) and after > before / 2


def test_a_crowd_that_sends_more_than_all_members_takes_hours_to_silence_them() -> None:
    before, after = share_after(20, 6000, hours=2)
    assert before == pytest.approx(BUDGET / 20, rel=0.1)
    assert 1.5 * after >= BUDGET / (SMALL_SWARM * STEP**3)


@given(st.lists(st.integers(8, 256), min_size=4, max_size=60), st.integers(0, 4000))
def test_new_keys_add_a_part_of_the_known_authors_however_many_there_are(counts: list[int], keys: int) -> None:
    known = [Sender(count, known=True) for count in counts]
    alone = estimate_number(known)
    assert 1 <= alone <= len(counts)
    crowded = estimate_number([*known, *[Sender(1, known=False)] * keys])
    # They count for a sixteenth of what known authors sent, and a key for half an author, at most.
    added = min(keys, sum(counts) / 16)
    assert crowded <= (len(counts) + added / 2) * (1 + added / (sum(counts) + 2)) * 1.001
    if keys < min(sum(counts), 8 * len(counts)) / 2:
        assert alone <= crowded * 1.001


def test_what_is_remembered_of_authors_is_bounded_and_known_ones_stay_also_after_a_restart(tmp_path: Path) -> None:
    heard = Authors(float(HOUR))
    for number in range(20):
        heard.hear(f"member {number}", 0.0)
    for key in range(3 * MAX_AUTHORS):
        heard.hear(f"key {key}", 1900.0)
    for number in range(20):
        heard.hear(f"member {number}", 1900.0)
    assert sum(sender.known for sender in heard.senders()) == 20
    assert len(heard.senders()) <= 2 * MAX_AUTHORS
    pool = Pool("me")
    for author in ("a", "b", "c", "me"):
        for sequence in (1, 2, 3, 3):
            pool.add(make_rollout(author, sequence))
    pool.take(pool.candidates()[:3])
    assert pool.authors() == 3
    pool.save(tmp_path / "pool")
    again = Pool("me")
    again.load(tmp_path / "pool")
    assert again.authors() == 2


def published_by(lengths: list[int], moments: int, seconds: float = 1.0) -> list[list[int]]:
    """What each node publishes at each moment, if its rounds take so many; it arrives a moment later."""
    rng = random.Random(len(lengths))
    heard = [Authors(3600.0) for _ in lengths]
    now = 0.0
    selectors = [SubsetSelector(BUDGET, lambda each=each: each.estimate(now)) for each in heard]  # type: ignore[misc]
    waiting = [0] * len(lengths)
    published = []
    for moment in range(moments):
        now = seconds * moment
        counts = [0] * len(lengths)
        for node, length in enumerate(lengths):
            if moment % length == 0:
                selectors[node].observe(waiting[node])
                waiting[node] = 0
                counts[node] = len(selectors[node].select(ROUND, rng))
        for node, count in enumerate(counts):
            waiting[node] += sum(counts) - count
        for sender, count in enumerate(counts):
            for receiver in range(len(lengths)):
                if receiver != sender:
                    for _ in range(count):
                        heard[receiver].hear(str(sender), now)
        published.append(counts)
    return published


@pytest.mark.parametrize("nodes", [20, 60])
def test_a_swarm_whose_nodes_all_adapt_at_once_settles_at_the_budget(nodes: int) -> None:
    # After `SEPARATE` seconds authors are known, here after ten rounds.
    published = [sum(counts) for counts in published_by([1] * nodes, 60, 30.0)]
    assert published[0] == 8 * nodes
    late = published[20:]
    # Each node draws a fraction of a rollout: a round's deviation is that of a Poisson distribution at most.
    assert statistics.mean(late) == pytest.approx(BUDGET, rel=0.1)
    assert statistics.stdev(late) < 1.5 * math.sqrt(BUDGET)


def test_slow_nodes_are_not_silenced_by_fast_ones() -> None:
    moments = 120
    each = [sum(counts) for counts in zip(*published_by([1] * 20 + [4] * 20, moments), strict=True)]
    fast, slow = sum(each[:20]) / moments, sum(each[20:]) / (moments / 4)
    # In each of its own rounds, a slow node shares less by the correction in both directions at most.
    assert slow > 0.9 * fast / CORRECTION**2 and min(each[20:]) > 0
    assert sum(each) / moments < 1.3 * BUDGET
