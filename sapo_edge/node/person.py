"""A person as a generator: a question, a few answers, and a rollout like any other.

Answers typed while no node runs wait in a bounded file until the next node shares them. Every node verifies them again.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sapo_edge.errors import ConfigError, StateError, UnknownTaskError
from sapo_edge.events import Notice
from sapo_edge.fields import check_flag, check_list, check_map, check_number, check_text
from sapo_edge.rollout import MAX_ANSWERS, Answer, Rollout, Task, TaskRef
from sapo_edge.state.durable import reported, unused_path, write_atomically
from sapo_edge.state.lock import locked
from sapo_edge.tasks.answers import CLOSE_TAG, MAX_ANSWER_CHARACTERS, OPEN_TAG

if TYPE_CHECKING:
    from sapo_edge.node.rounds import Node
    from sapo_edge.tasks.source import TaskSource

MAX_OUTBOX = 64
"""Most sets of answers that wait; the oldest make room."""
MAX_OUTBOX_BYTES = 2 * 1024 * 1024
"""Largest file of them."""
MAX_INDEX = 2**48
"""Questions for a person are drawn from this many indices, so hardly ever the same one twice."""
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Question:
    """A question for a person.

    Attributes:
        manifest: digest (hex) of the task's manifest.
    """

    ref: TaskRef
    text: str
    manifest: str

    def as_dict(self) -> dict[str, Any]:
        """The form on the control socket."""
        return {"ref": _ref_list(self.ref), "question": self.text, "manifest": self.manifest}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Question:
        """Read what `as_dict` wrote.

        Raises:
            ConfigError: if it is anything else.
        """
        with _reading("question"):
            text, manifest = (check_text(name, fields.get(name)) for name in ("question", "manifest"))
            return cls(_read_ref(fields), text, manifest)


@dataclass(frozen=True, slots=True)
class PersonAnswers:
    """A person's answers to one question.

    Attributes:
        answers: the texts to share, with answer tags.
        manifest: digest (hex) of the task's manifest.
        time: Unix seconds at which they were given.

    Raises:
        ConfigError: if there are no answers, too many, or one that can't be shared.
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
        """The form on the control socket and in the file."""
        return {
            "ref": _ref_list(self.ref), "answers": list(self.answers), "manifest": self.manifest, "time": self.time,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> PersonAnswers:
        """Read what `as_dict` wrote.

        Raises:
            ConfigError: if it is anything else.
        """
        with _reading("answers"):
            texts = tuple(check_text("answer", text) for text in check_list("answers", fields.get("answers")))
            time = check_number("time", fields.get("time"), 0, 2**40)
            return cls(_read_ref(fields), texts, check_text("manifest", fields.get("manifest")), time)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verifier's result for a person's answers.

    Attributes:
        rewards: one for each answer, in [0, 1].
        expected: the ground truth, "" if there is none.
        shared: whether a node shared them with its swarm.
    """

    rewards: tuple[float, ...]
    expected: str
    shared: bool

    def as_dict(self) -> dict[str, Any]:
        """The form on the control socket."""
        return {"rewards": list(self.rewards), "expected": self.expected, "shared": self.shared}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], answers: int) -> Verdict:
        """Read what `as_dict` wrote for so many answers.

        Raises:
            ConfigError: if it is anything else.
        """
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
    """Draw a question that is not held out, and hardly ever one that was asked before.

    Args:
        seed: the node's own.
    """
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
    """The regenerated task, and the reward of each answer.

    Raises:
        UnknownTaskError: if the task is not of this manifest, is not one that it draws, or is held out.
    """
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
    # Answers may have waited for days. Their age says nothing about a policy, and peers reject what is too old.
    return Rollout(task.ref, task.question, task.ground_truth, texts, author, round, sequence, time.time())


def share(node: Node, given: PersonAnswers, *, shared: bool) -> Verdict:
    """Verify a person's answers and publish them as a rollout of the node.

    Raises:
        UnknownTaskError: if the question is not of the node's manifest.
    """
    task, rewards = verify_answers(node.source, given)
    sequence = node.store.journal.reserve_sequences(1)
    # Peers learn from the text: tags would teach a form that nobody asked for.
    asked = replace(given, answers=tuple(node.source.as_asked(task, text) for text in given.answers))
    node.transport.publish([person_rollout(task, asked, author=node.author, round=node.round, sequence=sequence)])
    return Verdict(rewards, task.ground_truth, shared)


class Outbox:
    """A person's answers that wait for a node, in a file of mode 0600. Several programs may change it at once.

    A damaged file is renamed, so that it stops nothing.

    Args:
        path: the file; it need not exist.
        warn: receives a message when the file is damaged.
    """

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        self.path = path
        self._lock = path.with_suffix(".lock")
        self._warn = warn

    def add(self, answers: PersonAnswers) -> int:
        """Keep answers for the next node.

        Returns:
            Number of sets that wait now.
        """
        with locked(self._lock):
            waiting = [*self.read(), answers][-MAX_OUTBOX:]
            while len(waiting) > 1 and len(_encode(waiting)) > MAX_OUTBOX_BYTES:
                del waiting[0]
            self._write(waiting)
            return len(waiting)

    def read(self) -> list[PersonAnswers]:
        """All answers that wait, oldest first.

        Raises:
            StateError: if the file can't be read.
        """
        if not self.path.exists():
            return []
        with reported("read", self.path), self.path.open("rb") as file:
            data = file.read(MAX_OUTBOX_BYTES + 1)
        try:
            content = check_map("content", json.loads(data))
            if content.get("v") != _VERSION or len(data) > MAX_OUTBOX_BYTES:
                raise ValueError("another version, or too large")
            waiting = check_list("waiting", content.get("waiting"), MAX_OUTBOX)
            return [PersonAnswers.from_dict(check_map("answers", item)) for item in waiting]
        except (ValueError, RecursionError, ConfigError):
            aside = unused_path(self.path.with_name(f"{self.path.name}.damaged"))
            with reported("rename", self.path):
                self.path.rename(aside)
            self._warn(f"{self.path} is damaged: it was renamed to {aside.name}, and the answers in it are not shared")
            return []

    def remove(self, shared: Sequence[PersonAnswers]) -> None:
        """Remove answers that were shared; those that came meanwhile stay.

        Raises:
            StateError: if the file can't be read or written.
        """
        with locked(self._lock):
            self._write([answers for answers in self.read() if answers not in shared])

    def _write(self, waiting: Sequence[PersonAnswers]) -> None:
        with reported("write", self.path):
            write_atomically(self.path, _encode(waiting))


class OutboxSharer:
    """Shares the answers that a person gave while no node ran, once there is a peer. Call it between rounds."""

    def __init__(self, node: Node, outbox: Path, is_connected: Callable[[], bool]) -> None:
        self._node, self._is_connected = node, is_connected
        self._outbox = Outbox(outbox, self._warn)
        self._last_warning = ""
        # Published, but still in the file, because that could not be written.
        self._shared: list[PersonAnswers] = []

    def __call__(self) -> None:
        """Publish the answers of the outbox; drop those that can't be verified, with a notice.

        They leave the file last: a node that is killed, or can't write, shares them again, and peers take each once.
        """
        if not self._outbox.path.exists() or not self._is_connected():
            return
        try:
            self._share()
        except StateError as error:
            # They wait in the file for the next time.
            self._warn(f"a person's answers are not shared yet: {error}")

    def _share(self) -> None:
        digest = self._node.source.manifest.digest
        waiting = [answers for answers in self._outbox.read() if answers.manifest == digest]
        shared = 0
        for answers in waiting:
            if answers in self._shared:
                continue
            try:
                share(self._node, answers, shared=True)
            except UnknownTaskError as error:
                self._warn(f"a person's answers were not shared: {error.message}")
            else:
                self._shared.append(answers)
                shared += 1
        if waiting:
            self._outbox.remove(waiting)
            self._shared.clear()
        if shared:
            self._node.emit(Notice(level="info", text=f"shared a person's answers to {shared} questions"))

    def _warn(self, text: str) -> None:
        """Emit a warning, but not the same one after every round."""
        if text != self._last_warning:
            self._last_warning = text
            self._node.emit(Notice(level="warning", text=text))


def _encode(waiting: Sequence[PersonAnswers]) -> bytes:
    entries = [answers.as_dict() for answers in waiting]
    return json.dumps({"v": _VERSION, "waiting": entries}, ensure_ascii=False).encode()


def _ref_list(ref: TaskRef) -> list[str | int]:
    return [ref.entry, ref.version, ref.seed, ref.index]


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
