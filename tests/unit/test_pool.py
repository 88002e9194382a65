"""The pool of other nodes' rollouts: what it accepts, forgets and offers."""

from __future__ import annotations

import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from sapo_edge.pool.marks import text_mark
from sapo_edge.pool.pool import Pool, PoolLimits, PoolOutcome
from sapo_edge.rollout import Answer, Rollout
from tests.fakes import Clock, make_rollout


def sequences(pool: Pool) -> list[int]:
    return [rollout.sequence for rollout in pool.candidates()]


def test_a_rollout_larger_than_the_pool_is_rejected_and_displaces_nothing() -> None:
    pool = Pool("me", PoolLimits(bytes=200))
    pool.add(make_rollout(sequence=1))
    assert pool.add(make_rollout(sequence=2, texts=["x" * 300])) is PoolOutcome.TOO_LARGE
    assert sequences(pool) == [1]
    assert make_rollout(texts=["é"], question="", ground_truth="").size_bytes() == 2
    pool = Pool("me", PoolLimits(rollouts=3, author_share=0.01))
    for author in "abc":
        assert pool.add(make_rollout(author)) is PoolOutcome.ADDED
    assert len(pool) == 3


def test_an_author_displaces_its_own_rollouts_beyond_its_share() -> None:
    pool = Pool("me", PoolLimits(rollouts=8, author_share=0.25))
    pool.add(make_rollout("quiet", 1))
    for number in range(50):
        pool.add(make_rollout("loud", number))
    assert Counter(rollout.author for rollout in pool.candidates()) == {"quiet": 1, "loud": 2}
    assert [rollout.sequence for rollout in pool.candidates() if rollout.author == "loud"] == [48, 49]


def test_a_copy_is_recognised_while_the_original_is_held_and_however_it_left() -> None:
    clock = Clock()
    pool = Pool("me", PoolLimits(rollouts=3, author_share=1.0, seconds=60), clock)
    displaced, taken, rejected, aged = (make_rollout(sequence=number) for number in range(4))
    for rollout in (displaced, taken, rejected, aged):
        pool.add(rollout)
        assert pool.add(rollout) is PoolOutcome.DUPLICATE
    pool.take([taken, taken, make_rollout(sequence=9)])
    pool.reject([rejected])
    assert sequences(pool) == [3] and pool.bytes == aged.size_bytes()
    clock.now += 61
    assert pool.candidates() == () and pool.counts[PoolOutcome.OLD] == 1
    assert [pool.add(rollout) for rollout in (displaced, taken, rejected, aged)] == [PoolOutcome.DUPLICATE] * 4


def again(rollout: Rollout, sequence: int, **changes: Any) -> Rollout:
    return replace(rollout, sequence=sequence, **changes)


def test_one_text_under_many_numbers_is_held_and_used_once() -> None:
    pool = Pool("me")
    first = make_rollout("loud", 0)
    copies = [again(first, number) for number in range(1, 256)]
    assert [pool.add(rollout) for rollout in (first, *copies)] == [PoolOutcome.ADDED] + [PoolOutcome.SAME_TASK] * 255
    pool.take([first])
    assert {pool.add(rollout) for rollout in copies} == {PoolOutcome.SAME_TASK}
    assert len(pool) == 0 and pool.counts[PoolOutcome.SAME_TASK] == 510


def test_a_task_is_refused_again_only_after_it_was_used() -> None:
    clock = Clock()
    pool = Pool("me", PoolLimits(seconds=60), clock)
    aged, rejected = make_rollout(sequence=1), make_rollout(sequence=2)
    for rollout in (aged, rejected):
        pool.add(rollout)
    pool.reject([rejected])
    clock.now += 61
    assert [pool.add(again(rollout, 9)) for rollout in (aged, rejected)] == [PoolOutcome.ADDED] * 2


def other_task(rollout: Rollout, index: int, **changes: Any) -> Rollout:
    return again(rollout, index, ref=replace(rollout.ref, index=index), **changes)


def test_the_same_text_is_refused_whoever_sends_it_until_others_were_used() -> None:
    pool = Pool("me", PoolLimits(used_texts=2))
    first = make_rollout("a", 1, ["<answer>4</answer>", "Five?"], question="2 + 2?")
    texts = ["  FIVE?\n", "<ANSWER>\uff14</answer> and an advertisement"]
    copy = replace(first, author="b", question="2 + 2?", answers=tuple(Answer(text, True) for text in texts))
    pool.add(first)
    assert pool.add(copy) is PoolOutcome.SAME_TEXT
    assert pool.add(other_task(copy, 5, question="2 + 3?")) is PoolOutcome.ADDED
    pool.take([first])
    assert pool.add(copy) is PoolOutcome.SAME_TEXT
    for number in (6, 7):
        assert pool.add(copy) is PoolOutcome.SAME_TEXT
        pool.add(make_rollout("c", number))
        pool.take([make_rollout("c", number)])
    assert pool.add(copy) is PoolOutcome.ADDED
    pool = Pool("me")
    first = make_rollout("a", 1, ["4", "5", "5"], question="q")
    assert pool.add(first) is PoolOutcome.ADDED
    assert pool.add(replace(make_rollout("b", 1, ["4", "4", "5"], question="q"))) is PoolOutcome.ADDED


