"""What all skills have in common: the same tasks everywhere, one right answer, and nothing held out in training."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from sapo_edge.errors import UnknownTaskError
from sapo_edge.events import WRONG
from sapo_edge.rollout import TaskRef
from sapo_edge.tasks.library import generator_version
from sapo_edge.tasks.manifest import Manifest, load_manifest
from sapo_edge.tasks.skills import PARTS, SKILLS, Skill
from sapo_edge.tasks.skills.extract import Extract
from sapo_edge.tasks.skills.home import Home
from sapo_edge.tasks.skills.tools import Tools
from sapo_edge.tasks.source import TaskSource

MADE: dict[str, tuple[Skill, str]] = {
    "extract": (Extract(), "bf8e64966f2f20f8779e0f42647b9f2c2be75142edef655e479b52bfe75284f9"),
    "tools": (Tools(), "9e2dd15b1ab3f655d558c980151da94bff243f5aec303e5f8cd6664a498c779e"),
    "home en": (Home(("en",)), "6dda244e896e637a379b3e0ee98440d5ea5cc56e8dc558928bcec11c4f9418a7"),
    "home de": (Home(("de",)), "ce364c688abd6cfd50c0a827b305368533d54b2ac9fc799829f65008dbcc3173"),
    "home fr": (Home(("fr",)), "c97793a49b6f4aa1161e836679ea710c24a54a36bf533db82223d2dd393da6b9"),
    "home es": (Home(("es",)), "a10bf5e9acee35443c82f599f7e0eff1a1c94d309c314f363aa3aa43ce949512"),
    "home pt": (Home(("pt",)), "372232dd738c9683ba75aeea9d4725957af9ce673b0b4776362c4f4c08060848"),
}
"""The SHA-256 of 50 tasks of each part. Renew it after a deliberate change, which also counts up `rules`."""
VERSIONS = {"extract": "extract-b9ac914da777", "home": "home-353c41e6d8a3", "tools": "tools-84f603b8fac9"}
SOURCES = {name: TaskSource(load_manifest(name)) for name in SKILLS}
each_source = pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)


@pytest.mark.parametrize("name", MADE)
def test_tasks_are_the_same_on_every_system_and_version_of_python(name: str) -> None:
    skill, digest = MADE[name]
    made = [skill.generate(seed, part) for part in PARTS for seed in range(50)]
    text = json.dumps([(task["question"], task["answer"]) for task in made])
    assert hashlib.sha256(text.encode()).hexdigest() == digest


def test_versions_name_data_and_code() -> None:
    assert {name: generator_version(name) for name in SKILLS} == VERSIONS


@pytest.mark.parametrize("name", MADE)
def test_no_request_has_two_answers(name: str) -> None:
    answers: dict[str, str] = {}
    for seed in range(5000):
        task = MADE[name][0].generate(seed, PARTS[seed % 3])
        # Of tools not even where others are shown: the request alone decides.
        request = task["question"].split("\n\n")[1] if name == "tools" else task["question"]
        answer = task["answer"].lower()
        assert answers.setdefault(request.lower().rstrip(".!?"), answer) == answer


def reordered(value: object) -> object:
    return {key: reordered(value[key]) for key in reversed(value)} if isinstance(value, dict) else value


@each_source
def test_every_answer_is_right_for_its_own_request_alone(source: TaskSource) -> None:
    held_out = [task for part in ("validation", "test") for task in source.held_out(part, 100)]
    for task, other in pairwise([*source.training_tasks(3, 0, 200)[0], *held_out]):
        for answer in (task.ground_truth, json.dumps(reordered(json.loads(task.ground_truth)), indent=1)):
            assert source.score(task, f"<answer>{answer}</answer>") == 1.0
            assert source.judge(task, f"Sure: {answer}") != WRONG
        assert (source.judge(task, other.ground_truth) != WRONG) == (task.ground_truth == other.ground_truth)
        assert source.score(task, task.question) == 0.0
    assert source.verifier_errors == 0


@each_source
def test_what_a_reference_gives_is_a_task_for_training(source: TaskSource) -> None:
    held_out = [task for part in ("validation", "test") for task in source.held_out(part, 200)]
    assert len({task.question for task in held_out}) == 400
    templates = {task.generated["metadata"]["template"] for task in held_out}
    for task in (*held_out[:20], *source.training_tasks(1, 0, 200)[0]):
        assert source.regenerate(task.ref).generated["metadata"]["template"] not in templates
    with pytest.raises(UnknownTaskError, match="another version of sapo-edge"):
        source.regenerate(TaskRef(source.manifest.tasks[0].name, "home-000000000000", 1, 1))


@each_source
def test_partial_credit_is_the_share_of_right_fields(source: TaskSource) -> None:
    (entry,) = source.manifest.tasks
    lenient = TaskSource(Manifest("one", (replace(entry, partial_credit=True),)))
    for task in lenient.training_tasks(1, 0, 30)[0]:
        right: dict[str, Any] = json.loads(task.ground_truth)
        # Of a call the arguments count, if the tool is right.
        fields, key = (right["arguments"], "arguments") if "arguments" in right else (right, "")
        first, count = next(iter(fields)), len(fields)
        for change, share in (({first: "nothing"}, (count - 1) / count), ({"more": 1}, count / (count + 1))):
            answer = {**right, key: {**fields, **change}} if key else {**fields, **change}
            assert lenient.score(task, f"<answer>{json.dumps(answer)}</answer>") == pytest.approx(share)
        if key:
            assert lenient.score(task, json.dumps({**right, "name": "nothing"})) == 0.0
