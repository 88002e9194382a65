"""Marks of rollouts, by which the pool tells what it holds or has used: their task, their question, their text."""

from __future__ import annotations

import hashlib
import unicodedata

import msgpack

from sapo_edge.policy import STOP_TEXT
from sapo_edge.rollout import Rollout, TaskRef

MARK_BYTES = 16
NORMALIZED_CHARACTERS = 256
"""Characters at the start of each text whose Unicode form is normalized.

NFKC takes quadratic time on hostile text, and the pool marks rollouts in the thread that serves the swarm.
"""


def task_mark(author: str, ref: TaskRef) -> bytes:
    """Marks the author's rollout of a task reference."""
    return _mark("task", author, ref.entry, ref.version, ref.seed, ref.index)


def question_mark(rollout: Rollout) -> bytes:
    """Marks the author's rollout of a question, whatever reference gives it."""
    return _mark("question", rollout.author, normalized(rollout.question))


def text_mark(rollout: Rollout) -> bytes:
    """Marks question and answers, whoever the author and in whatever order, without what follows the stop text."""
    answers = sorted(normalized(answer.text.partition(STOP_TEXT)[0]) for answer in rollout.answers)
    return _mark("text", normalized(rollout.question), *answers)


def normalized(text: str) -> str:
    """The text without differences of case and white space, and at its start of Unicode form."""
    start, rest = text[:NORMALIZED_CHARACTERS], text[NORMALIZED_CHARACTERS:]
    return " ".join((unicodedata.normalize("NFKC", start) + rest).casefold().split())


def _mark(*parts: str | int) -> bytes:
    return hashlib.blake2b(msgpack.packb(parts), digest_size=MARK_BYTES).digest()
