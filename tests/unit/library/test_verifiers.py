"""The package `verifiers` as it is installed, at 560 MB not for the tests: skipped without it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sapo_edge.errors import ConfigError, DataError
from sapo_edge.library.environments import Environment

pytest.importorskip("verifiers.v1")

WORDS = """
import verifiers.v1 as vf

class Data(vf.TaskData):
    answer: str

class WordTask(vf.Task[Data]):
    @vf.reward(weight=1.0)
    async def right(self, trace: vf.Trace) -> float:
        if trace.last_reply == "fail":
            raise KeyError("oops")
        return float(trace.last_reply == self.data.answer)

    @vf.reward(weight=0.2)
    async def short(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply) < 5)

class Config(vf.TasksetConfig):
    count: int = 5

class WordTaskset(vf.Taskset[WordTask, Config]):
    def load(self):
        print("said on stdout")
        for number in range(self.config.count):
            yield WordTask(Data(prompt=f"{number}?", system_prompt="Be brief.", answer=f"{number}!"), self.config.task)

__all__ = ["WordTaskset"]
"""
REFUSED = {
    "has a course of its own": ("", "class Own(vf.SingleAgentEnv):\n    pass\n"),
    "works on a machine": ("    async def finalize(self, trace, runtime):\n        pass\n", ""),
    "needs a machine to judge": ("    @vf.reward\n    async def ran(self, trace, runtime):\n        return 1.0\n", ""),
    "gives the model tools": ("    @classmethod\n    def toolsets(cls, config):\n        return [object()]\n", ""),
    "needs a container": ("    NEEDS_CONTAINER = True\n", ""),
}


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory whose modules processes can import."""
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[3]}")
    return tmp_path


def test_an_environment_gives_its_tasks_and_judges_their_answers(modules: Path) -> None:
    (modules / "some_words.py").write_text(WORDS)
    environment = Environment("verifiers:some-words?count=3", print)
    rows = list(environment.rows())
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "0?"}]
    assert len(rows) == 3 and rows[0] == {"prompt": turns, "answer": "0!"}
    assert [environment("1?", "", text) for text in ("1!", "no", "a long one")] == [1.0, 0.2, 0.0]
    with pytest.raises(DataError, match="KeyError: 'oops'"):
        environment("1?", "", "fail")
    environment.close()


@pytest.mark.parametrize("reason", REFUSED)
def test_what_one_answer_does_not_decide_is_refused(modules: Path, reason: str) -> None:
    of_task, of_module = REFUSED[reason]
    text = WORDS.replace("class WordTask(vf.Task[Data]):\n", f"class WordTask(vf.Task[Data]):\n{of_task}")
    names = '["WordTaskset", "Own"]' if of_module else '["WordTaskset"]'
    (modules / "refused_words.py").write_text(text.replace('["WordTaskset"]', names) + of_module)
    with pytest.raises(ConfigError, match=reason):
        Environment("verifiers:refused-words", print)


def test_a_manifest_is_an_environment_with_its_prompt_and_rewards() -> None:
    from sapo_edge.library.environment import SapoConfig, SapoTaskset
    from sapo_edge.library.environment_process import check, score, turns_of

    tasks = list(SapoTaskset(SapoConfig(manifest="starter", questions=4)))
    check(tasks[0])
    assert [turn["role"] for turn in turns_of(tasks[0])] == ["system", "user"] and len(tasks) == 4
    scores = [(asyncio.run(score(task, task.data.answer)), asyncio.run(score(task, "no"))) for task in tasks]
    assert scores == [(1.0, 0.0)] * 4
    again = list(SapoTaskset(SapoConfig(manifest="starter", split="train", questions=2, seed=5)))
    assert again[0].data.prompt != tasks[0].data.prompt