def test_what_is_replaced_expires_or_is_pushed_out_while_it_is_trained_on_counts_as_used() -> None:
    pool = Pool("me")
    first = make_rollout("a", 1, question="2 + 2?")
    other = other_task(first, 2, answers=(Answer("4", True),))
    pool.add(first)
    trained = pool.candidates()
    assert pool.add(other) is PoolOutcome.ADDED, "the author's newer rollout of the question"
    assert pool.add(again(first, 3)) is PoolOutcome.ADDED
    pool.take(trained)
    assert pool.candidates() == (), "the copy that came meanwhile"
    assert pool.add(again(first, 4)) is PoolOutcome.SAME_TASK
    assert pool.add(replace(first, author="b")) is PoolOutcome.SAME_TEXT
    clock = Clock()
    pool = Pool("me", PoolLimits(seconds=60), clock)
    first = make_rollout("a", 1)
    pool.add(first)
    clock.now += 61
    assert pool.candidates() == ()
    pool.take([first])
    assert pool.add(again(first, 2)) is PoolOutcome.SAME_TASK
    pool = Pool("me", PoolLimits(rollouts=2, author_share=1.0, remembered=4))
    first = make_rollout("a", 1)
    pool.add(first)
    for number in range(10):
        pool.add(make_rollout("flood", number))
    pool.take([first])
    assert pool.add(again(first, 2)) is PoolOutcome.SAME_TASK


def test_honest_nodes_with_few_questions_and_short_answers_are_not_starved() -> None:
    # Four nodes publish two rollouts a round, each of one of 20 questions; a node trains on four a round.
    rng = random.Random(1)
    pool = Pool("me")
    taken = []
    for _ in range(300):
        for author in "abcdabcd":
            right = rng.randrange(1, 8)
            texts = ["<answer>4</answer>"] * right + [f"<answer>{rng.randrange(8)}</answer>"] * (8 - right)
            question = f"question {rng.randrange(20)}"
            pool.add(make_rollout(author, rng.randrange(10**9), texts, question=question))
        candidates = pool.candidates()
        batch = rng.sample(candidates, min(4, len(candidates)))
        pool.take(batch)
        taken.append(len(batch))
    assert sum(taken) > 0.99 * 4 * 300


def test_normalizing_hostile_text_takes_little_time() -> None:
    def seconds(*texts: str) -> float:
        start = time.process_time()
        for text in 4 * texts:
            text_mark(make_rollout(texts=[text] * 32))
        return time.process_time() - start

    hostile = seconds("\u0345" * 2048 + "\u0334" * 2048, "\ufdfa" * 2730, "\u0f73\u0301" * 1638)
    # Four times as long as ordinary text of as many bytes; all of it normalized would take 200 times as long.
    assert hostile < 30 * seconds(*3 * ["\u00e9" * 4096]), "this runs in the thread that serves the swarm"
    texts = ["x" * 3000 + "Yes", "X" * 3000 + "yes"]
    assert len({text_mark(make_rollout(texts=[text])) for text in texts}) == 1


@pytest.mark.parametrize(("limits", "honest", "text", "held"), [
    (PoolLimits(rollouts=20), 5, "x", 15), (PoolLimits(bytes=20_000, author_share=1.0), 20, "x" * 5000, 3),
], ids=["many", "few large ones"])  # fmt: skip
def test_many_authors_of_one_network_do_not_push_out_the_others(
    limits: PoolLimits, honest: int, text: str, held: int
) -> None:
    pool = Pool("me", limits)
    for number in range(honest):
        pool.add(make_rollout("honest", number), "9.9.9.0/24")
    for number in range(200):
        pool.add(make_rollout(f"key {number}", texts=[text]), "8.8.8.0/24")
    networks = Counter(pool.neighbourhood(rollout) for rollout in pool.candidates())
    assert networks == {"9.9.9.0/24": honest, "8.8.8.0/24": held}


def test_the_swarm_may_add_while_a_round_samples() -> None:
    pool = Pool("me", PoolLimits(rollouts=50, author_share=1.0))

    def add(author: str) -> None:
        for number in range(200):
            pool.add(make_rollout(author, number))

    with ThreadPoolExecutor(4) as threads:
        adding = [threads.submit(add, author) for author in "abcd"]
        while not all(future.done() for future in adding):
            pool.take(pool.candidates()[:3])
    held = pool.candidates()
    assert len(held) == len(pool) <= 50 and pool.bytes == sum(rollout.size_bytes() for rollout in held)
    assert sum(pool.counts.values()) == 800
