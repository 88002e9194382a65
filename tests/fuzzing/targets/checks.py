"""A check of a person's own question is refused, or scores any answer from 0 to 1, and the expected one with 1.

The first byte names the check; the rest is its option, the expected answer and an answer, with NUL between them. All of
them may be a stranger's: a manifest's questions, and a rollout's text.
"""

from __future__ import annotations

from typing import Any

from sapo_edge.errors import ManifestError
from sapo_edge.tasks.checks import CHECKS, Code, Pattern
from sapo_edge.tasks.questions import OwnQuestion, make_check
from tests.fuzzing.target import KIB, Target

NAMES = tuple(sorted(CHECKS))


def check(data: bytes) -> None:
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


def seeds() -> list[bytes]:
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


TARGET = Target(check, seeds, 6 * KIB, 512 * KIB, 64)
