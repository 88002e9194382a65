"""`sapo eval --general`: what is asked, how it is judged, and when a fall is told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sapo_edge.cli.adapters import forgotten
from sapo_edge.evaluate import Gain
from sapo_edge.library.workspace import Workspace
from sapo_edge.policy import Prompt, Sample
from sapo_edge.tasks.general import general_source
from tests.cli.inprocess import Invoke
from tests.fakes import FakePolicy

SOURCE = general_source()
TASKS = SOURCE.own_tasks()


class Forgetful(FakePolicy):
    """Knows all general questions, and 15 fewer with its adapter."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Prompt] = []

    def generate(self, prompts: Sequence[Prompt], *_: Any, use_adapter: bool = True, **__: Any) -> list[list[Sample]]:
        self.asked += prompts
        known = TASKS[15:] if use_adapter else TASKS
        answers = {task.question: task.ground_truth for task in known}
        return [[Sample((), answers.get(prompt[-1].content, "?"), (), True)] for prompt in prompts]

    def load(self, directory: Path) -> None:
        """Nothing."""


def test_both_are_asked_and_a_fall_is_told(invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    policy = Forgetful()
    monkeypatch.setattr(Workspace, "open_policy", lambda *_, **__: (policy, ()))
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 16, "lora_alpha": 32, "peft_type": "LORA"}))
    command = ("eval", "--general", "--home", tmp_path / "home", "--adapter", tmp_path)
    result = invoke(*command, "--json")
    record = result.record
    assert (record["manifest"], record["split"], record["may_have_seen"]) == ("general", "general", False)
    assert (record["base"]["correct"], record["adapter"]["correct"], record["gain"]["lost"]) == (60, 45, 15)
    assert {len(prompt) for prompt in policy.asked} == {1}, "without the prompt of the training"
    assert "has forgotten some" in result.err and "--head-start" in result.err
    table = invoke(*command)
    assert "15 became wrong" in table.out and "in the form asked for" not in table.out
    for flag in (("--questions", "5"), ("--manifest", "starter")):
        assert "has questions of its own" in invoke(*command, *flag).err
    assert not forgotten(Gain(-0.05, -0.12, 0.02, 2, 5)) and forgotten(Gain(-0.05, -0.12, -0.01, 0, 5))


def test_each_general_question_knows_its_answer_and_what_is_none() -> None:
    assert len({task.question for task in TASKS}) == len(TASKS) == 60
    answers = ["", "I don't know.", "?", '{"intent": "HassTurnOn"}', "66"]
    for task in TASKS:
        assert SOURCE.judge(task, task.ground_truth).right, task.question
        if task.ref.entry in ("facts", "sums", "words"):
            assert SOURCE.judge(task, f"It is {task.ground_truth}, I think.").right, "read leniently"
        assert not any(SOURCE.judge(task, text).right for text in answers), task.question
