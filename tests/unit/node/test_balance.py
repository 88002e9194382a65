"""The number of external rollouts by validation accuracy: falls that are noise, falls that are not, recovery."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapo_edge.events import count_right
from sapo_edge.node.balance import is_fall, rebalanced, sign_test


def answers(right: int, questions: int = 200) -> str:
    return f"{'1' * right:0<{questions}}"


def drawn(generator: random.Random, accuracy: float) -> str:
    """Answers of which each is right with this chance, in one form or another."""
    return "".join(generator.choice("12") if generator.random() < accuracy else "0" for _ in range(200))


@dataclass
class Balance:
    """A node's: what the journal remembers, and the number of external rollouts that follows."""

    external: int
    halvings: int = 0
    steady: int = 0
    best: str = ""
    compared: int = 0

    @property
    def taken(self) -> int:
        return self.external >> self.halvings

    def observe(self, answers: str, took_external: bool = True) -> int:
        state = (self.external, self.halvings, self.steady)
        self.halvings, self.steady = rebalanced(*state, answers, self.best, self.compared, took_external)
        self.compared += 1
        if not self.best or count_right(answers) > count_right(self.best):
            self.best = answers
        return self.taken


def observe(balance: Balance, *rights: int, took_external: bool = True) -> list[int]:
    return [balance.observe(answers(right), took_external) for right in rights]


def test_the_sign_test_is_exact() -> None:
    # By hand: (1 + 3) / 8 throws with at least two of three heads; 1 / 2**5; all of no throw.
    assert sign_test(2, 1) == 0.5
    assert sign_test(5, 0) == 1 / 32
    assert sign_test(0, 0) == sign_test(0, 7) == 1.0
    best, worse = answers(120), answers(110)
    assert is_fall(best, worse, 1) and not is_fall(best, worse, 10)


@pytest.mark.parametrize(("external", "rights", "expected"), [
    (5, (120, 60, 60, 60, 60, *[120] * 6), [5, 2, 1, 0, 0, 0, 1, 1, 2, 2, 5]),
    # Two in a row without a fall double it, and so does a new best; a fall begins the count again.
    (4, (120, 60, 60, 119, 119, 121, 60, 119, 60), [4, 2, 1, 1, 2, 4, 2, 2, 1]),
    (4, (120, 115, 117), [4, 4, 4]),
], ids=["down to none and back", "steadiness", "small falls"])  # fmt: skip
def test_a_fall_halves_the_number_and_what_holds_doubles_it(
    external: int, rights: tuple[int, ...], expected: list[int]
) -> None:
    assert observe(Balance(external), *rights) == expected


def test_a_fall_without_external_rollouts_and_another_setting_are_taken_into_account() -> None:
    balance = Balance(4)
    assert observe(balance, 120, 60, took_external=False) == [4, 4]
    assert observe(balance, 60) == [2]
    balance = Balance(4)
    observe(balance, 120, 60)
    balance.external = 8
    assert balance.taken == 4
    balance.external = 1
    assert balance.taken == 0 and observe(balance, 120, 120) == [0, 1]


@given(st.integers(0, 300), st.lists(st.tuples(st.integers(0, 60), st.booleans()), max_size=20))
def test_the_number_stays_in_the_setting_and_moves_one_step(external: int, evaluations: list[tuple[int, bool]]) -> None:
    balance = Balance(external)
    steps = [external >> halvings for halvings in range(external.bit_length() + 1)]
    before = external
    for right, took in evaluations:
        taken = balance.observe(answers(right, 60), took)
        assert 0 <= taken == balance.taken <= external
        assert abs(steps.index(taken) - steps.index(before)) <= 1
        assert taken >= before or took
        before = taken


@pytest.mark.parametrize("accuracy", [0.2, 0.5, 0.8])
def test_noise_alone_seldom_counts_as_a_fall(accuracy: float) -> None:
    """Every answer is drawn anew: no pair of real evaluations differs in more questions at the same accuracy."""
    generator, fell = random.Random(1), 0
    for _ in range(100):
        balance = Balance(4)
        fell += any(balance.observe(drawn(generator, accuracy)) < 4 for _ in range(10))
    assert fell < 10


def test_a_real_fall_is_mostly_seen_at_once() -> None:
    generator, seen = random.Random(1), 0
    for _ in range(100):
        balance = Balance(4)
        for _ in range(5):
            balance.observe(drawn(generator, 0.62))
        seen += balance.observe(drawn(generator, 0.42)) < 4
    assert seen >= 90
