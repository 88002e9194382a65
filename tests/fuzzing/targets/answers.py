"""Any text of a peer is scored: from 0 to 1, without an exception of a verifier, by the first complete pair of tags.

The first byte says which of the manifest's tasks the rest answers.
"""

from __future__ import annotations

from functools import cache

from sapo_edge.rollout import Task
from sapo_edge.tasks.allowed import ALLOWED
from sapo_edge.tasks.manifest import Manifest, TaskEntry
from sapo_edge.tasks.readings import CLOSE_TAG, MAX_ANSWER_CHARACTERS, OPEN_TAG, extract_answer
from sapo_edge.tasks.source import TaskSource
from tests.fuzzing.target import KIB, Target

SOURCE = TaskSource(Manifest("all", tuple(TaskEntry(name, name, partial_credit=True) for name in sorted(ALLOWED))))


@cache
def tasks() -> list[Task]:
    drawn = {task.ref.entry: task for task in (SOURCE.draw(1, index) for index in range(400))}
    return [drawn[name] for name in sorted(ALLOWED)]


def check(data: bytes) -> None:
    task = tasks()[(data[0] if data else 0) % len(tasks())]
    text = data[1:].decode("utf-8", "surrogateescape")
    for completion in (text, f"{OPEN_TAG}{text}{CLOSE_TAG}"):
        answer = extract_answer(completion)
        before, closed, _ = completion.partition(CLOSE_TAG)
        _, opened, inner = before.partition(OPEN_TAG)
        is_answer = bool(closed and opened) and len(inner.strip()) <= MAX_ANSWER_CHARACTERS
        assert (answer is not None) == is_answer
        assert answer is None or ("\0" not in answer and answer.encode("utf-8") is not None)
        assert 0.0 <= SOURCE.score(task, completion) <= (1.0 if is_answer else 0.0)
    assert SOURCE.verifier_errors == 0, "a verifier raised"


def seeds() -> list[bytes]:
    """The right answer to every task, and texts that verifiers find hard."""
    right = [task.ground_truth or str(task.generated["metadata"].get("example_answer", "")) for task in tasks()]
    hard = (
        "9" * 4096, "-1e-999999999", r"\frac{1}{0}", "[[0,1],[1,0]]", "sNaN", "(" * 900 + "P" + ")" * 900, "2×3×7",
        "0x_f",
    )  # fmt: skip
    return [bytes([number]) + text.encode() for number, text in (*enumerate(right), *enumerate(hard))]


TARGET = Target(check, seeds, 5 * KIB, 512 * KIB, 512, short=400)
