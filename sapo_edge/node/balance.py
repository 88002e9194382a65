"""How many external rollouts an update may take, by the accuracy on the validation set.

A node that takes external rollouts and answers significantly fewer validation questions than at its best takes half as
many, at last none; own ones take their place. While the accuracy holds, the number doubles again up to its setting.
"""

from __future__ import annotations

import math

from sapo_edge.evaluate import paired_gain
from sapo_edge.events import count_right

LEVEL = 0.05
"""Chance that noise alone counts as a fall anywhere in `SPAN` evaluations."""
SPAN = 10
"""Evaluations that share this chance."""
STEADY = 2
"""Evaluations in a row without a fall after which a reduced number doubles."""


def rebalanced(
    external: int, halvings: int, steady: int, answers: str, best: str, compared: int, took_external: bool
) -> tuple[int, int]:
    """How often J is halved after an evaluation, and how many evaluations in a row were no fall since that changed.

    Args:
        external: the setting J: most external rollouts in an update.
        halvings, steady: both before the evaluation.
        answers: the mark of each (`events.HeldOut.answers`).
        best: the same of the best earlier evaluation of these questions, the earliest on a tie; "" before any.
        compared: number of those evaluations.
        took_external: whether an update took external rollouts since the last evaluation.
    """
    fell = len(best) == len(answers) and is_fall(best, answers, compared)
    # A setting that was lowered leaves fewer steps to zero.
    most = external.bit_length()
    halvings, steady = min(halvings, most), 0 if fell else steady + 1
    if fell and took_external:
        return min(halvings + 1, most), 0
    if halvings and not fell and (count_right(answers) > count_right(best) or steady >= STEADY):
        return halvings - 1, 0
    return halvings, steady


def is_fall(best: str, answers: str, contenders: int) -> bool:
    """Whether an evaluation is worse than the best of several earlier ones by more than noise explains.

    The best of several is the luckiest too. Bonferroni's correction makes the comparison with each of them that much
    stricter, and spreads `LEVEL` over `SPAN` evaluations.

    `contenders`: the number of earlier evaluations, of which `best` is the best.
    """
    gain = paired_gain(best, answers)
    return sign_test(gain.lost, gain.gained) <= LEVEL / (SPAN * max(1, contenders))


def sign_test(lost: int, gained: int) -> float:
    """Exact one-sided p-value of a fall (McNemar, Psychometrika 12:153, 1947), of the questions lost and gained."""
    throws = lost + gained
    outcomes: int = 2**throws
    return sum(math.comb(throws, heads) for heads in range(lost, throws + 1)) / outcomes
