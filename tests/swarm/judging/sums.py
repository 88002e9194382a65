"""Signed rollouts of sums, and their tasks without a library."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from sapo_edge.rollout import Answer, Rollout, Task, TaskRef
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.wire.record import SignedRollout, sign_rollout
from sapo_edge.tasks.held_out import Split
from sapo_edge.tasks.source import TaskSource

SWARM, OTHER = b"s" * 32, b"o" * 32
TODAY = 1_790_000_000.0
"""Unix seconds."""
HELD_OUT = 1_000_000
"""Index of the one question that is held out."""


@cache
def identity(number: int) -> Identity:
    return Identity(number.to_bytes(32, "big"))


def peer(number: int) -> str:
    return identity(number).peer_id


class Sums(TaskSource):
    """Tasks of which seed 7 draws each."""

    def __init__(self) -> None:
        pass

    def regenerate(self, ref: TaskRef) -> Task:
        return Task(ref, f"question {ref.index}?", str(ref.index))

    def held_out(self, split: Split, count: int) -> tuple[Task, ...]:
        return ()

    def is_drawn(self, ref: TaskRef) -> bool:
        return ref.seed == 7

    def is_held_out(self, question: str) -> bool:
        return question == f"question {HELD_OUT}?"


def signed_rollout(
    author: int, sequence: int, time: float, swarm: bytes = SWARM, index: int | None = None, **changes: Any
) -> SignedRollout:
    """A rollout of the true task of its number or an index, changed in fields or the `entry` of its reference."""
    number = sequence if index is None else index
    ref = TaskRef(changes.pop("entry", "sums"), "1", 7, number)
    answers = (Answer(f"answer {sequence}", True), Answer("b", False))
    rollout = Rollout(ref, f"question {number}?", str(number), answers, peer(author), 1, sequence, time)
    return sign_rollout(replace(rollout, **changes), swarm, identity(author))
