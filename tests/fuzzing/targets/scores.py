"""Any text of a peer is scored, by a task's verifier or by a check of a person's own question."""

from __future__ import annotations

from functools import cache
from typing import Any

from sapo_edge.errors import ManifestError
from sapo_edge.rollout import Task
from sapo_edge.tasks.allowed import ALLOWED
from sapo_edge.tasks.checks import CHECKS, Code, Pattern
from sapo_edge.tasks.manifest import Manifest, TaskEntry
from sapo_edge.tasks.questions import OwnQuestion, make_check
from sapo_edge.tasks.readings import CLOSE_TAG, MAX_ANSWER_CHARACTERS, OPEN_TAG, extract_answer
from sapo_edge.tasks.source import TaskSource
from tests.fuzzing.target import KIB, Target

SOURCE = TaskSource(Manifest("all", tuple(TaskEntry(name, name, partial_credit=True) for name in sorted(ALLOWED))))


@cache
def tasks() -> list[Task]:
    drawn = {task.ref.entry: task for task in (SOURCE.draw(1, index) for index in range(400))}
    return [drawn[name] for name in sorted(ALLOWED)]


def check_answer(data: bytes) -> None:
    """A score is from 0 to 1, without an exception of a verifier, by the first complete pair of tags.

    The first byte says which of the manifest's tasks the rest answers.
    """
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


def answer_seeds() -> list[bytes]:
    """The right answer to every task, and texts that verifiers find hard."""
    right = [task.ground_truth or str(task.generated["metadata"].get("example_answer", "")) for task in tasks()]
    hard = (
        "9" * 4096, "-1e-999999999", r"\frac{1}{0}", "[[0,1],[1,0]]", "sNaN", "(" * 900 + "P" + ")" * 900, "2×3×7",
        "0x_f",
    )  # fmt: skip
    return [bytes([number]) + text.encode() for number, text in (*enumerate(right), *enumerate(hard))]


NAMES = tuple(sorted(CHECKS))


def check_check(data: bytes) -> None:
    """A check of a person's own question is refused, or scores from 0 to 1, and the expected answer with 1.

    The first byte names the check; the rest is its option, the expected answer and an answer, with NUL between them.
    All of them may be a stranger's: a manifest's questions, and a rollout's text.
    """
    name = NAMES[(data[0] if data else 0) % len(NAMES)]
    option, expected, answer, *_ = [*data[1:].decode("utf-8", "replace").split("\0"), "", ""]
    try:
        question = OwnQuestion("?", expected, make_check(name, value_of(name, option)))
    except ManifestError:
        return
    assert 0.0 <= question.score(answer.strip()) <= 1.0
    assert isinstance(question.check, Pattern | Code) or question.score(expected.strip()) == 1.0
    assert OwnQuestion.from_list(question.as_list()) == question


def value_of(name: str, option: str) -> Any:
    """The option in the type that a manifest has for it."""
    if not CHECKS[name].option:
        return None
    match name:
        case "exact":
            return bool(option)
        case "number" | "json":
            try:
                return float(option)
            except ValueError:
                return 0.0
        case "choice" | "matches":
            return option.split("|")
        case _:
            return option


def check_seeds() -> list[bytes]:
    """A question of each check, and expressions that take other engines exponential time."""
    questions = {
        "exact": ("x\0Two  Words\0two words", "\0a\0b", "x\0a\0" + "\u0130" * 2048),
        "number": (
            "0.5\0" + "1,000.25\0" + "1e3", "1e12\0" + "9" * 40 + "e999\0-.5e-999", "nan\0" + "1\0" + "1",
            "0\0" + "1\0" + "9" * 4096,
        ),
        "choice": ("A|B|(C)\0b\0 (B). ", "a|A\0a\0a"),
        "set": ("\0a, b,a\0B,A", "\0,\0,,,", "\0a\0" + "1," * 2048),
        "regex": (
            "(a+)+b\0x\0" + "a" * 4096, "[0-9]{1,3}(\\.\\d+)?\0x\0" + "12.5", "(((a{9}){9}){9}){9}\0x\0a", "(\0x\0x",
            "[ab]*a[ab]{200}\0x\0" + "ab" * 2048,
        ),
        "json": ('0.5\0{"a": {"b": [1, "C"]}}\0{"a": {"b": [1.2, "c "]}}', "0\0{}\0" + '{"a":' * 300),
        "calls": ('\0{"name": "f", "arguments": {"x": 1}}\0{"function": {"name": "f", "arguments": "{\\"x\\": 1}"}}',),
        "lines": ("\0a\nB c\0A\n\nb  C\n", "\0\n\0\n"),
        "code": ("mine\0a\0a", "\0a\0a"),
        "matches": ("2026|!26|!x\0\\d{4}\0[0-9]+", "a|!b\0a\0(((a{9}){9}){9}){9}"),
    }  # fmt: skip
    return [bytes([NAMES.index(name)]) + text.encode() for name, texts in questions.items() for text in texts]


TARGETS = {
    "answers": Target(check_answer, answer_seeds, 5 * KIB, 512 * KIB, 512, short=400),
    "checks": Target(check_check, check_seeds, 6 * KIB, 512 * KIB, 64),
}
