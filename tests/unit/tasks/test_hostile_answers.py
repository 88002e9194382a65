"""Hostile answers: any text of a peer is scored in bounded time, without an exception and without side effects."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sapo_edge.rollout import TaskRef
from sapo_edge.tasks.allowed import ALLOWED
from sapo_edge.tasks.library import generator_version
from sapo_edge.tasks.manifest import Manifest, TaskEntry
from sapo_edge.tasks.source import TaskSource

SECONDS = 2.0
SOURCE = TaskSource(Manifest("all", tuple(TaskEntry(name, name, partial_credit=True) for name in sorted(ALLOWED))))
# By reference: which tasks are drawn changes with each new generator, and some text below answers a few of them.
TASKS = {name: SOURCE.regenerate(TaskRef(name, generator_version(name), 4, 2)) for name in sorted(ALLOWED)}
EFFECTS = ("exec", "compile", "import", "open", "os.", "subprocess.", "socket.", "ctypes.", "pickle.", "shutil.")

_watching = False
_seen: list[str] = []


def _audit(event: str, _: object) -> None:
    if _watching and event.startswith(EFFECTS):
        _seen.append(event)


sys.addaudithook(_audit)


@contextmanager
def watched() -> Iterator[list[str]]:
    """Audit events of evaluation and of access to the system while the block runs."""
    global _watching
    _seen.clear()
    _watching = True
    try:
        yield _seen
    finally:
        _watching = False


def hostile(sentinel: Path) -> list[str]:
    code = f"__import__('os').system('touch {sentinel}')"
    inner = [
        code, f"[[{code}]]", f"open({str(sentinel)!r}, 'w')", f"(lambda: exec(\"open({str(sentinel)!r}, 'w')\"))()",
        f"[x for x in ().__class__.__base__.__subclasses__()] or {code}", "{0.__class__.__init__.__globals__}",
        "%s%n" * 50,
        # Numbers.
        "9**9**9**9", "1e999999999999999999", "-1e-999999999999999999", "1E+1000000", "1/0", "nan", "sNaN", "inf",
        "-Infinity", "-" + "9" * 4095, "0x" + "f" * 4000, "1_0" * 1000, "1/" + "9" * 4000, "NaN" + "1" * 4000,
        "2×" * 2000, r"\frac{" + "9" * 2000 + "}{" + "9" * 2000 + "}", r"\frac" + " " * 4000 + "{",
        # Brackets and formulas.
        "[" * 4000, "[" * 2000 + "]" * 2000, "{'a':" * 800, "(" * 2000 + "P" + ")" * 2000, "¬" * 4000 + "P",
        "P∧" * 2000 + "P", "P→(" * 1000 + "P" + ")" * 1000,
        "∧".join(chr(ord("a") + position % 26) + str(position) for position in range(900)),
        # Characters.
        *(character * 4096 for character in "9,×:a \n\0"), "7\0", "\ud800\udfff", "\udc80" * 4000, "\u202e7\u202c",
        "\u0667\uff17", "e\u0301" * 2000, "\U0010ffff" * 2000, "x" * 1_000_000,
    ]  # fmt: skip
    outer = [
        "", "\0", *(tags * 100_000 for tags in ("<answer>", "</answer>", "<answer></answer>", "</answer><answer>")),
        "<answer>" * 60_000 + "</answer>" * 60_000, "<answer>" + "x" * 1_000_000, "<answer" * 100_000 + "</answer>",
        "<" * 1_000_000, code,
    ]  # fmt: skip
    return [*outer, *(f"<answer>{text}</answer>" for text in inner)]


@pytest.mark.parametrize("generator", sorted(ALLOWED))
def test_hostile_answers_have_no_effect_and_score_nothing(generator: str, tmp_path: Path) -> None:
    sentinel = tmp_path / "evaluated"
    task = TASKS[generator]
    with watched() as events:
        for text in hostile(sentinel):
            start = time.process_time()
            score = SOURCE.score(task, text)
            assert time.process_time() - start < SECONDS, text[:60]
            assert 0.0 <= score < 1.0, text[:60]
            SOURCE.judge(task, text)
    assert events == [] and not sentinel.exists() and SOURCE.verifier_errors == 0


def test_the_audit_hook_sees_evaluation() -> None:
    with watched() as events:
        eval("1 + 1")
    assert {"compile", "exec"} <= set(events)
