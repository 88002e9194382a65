"""A person as a generator: a question, a few answers, a rollout like any other.

What a person typed while no node ran waits in a bounded file, and the next node shares it. Every node verifies it anew.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sapo_edge.errors import ConfigError, StateError, UnknownTaskError
from sapo_edge.rollout import MAX_ANSWERS, Answer, Rollout, Task, TaskRef
from sapo_edge.state.durable import reported, write_atomically
from sapo_edge.tasks.answers import CLOSE_TAG, MAX_ANSWER_CHARACTERS, OPEN_TAG
from sapo_edge.tasks.source import TaskSource, derive_seed

MAX_OUTBOX = 64
"""Rollouts of a person that wait at most; the oldest make room."""
MAX_OUTBOX_BYTES = 2 * 1024 * 1024
"""Largest file of them."""
MAX_INDEX = 2**48
"""Questions for a person are drawn from so many indices: hardly ever the same one twice."""
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Question:
    """What a person is asked.

    Attributes:
        ref: of the task.
        text: the question.
        manifest: digest (hex) of the manifest that it comes from.
    """

    ref: TaskRef
    text: str
    manifest: str

    def as_dict(self) -> dict[str, Any]:
        """As it travels on the control socket."""
        return {"ref": _ref_list(self.ref), "question": self.text, "manifest": self.manifest}

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Question:
        """What `as_dict` made.

        Raises:
            ConfigError: if it is anything else.
        """
        if not isinstance(found.get("question"), str) or not isinstance(found.get("manifest"), str):
            raise _malformed("question")
        return cls(_ref_from(found.get("ref")), found["question"], found["manifest"])


@dataclass(frozen=True, slots=True)
class Given:
    """What a person answered.

    Attributes:
        ref: of the task.
        answers: texts as they are shared, with answer tags.
        manifest: digest (hex) of the manifest.
        time: Unix seconds.
    """

    ref: TaskRef
    answers: tuple[str, ...]
    manifest: str
    time: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        if not 1 <= len(self.answers) <= MAX_ANSWERS:
            raise ConfigError(f"{len(self.answers)} answers were given", f"give 1 to {MAX_ANSWERS}")
        try:
            for text in self.answers:
                Answer(text, True)
        except ValueError as error:
            raise ConfigError(f"an answer can't be shared: {error}", "give a shorter one, of valid text") from error

    def as_dict(self) -> dict[str, Any]:
        """As it travels on the control socket, and stands in the file."""
        return {
            "ref": _ref_list(self.ref), "answers": list(self.answers), "manifest": self.manifest, "time": self.time,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the verifier made of a person's answers.

    Attributes:
        rewards: one for each answer, in [0, 1].
        expected: the ground truth, "" where there is none.
        shared: whether a node handed it to its swarm.
    """

    rewards: tuple[float, ...]
    expected: str
    shared: bool

    def as_dict(self) -> dict[str, Any]:
        """As it travels on the control socket."""
        return {"rewards": list(self.rewards), "expected": self.expected, "shared": self.shared}


def given_from(found: Mapping[str, Any]) -> Given:
    """Answers as `Given.as_dict` wrote them.

    Raises:
        ConfigError: if it is anything else.
    """
    answers, manifest, moment = found.get("answers"), found.get("manifest"), found.get("time")
    if not isinstance(answers, list) or not all(isinstance(text, str) for text in answers):
        raise _malformed("answers")
    if not isinstance(manifest, str) or isinstance(moment, bool) or not isinstance(moment, int | float):
        raise _malformed("answers")
    if not 0 <= moment < 2**40:
        raise _malformed("answers")
    return Given(_ref_from(found.get("ref")), tuple(answers), manifest, float(moment))


def draw_question(source: TaskSource, seed: int) -> Question:
    """A question that is not held out, and hardly ever asked before.

    Args:
        source: the manifest's tasks.
        seed: the node's own.
    """
    tasks, _ = source.training_tasks(derive_seed("person", seed), secrets.randbelow(MAX_INDEX), 1)
    return Question(tasks[0].ref, tasks[0].question, source.manifest.digest)


