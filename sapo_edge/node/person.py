"""A person as a generator: a question, a few answers, and a rollout like any other.

`as_dict` gives the form on the control socket. `from_dict` reads it; anything else is a ConfigError.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any

from sapo_edge.errors import ConfigError, UnknownTaskError
from sapo_edge.fields import check_flag, check_list, check_number, check_text
from sapo_edge.rollout import MAX_ANSWERS, Answer, Rollout, Task, TaskRef
from sapo_edge.tasks.readings import CLOSE_TAG, MAX_ANSWER_CHARACTERS, OPEN_TAG

if TYPE_CHECKING:
    from sapo_edge.tasks.source import TaskSource

MAX_INDEX = 2**48
"""Questions for a person are drawn from this many indices, so hardly ever the same one twice."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question for a person, from the manifest of this digest (hex)."""

    ref: TaskRef
    text: str
    manifest: str

    def as_dict(self) -> dict[str, Any]:
        return {"ref": list(astuple(self.ref)), "question": self.text, "manifest": self.manifest}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Question:
        with _reading("question"):
            text, manifest = (check_text(name, fields.get(name)) for name in ("question", "manifest"))
            return cls(_read_ref(fields), text, manifest)


@dataclass(frozen=True, slots=True)
class PersonAnswers:
    """A person's answers to one question.

    Attributes:
        answers: the texts to share, with answer tags.
        manifest: digest (hex) of the task's manifest.
    """

    ref: TaskRef
    answers: tuple[str, ...]
    manifest: str

    def __post_init__(self) -> None:
        if not 1 <= len(self.answers) <= MAX_ANSWERS:
            raise ConfigError(f"{len(self.answers)} answers were given", f"give 1 to {MAX_ANSWERS}")
        try:
            for text in self.answers:
                Answer(text, True)
        except ValueError as error:
            raise ConfigError(f"an answer can't be shared: {error}", "give a shorter one, of valid text") from error

    def as_dict(self) -> dict[str, Any]:
        return {"ref": list(astuple(self.ref)), "answers": list(self.answers), "manifest": self.manifest}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> PersonAnswers:
        with _reading("answers"):
            texts = tuple(check_text("answer", text) for text in check_list("answers", fields.get("answers")))
            return cls(_read_ref(fields), texts, check_text("manifest", fields.get("manifest")))


@dataclass(frozen=True, slots=True)
class Verdict:
    """The rewards of a person's answers, in [0, 1], the ground truth or "", and whether they went to the swarm."""

    rewards: tuple[float, ...]
    expected: str
    shared: bool

    def as_dict(self) -> dict[str, Any]:
        return {"rewards": list(self.rewards), "expected": self.expected, "shared": self.shared}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], answers: int) -> Verdict:
        """The verdict on so many answers."""
        with _reading("verdict"):
            rewards = check_list("rewards", fields.get("rewards"))
            if len(rewards) != answers:
                raise ValueError(f"{len(rewards)} rewards for {answers} answers")
            return cls(
                tuple(check_number("reward", reward, 0, 1) for reward in rewards),
                check_text("expected", fields.get("expected")),
                check_flag("shared", fields.get("shared")),
            )


def draw_question(source: TaskSource, seed: int) -> Question:
    """Draw a question that is not held out, and hardly ever one that was asked before."""
    # Every verifier: the terminal app only shows the question.
    from sapo_edge.tasks.source import derive_seed

    tasks, _ = source.training_tasks(derive_seed("person", seed), secrets.randbelow(MAX_INDEX), 1)
    return Question(tasks[0].ref, tasks[0].question, source.manifest.digest)


def tag_answer(typed: str) -> str:
    """The typed text in answer tags, as verifiers expect it."""
    return typed if CLOSE_TAG in typed else f"{OPEN_TAG}{typed}{CLOSE_TAG}"


def is_too_long(typed: str) -> bool:
    """Whether an answer is longer than verifiers accept."""
    return len(typed) > MAX_ANSWER_CHARACTERS


def verify_answers(source: TaskSource, answers: PersonAnswers) -> tuple[Task, tuple[float, ...]]:
    """The regenerated task, and the reward of each answer; an UnknownTaskError if it is not drawn here, or held out."""
    remedy = "answer a new question with `sapo answer`"
    if answers.manifest != source.manifest.digest:
        raise UnknownTaskError("the question belongs to another manifest", remedy)
    task = source.regenerate(answers.ref)
    if not source.is_drawn(answers.ref):
        # Other nodes would hold it against this one.
        raise UnknownTaskError("the manifest does not draw this question", remedy)
    if source.is_held_out(task.question):
        raise UnknownTaskError("the question is held out of training", remedy)
    return task, tuple(source.score(task, text) for text in answers.answers)


def person_rollout(task: Task, answers: PersonAnswers, *, author: str, round: int, sequence: int) -> Rollout:
    """The rollout that a node shares for a person now."""
    texts = tuple(Answer(text, True) for text in answers.answers)
    return Rollout(task.ref, task.question, task.ground_truth, texts, author, round, sequence, time.time())


def _read_ref(fields: Mapping[str, Any]) -> TaskRef:
    ref = check_list("ref", fields.get("ref"))
    if len(ref) != 4:
        raise ValueError("ref does not have 4 items")
    return TaskRef(*ref)


@contextmanager
def _reading(what: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ConfigError(f"the {what} can't be read: {error}", "update sapo-edge, so that all parts agree") from error
