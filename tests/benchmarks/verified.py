"""Questions of `tools` of which nobody knows the right answer, but anybody can check one: for strong and weak members.

`python -m tests.benchmarks.verified DIRECTORY` writes a manifest and its questions. Each call is checked by an
expression, and the answer that stands beside it fails it, so that a head start finds none: it has to search, among own
answers and others'. docs/results.md has the commands and what came out.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from sapo_edge.rollout import Task
from sapo_edge.tasks.checks import MAX_PATTERN_BYTES
from sapo_edge.tasks.manifest import load_manifest
from sapo_edge.tasks.source import TaskSource

QUESTIONS = {"train": 4000, "validation": 100, "test": 200}
UNKNOWN = "?"
"""In place of the right answer."""


def make(directory: Path) -> None:
    """Write manifest and questions."""
    manifest = load_manifest("tools")
    source = TaskSource(manifest)
    splits = {
        "train": source.training_tasks(0, 0, QUESTIONS["train"])[0],
        "validation": source.held_out("validation", QUESTIONS["validation"]),
        "test": source.held_out("test", QUESTIONS["test"]),
    }
    lines = {asked: line for split, tasks in splits.items() for task in tasks for asked, line in question(task, split)}
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "calls.jsonl").write_text("\n".join(lines.values()) + "\n")
    (directory / "manifest.toml").write_text(
        f'name = "calls"\nprotocol = 1\nmax_tokens = {manifest.max_tokens}\nsystem = {json.dumps(manifest.system)}\n\n'
        '[[tasks]]\nname = "calls"\nquestions = "calls.jsonl"\nreading = "json"\n'
    )


def question(task: Task, split: str) -> list[tuple[str, str]]:
    """A question and its line in the file; none if its expression is too long."""
    pattern = expression(task.ground_truth)
    if len(pattern.encode()) > MAX_PATTERN_BYTES:
        return []
    row = {"question": task.question, "answer": UNKNOWN, "check": "regex", "pattern": pattern, "split": split}
    return [(task.question, json.dumps(row))]


def expression(call: str) -> str:
    """What matches a call, with white space as a model may put it."""
    return re.sub(r"([:,])", r"\1 *", re.escape(call).replace("\\ ", " "))


if __name__ == "__main__":
    make(Path(sys.argv[1]))
