"""Fakes for slow or random parts: a scripted policy, tasks scored by length, hand-made rollouts, a clock."""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Never

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from sapo_edge import events
from sapo_edge.errors import CheckpointError
from sapo_edge.events import Event, RoundFinished, to_json
from sapo_edge.policy import (
    STOP_TEXT,
    CallHandle,
    Message,
    Prompt,
    Sample,
    TrainingGroup,
    UpdateSettings,
    UpdateStatistics,
)
from sapo_edge.rollout import Answer, Rollout, Task, TaskRef
from sapo_edge.tasks.source import TaskSource
from sapo_edge.transport import Receiver

RIGHT = "right"
WRONG = "wrong"

Script = Callable[[Prompt, int], str]
"""(prompt, position in the group) -> answer."""


def first_is_right(_prompt: Prompt, position: int) -> str:
    """Groups with a gradient: one right answer, the others wrong."""
    return RIGHT if position == 0 else WRONG


def score_text(_task: Task, text: str) -> float:
    """1 for `RIGHT`."""
    return float(text == RIGHT)


def ask(question: str) -> Prompt:
    return (Message("user", question),)


@dataclass
class Call:
    """What a policy was asked to generate."""

    prompts: tuple[Prompt, ...]
    max_tokens: int
    greedy: bool
    use_adapter: bool
    stop_text: str


@dataclass
class FakePolicy:
    """A policy whose whole state is one line of text, which every update changes.

    Without a script, an answer is a letter repeated as often as state, seed and prompt determine. The context is the
    most characters of a prompt and tokens of its answer. 0 steps of an update stand for a gradient that is not finite.
    `prompts` and `seeds` are those of calls of `generate` that are not greedy.
    """

    script: Script | None = None
    name: str = "a fake"
    backend: str = "fake"
    model_digest: str = "fake model"
    threads: int = 1
    state: str = "fresh"
    steps: int = 1
    context: int = 100_000
    log: list[str] = field(default_factory=list)
    prompts: list[tuple[Prompt, ...]] = field(default_factory=list)
    updates: list[tuple[TrainingGroup, ...]] = field(default_factory=list)
    settings: list[UpdateSettings] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    before_evaluate: Callable[[FakePolicy], None] | None = None
    before_generate: Callable[[FakePolicy], None] | None = None
    before_update: Callable[[FakePolicy], None] | None = None

    def generate(
        self, prompts: Sequence[Prompt], answers: int, max_tokens: int, temperature: float, seed: int,
        handle: CallHandle | None = None, *, use_adapter: bool = True, stop_text: str = STOP_TEXT,
        schema: str | None = None, begun: Sequence[Sequence[int]] = (),
    ) -> list[list[Sample]]:  # fmt: skip
        handle = handle or CallHandle()
        greedy = temperature == 0
        self.log.append("evaluate" if greedy else "generate")
        self.calls.append(Call(tuple(prompts), max_tokens, greedy, use_adapter, stop_text))
        if not greedy:
            self.prompts.append(tuple(prompts))
            self.seeds.append(seed)
        before = self.before_evaluate if greedy else self.before_generate
        if before is not None:
            before(self)
        groups = []
        for number, prompt in enumerate(prompts):
            handle.check()
            groups.append([self._sample(prompt, position, seed) for position in range(answers)])
            if handle.finished is not None:
                for position, sample in enumerate(groups[-1]):
                    handle.finished(number, position, sample)
            handle.report((number + 1) * answers, len(prompts) * answers)
        return groups

    def _sample(self, prompt: Prompt, position: int, seed: int) -> Sample:
        if self.script is not None:
            text = self.script(prompt, position)
        else:
            text = "x" * (_number(self.state, seed, position, *(turn.content for turn in prompt)) % 8)
        ids = tuple(text.encode())
        return Sample(ids, text, (-1.0,) * len(ids), True)

    def update(
        self, groups: Sequence[TrainingGroup], settings: UpdateSettings, handle: CallHandle | None = None
    ) -> UpdateStatistics:
        handle = handle or CallHandle()
        self.log.append("update")
        self.updates.append(tuple(groups))
        self.settings.append(settings)
        if self.before_update is not None:
            self.before_update(self)
        for number, _ in enumerate(groups):
            handle.check()
            handle.report(number + 1, len(groups))
        informative = sum(any(answer.advantage for answer in group.answers) for group in groups)
        if informative and self.steps:
            self.state = f"{_number(self.state, repr(groups)):016x}"
        return UpdateStatistics(groups=len(groups), informative=informative, steps=self.steps if informative else 0)

    def room(self, prompt: Prompt) -> int:
        return self.context - sum(len(turn.content) for turn in prompt)

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def cut(self, text: str, ended: bool, max_tokens: int) -> Answer:
        ids = tuple(self.encode(text)[:max_tokens])
        return Answer(bytes(ids).decode(errors="replace"), ended and len(ids) == len(text.encode()), ids)

    def weights(self) -> dict[str, npt.NDArray[Any]]:
        return {}

    def set_weights(self, weights: Mapping[str, npt.NDArray[Any]]) -> None:
        pass

    def save(self, directory: Path) -> None:
        self.log.append("save")
        (directory / "adapter_config.json").write_text(json.dumps({"state": self.state}))
        (directory / "adapter_model.safetensors").write_text(self.state)
        (directory / "optimizer.safetensors").write_text(self.state)

    def load(self, directory: Path) -> None:
        self.log.append("load")
        try:
            self.state = (directory / "adapter_model.safetensors").read_text()
        except OSError as error:
            raise CheckpointError("no adapter", "train one") from error

    def memory_estimate(self, groups: int, answers: int, prompt_tokens: int, max_tokens: int) -> int:
        return 0

    def close(self) -> None:
        self.log.append("close")