def tagged(typed: str) -> str:
    """What a person typed as the completion that verifiers expect."""
    return typed if CLOSE_TAG in typed else f"{OPEN_TAG}{typed}{CLOSE_TAG}"


def too_long(typed: str) -> bool:
    """Whether an answer is longer than any verifier reads."""
    return len(typed) > MAX_ANSWER_CHARACTERS


def verify_answers(source: TaskSource, given: Given) -> tuple[Task, tuple[float, ...]]:
    """The task made anew, and the reward of each answer.

    Raises:
        UnknownTaskError: if it is none of this manifest, or is held out.
    """
    remedy = "answer a new question with `sapo answer`"
    if given.manifest != source.manifest.digest:
        raise UnknownTaskError("the question is of another manifest", remedy)
    task = source.regenerate(given.ref)
    if source.is_held_out(task.question):
        raise UnknownTaskError("the question is held out of training", remedy)
    return task, tuple(source.score(task, text) for text in given.answers)


def rollout_of(task: Task, given: Given, *, author: str, round: int, sequence: int) -> Rollout:
    """A person's answers as a rollout of the node that shares them."""
    answers = tuple(Answer(text, True) for text in given.answers)
    return Rollout(task.ref, task.question, task.ground_truth, answers, author, round, sequence, given.time)


class Outbox:
    """Answers of a person that wait for a node; a file of mode 0600.

    Args:
        path: the file; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, given: Given) -> int:
        """Keep answers for the next node.

        Returns:
            How many now wait.

        Raises:
            StateError: if the file can't be written, or is damaged.
        """
        waiting = [*self.read(), given][-MAX_OUTBOX:]
        while len(waiting) > 1 and len(_encode(waiting)) > MAX_OUTBOX_BYTES:
            del waiting[0]
        self._write(waiting)
        return len(waiting)

    def read(self) -> list[Given]:
        """All that wait, oldest first.

        Raises:
            StateError: if the file can't be read or is damaged.
        """
        if not self.path.exists():
            return []
        with reported("read", self.path), self.path.open("rb") as file:
            data = file.read(MAX_OUTBOX_BYTES + 1)
        try:
            found = json.loads(data)
            if found["v"] != _VERSION or len(data) > MAX_OUTBOX_BYTES or len(found["waiting"]) > MAX_OUTBOX:
                raise ValueError("not of this version, or too large")
            return [given_from(item) for item in found["waiting"]]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, ConfigError) as error:
            raise StateError(f"{self.path} is damaged", "remove it; the answers in it are lost") from error

    def take(self, manifest: str) -> list[Given]:
        """Remove and return those that answer questions of a manifest.

        Args:
            manifest: its digest (hex).

        Raises:
            StateError: if the file can't be read or written, or is damaged.
        """
        waiting = self.read()
        taken = [given for given in waiting if given.manifest == manifest]
        if taken:
            self._write([given for given in waiting if given.manifest != manifest])
        return taken

    def _write(self, waiting: Sequence[Given]) -> None:
        with reported("write", self.path):
            write_atomically(self.path, _encode(waiting))


def _encode(waiting: Sequence[Given]) -> bytes:
    return json.dumps({"v": _VERSION, "waiting": [given.as_dict() for given in waiting]}, ensure_ascii=False).encode()


def _ref_list(ref: TaskRef) -> list[str | int]:
    return [ref.entry, ref.version, ref.seed, ref.index]


def _ref_from(found: object) -> TaskRef:
    if not isinstance(found, list) or len(found) != 4:
        raise _malformed("reference")
    try:
        return TaskRef(*found)
    except ValueError as error:
        raise _malformed("reference") from error


def _malformed(what: str) -> ConfigError:
    return ConfigError(f"the {what} that arrived can't be read", "update sapo-edge, so that all parts agree")
