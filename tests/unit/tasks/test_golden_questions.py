"""A recorded question of every allowed generator: another version of ReasoningGYM that makes others is noticed by name.

Renew the record after a deliberate change: `python -m tests.unit.tasks.test_golden_questions`. The digests of manifests
are of those that swarms already have.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sapo_edge.rollout import TaskRef
from sapo_edge.tasks.allowed import ALLOWED
from sapo_edge.tasks.library import generator_version, library_version
from sapo_edge.tasks.manifest import Manifest, TaskEntry, load_manifest, shipped_manifests, shipped_name
from sapo_edge.tasks.source import TaskSource

FILE = Path(__file__).with_name("golden_questions.json")
GOLDEN: dict[str, Any] = json.loads(FILE.read_text("utf-8"))
SHIPPED = {
    "arithmetic": "40c0cf73194dc0282877f0c29699d0ce64e48b299216f3456f355a27f88b541c",
    "extract": "b9918d168485c7c0818fcedcc2602c6b7e15d60d7f6935fbe1e14b6a587a23a0",
    "home": "985c67f9603a8248751787b3bb69ddb2a96bbf0a776d004b524bb1d8d2510d38",
    "reasoning-gym-nine": "1c198decdfed1335285c06cca928fe3d4e65c71db34ef5d1aef0257bcbfce050",
    "starter": "1822947f6c3245b5d7f5c6ed49ea77875ab07aa272a095bf73d61ac60ea8ce56",
    "starter-1": "0b6d1d9c8d0bb92564e3e6e6999e3ff1d8234f615a7f57a04cb6be54ffb12b82",
    "starter-2": "a0d2871f81a76f0c4832cb0ec169203d63742eefcb19e3dd6be7fbea461edc7e",
    "tools": "91c63e36e6153d5eb05a396c0202be478a8da49a62cd4a080c820b1e1a0f925a",
}


def make(generator: str, config: dict[str, Any], seed: int, index: int) -> dict[str, Any]:
    source = TaskSource(Manifest("golden", (TaskEntry(generator, generator, config),)))
    task = source.regenerate(TaskRef(generator, generator_version(generator), seed, index))
    return {"config": config, "seed": seed, "index": index, "question": task.question, "answer": task.ground_truth}


@pytest.mark.parametrize("generator", sorted(ALLOWED))
def test_a_generator_makes_the_recorded_question(generator: str) -> None:
    record = GOLDEN["questions"][generator]
    made = make(generator, record["config"], record["seed"], record["index"])
    assert made == record, f"{generator} of reasoning_gym {library_version()} is not that of {GOLDEN['reasoning_gym']}"


def test_every_allowed_generator_is_recorded_and_the_shipped_manifests_keep_their_digests() -> None:
    assert set(GOLDEN["questions"]) == set(ALLOWED) and GOLDEN["reasoning_gym"] == library_version()
    assert {name: load_manifest(name).digest for name in shipped_manifests()} == SHIPPED
    # That of earlier states.
    assert shipped_name(SHIPPED["starter-1"]) == "starter-1" and load_manifest("starter-1").name == "starter"
    assert shipped_name("0" * 64) is None


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
