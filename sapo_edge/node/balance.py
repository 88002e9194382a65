"""How many external rollouts an update may take, by the accuracy on the validation set.

A node that takes external rollouts and answers significantly fewer validation questions than at its best takes half as
many, at last none; own ones take their place. While the accuracy holds, the number doubles again up to its setting.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

LEVEL = 0.05
"""Chance that noise alone counts as a fall anywhere in `SPAN` evaluations."""
SPAN = 10
"""Evaluations that share this chance."""
STEADY = 2
"""Evaluations in a row without a fall after which a reduced number doubles."""


class Balance:
    """Decides after each evaluation how many external rollouts the next updates may take.

    The number is `external` halved `halvings` times, so a change of the setting carries over. Deterministic.

    Args:
        external: the setting J: most external rollouts in an update.
        halvings: of a balance that is restored; as are the others.
        steady: evaluations in a row without a fall since the number last changed.
        compared: evaluations on the same questions so far.
        best: whether each question was answered right in the best of them (the earliest on a tie); empty before any.

    Attributes:
        fell: whether the last evaluation was significantly worse than the best one.
    """

    def __init__(
        self, external: int, halvings: int = 0, steady: int = 0, compared: int = 0, best: Sequence[bool] = ()
    ) -> None:
        if min(external, halvings, steady, compared) < 0:
            raise ValueError("numbers of a balance are not negative")
        self.external = external
        self.halvings = halvings
        self.steady = steady
        self.compared = compared
        self.best = tuple(best)
        self.fell = False

    @property
    def taken(self) -> int:
        """Most external rollouts in an update now; `external` if the number is not reduced."""
        return reduced(self.external, self.halvings)

    def observe(self, correct: Sequence[bool], took_external: bool) -> int:
        """Judge an evaluation.

        Args:
            correct: whether each question was answered right; always the same questions, in the same order. Another
                number of them starts a new comparison.
            took_external: whether an update took external rollouts since the last evaluation.

        Returns:
            `taken` from now on.
        """
        if len(correct) != len(self.best):
            self.compared, self.best = 0, ()
        self.compared += 1
        self.fell = bool(self.best) and is_fall(self.best, correct, self.compared - 1)
        is_best = sum(correct) > sum(self.best)
        if is_best or not self.best:
            self.best = tuple(correct)
        # A setting that was lowered leaves fewer steps to zero.
        self.halvings = min(self.halvings, self.external.bit_length())
        self.steady = 0 if self.fell else self.steady + 1
        if self.fell and took_external:
            self.halvings = min(self.halvings + 1, self.external.bit_length())
        elif self.halvings and not self.fell and (is_best or self.steady >= STEADY):
            self.halvings -= 1
            self.steady = 0
        return self.taken


def reduced(external: int, halvings: int) -> int:
    """A number of external rollouts after so many halvings, rounded down: 4, 2, 1, 0."""
    return external >> halvings


def is_fall(best: Sequence[bool], correct: Sequence[bool], contenders: int) -> bool:
    """Whether an evaluation is worse than the best of several earlier ones by more than noise explains.

    The best of several is the luckiest too. Bonferroni's correction makes the comparison with each of them that much
    stricter, and spreads `LEVEL` over `SPAN` evaluations.

    Args:
        best, correct: whether each question was answered right.
        contenders: earlier evaluations, of which `best` is the best.

    Raises:
        ValueError: if the evaluations have different numbers of questions.
    """
    pairs = list(zip(best, correct, strict=True))
    lost, gained = pairs.count((True, False)), pairs.count((False, True))
    return sign_test(lost, gained) <= LEVEL / (SPAN * max(1, contenders))


def sign_test(lost: int, gained: int) -> float:
    """Exact one-sided p-value of a fall (McNemar, Psychometrika 12:153, 1947).

    Args:
        lost: questions that only the first evaluation answered right.
        gained: questions that only the second one did.

    Returns:
        The chance of at least `lost` heads in `lost` + `gained` throws of a coin.
    """
    throws = lost + gained
    outcomes: int = 2**throws
    return sum(math.comb(throws, heads) for heads in range(lost, throws + 1)) / outcomes
