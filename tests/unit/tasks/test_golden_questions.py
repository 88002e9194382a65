"""A recorded question of every allowed generator: another version of ReasoningGYM that makes others is noticed by name.

Renew the record after a deliberate change: `python -m tests.unit.tasks.test_golden_questions`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sapo_edge.rollout import TaskRef
from sapo_edge.tasks.allowed import ALLOWED
from sapo_edge.tasks.library import generator_version, library_version
from sapo_edge.tasks.manifest import Manifest, TaskEntry
from sapo_edge.tasks.source import TaskSource

FILE = Path(__file__).with_name("golden_questions.json")
GOLDEN: dict[str, Any] = json.loads(FILE.read_text("utf-8"))


def make(generator: str, config: dict[str, Any], seed: int, index: int) -> dict[str, Any]:
    source = TaskSource(Manifest("golden", (TaskEntry(generator, generator, config),)))
    task = source.regenerate(TaskRef(generator, generator_version(generator), seed, index))
    return {"config": config, "seed": seed, "index": index, "question": task.question, "answer": task.ground_truth}


def test_every_allowed_generator_is_recorded() -> None:
    assert set(GOLDEN["questions"]) == set(ALLOWED)
    assert GOLDEN["reasoning_gym"] == library_version()


@pytest.mark.parametrize("generator", sorted(ALLOWED))
def test_a_generator_makes_the_recorded_question(generator: str) -> None:
    record = GOLDEN["questions"][generator]
    made = make(generator, record["config"], record["seed"], record["index"])
    assert made == record, f"{generator} of reasoning_gym {library_version()} is not that of {GOLDEN['reasoning_gym']}"


def renew() -> None:
    """Make every question again, with the recorded configuration, seed and index if there are any."""
    questions = {}
    for generator in sorted(ALLOWED):
        record = GOLDEN["questions"].get(generator, {"config": {}, "seed": 9, "index": 4})
        questions[generator] = make(generator, record["config"], record["seed"], record["index"])
    content = {"reasoning_gym": library_version(), "questions": questions}
    FILE.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    renew()