class SavedPolicy(FakePolicy):
    """A fake whose adapter is a file of tensors, as a shelf expects."""

    def save(self, directory: Path) -> None:
        save_file({"state": np.frombuffer(self.state.encode(), np.uint8)}, directory / "adapter_model.safetensors")

    def load(self, directory: Path) -> None:
        try:
            self.state = load_file(directory / "adapter_model.safetensors")["state"].tobytes().decode()
        except (OSError, SafetensorError) as error:
            raise CheckpointError("no adapter", "train one") from error


def _number(*parts: object) -> int:
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big")


class LengthScored(TaskSource):
    """A source that rewards the length of an answer, so that an untrained model earns unequal rewards."""

    def score(self, task: Task, text: str) -> float:
        return length_score(task, text)

    def judge(self, task: Task, text: str) -> str:
        return events.FORMED if length_score(task, text) == 1.0 else events.WRONG


def drawn_held_out(source: TaskSource) -> Task:
    """A held-out task at a reference that a node may draw."""
    tasks = (source.draw(12345, index) for index in range(5000))
    return next(task for task in tasks if source.is_held_out(task.question))


def length_score(_task: Task, text: str) -> float:
    """1 for an answer of an even number of characters."""
    return float(len(text) % 2 == 0)


def round_event(number: int, **changes: Any) -> RoundFinished:
    """A finished round of eight own groups; modified by `changes`."""
    return replace(
        RoundFinished(
            round=number, reward_own=0.25, reward_external=None, groups=8, informative=3, own=8, external=0,
            tokens=1234, seconds_generate=1.5, seconds_update=2.5, statistics={"loss": 0.5},
        ),
        **changes,
    )  # fmt: skip


def log_line(content: str | Event, time: float, level: str = "info", source: str = "sapo_edge.node") -> str:
    """A line of the log as `sapo_edge/state/logs.py` writes it, without its end."""
    fields: dict[str, object] = {"time": time, "level": level, "thread": "MainThread", "source": source}
    fields |= {"text": content} if isinstance(content, str) else {"event": json.loads(to_json(content))}
    return json.dumps(fields, separators=(",", ":"))


def make_rollout(
    author: str = "other", sequence: int = 1, texts: Sequence[str] = (RIGHT, WRONG), entry: str = "sums",
    question: str | None = None, ground_truth: str = "",
) -> Rollout:  # fmt: skip
    """A rollout of another node."""
    ref = TaskRef(entry, "1", 7, sequence)
    asked = f"question {sequence} of {author}?" if question is None else question
    return Rollout(ref, asked, ground_truth, tuple(Answer(text, True) for text in texts), author, 1, sequence, 1.5)


def numbered_tasks(cursor: int, count: int) -> tuple[tuple[Task, ...], int]:
    """Tasks "question 0", "question 1" ... from a cursor, for a `RoundContext`."""
    indices = range(cursor, cursor + count)
    tasks = (Task(TaskRef("sums", "1", 1, index), f"question {index}", RIGHT) for index in indices)
    return tuple(tasks), cursor + count


@dataclass
class FakeTransport:
    """A transport that remembers what was published, and who receives."""

    log: list[str] = field(default_factory=list)
    published: list[Rollout] = field(default_factory=list)
    receivers: list[Receiver] = field(default_factory=list)

    def publish(self, rollouts: Sequence[Rollout]) -> None:
        self.log.append("publish")
        self.published += rollouts

    def subscribe(self, receiver: Receiver) -> None:
        self.receivers[:] = [receiver]

    def close(self) -> None:
        self.log.append("close")


def find_the_disk_full(*_arguments: object, **_options: object) -> Never:
    raise OSError(errno.ENOSPC, "No space left on device")


class Clock:
    """A clock that only a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now
