"""The tasks of a manifest: drawn, made anew from a reference, verified, and held out.

A task is a pure function of the manifest's entry, the version of ReasoningGYM, a seed and an index. ReasoningGYM itself
seeds with the *sum* of seed and index, so that neighbouring seeds repeat each other's tasks; here both are hashed
together with the entry's name, and every index of every node has a seed of its own.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from typing import Any

import msgpack

from sapo_edge.errors import ManifestError, UnknownTaskError
from sapo_edge.rollout import Task, TaskRef
from sapo_edge.tasks.answers import extract_answer
from sapo_edge.tasks.held_out import choose_held_out
from sapo_edge.tasks.library import Dataset, generate, library_version, make_dataset
from sapo_edge.tasks.manifest import Manifest, TaskEntry
from sapo_edge.tasks.verifiers import verify

MAX_SKIPPED = 200
"""Indices skipped in a row, held out or without a task, before a draw for training gives up."""
_ATTEMPTS = 8


def derive_seed(purpose: str, *parts: str | int | bytes) -> int:
    """A seed from 0 to 2**63 - 1: the first 63 bits of the SHA-256 of the msgpack list of purpose and parts."""
    digest = hashlib.sha256(msgpack.packb([f"sapo-edge {purpose}", *parts])).digest()
    return int.from_bytes(digest[:8], "big") >> 1


class TaskSource:
    """Makes and verifies the tasks of one manifest. Thread-safe.

    Attributes:
        verifier_errors: answers that scored 0 because their verifier failed in a way that none should; a bug if not 0.
    """

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.verifier_errors = 0
        self._entries = {entry.name: entry for entry in manifest.tasks}
        self._datasets: dict[str, Dataset] = {}
        self._held_out: tuple[Task, ...] | None = None
        self._held_out_questions: frozenset[str] = frozenset()
        self._lock = threading.RLock()

    def draw(self, seed: int, index: int) -> Task:
        """The task at an index of a node's sequence; may be a held-out one.

        Args:
            seed: the node's task seed, 0 to 2**63 - 1.
            index: 0 to 2**63 - 1.

        Raises:
            UnknownTaskError: if the generator can't make the task at this index, which is rare.
        """
        fraction = derive_seed("entry", seed, index) / 2**63
        entry = self.manifest.entry_at(fraction)
        return self.regenerate(TaskRef(entry.name, library_version(), seed, index))

    def regenerate(self, ref: TaskRef) -> Task:
        """Make the task of a reference, whoever made the reference.

        Raises:
            UnknownTaskError: if the manifest has no such entry, another version made it, or it makes no task.
        """
        entry = self._entries.get(ref.entry)
        if entry is None:
            raise UnknownTaskError("the manifest has no such task", "join the swarm whose manifest has it")
        if ref.version != library_version():
            raise UnknownTaskError(
                f"the task was made by another version of reasoning_gym than {library_version()}",
                "let all nodes of the swarm install the same version",
            )
        generated = self._generate(entry, ref)
        try:
            return Task(ref, generated["question"], generated["answer"] or "", generated)
        except ValueError as error:
            raise UnknownTaskError(f"the task is not valid: {error}", "change the entry's config") from error

    def training_tasks(self, seed: int, cursor: int, count: int) -> tuple[tuple[Task, ...], int]:
        """The next tasks of a node's sequence, without those held out.

        Args:
            seed: the node's task seed.
            cursor: index at which to go on.

        Returns:
            `count` tasks, and the cursor of the next call.

        Raises:
            ManifestError: if `MAX_SKIPPED` indices in a row give nothing to train on.
        """
        tasks: list[Task] = []
        skipped = 0
        while len(tasks) < count:
            if skipped == MAX_SKIPPED:
                raise ManifestError(
                    f"manifest {self.manifest.name} has almost no questions that are not held out",
                    "widen the config of its tasks, or add tasks",
                )
            task = self._draw_for_training(seed, cursor)
            cursor += 1
            if task is None:
                skipped += 1
            else:
                tasks.append(task)
                skipped = 0
        return tuple(tasks), cursor

    def held_out(self, count: int) -> tuple[Task, ...]:
        """The first `count` held-out tasks: distinct questions, the same on all nodes, spread over entries by weight.

        There are at most `held_out.HELD_OUT`, and no more than a third of the distinct questions of an entry.

        Raises:
            ManifestError: if an entry of the manifest makes no questions.
        """
        with self._lock:
            if self._held_out is None:
                self._held_out = choose_held_out(self.manifest, self._held_out_candidate)
                self._held_out_questions = frozenset(task.question for task in self._held_out)
            return self._held_out[:count]

    def is_held_out(self, question: str) -> bool:
        """Whether a question is held out of training, by its text."""
        self.held_out(0)
        return question in self._held_out_questions

    def score(self, task: Task, text: str) -> float:
        """The reward of a completion, in [0, 1]. Never raises on any text, and evaluates none.

        Raises:
            UnknownTaskError: if the task is not one of this manifest.
        """
        entry = self._entries.get(task.ref.entry)
        if entry is None:
            raise UnknownTaskError("the manifest has no such task", "score it with the manifest that has it")
        generated = task.generated or self.regenerate(task.ref).generated
        answer = extract_answer(text)
        if answer is None:
            return 0.0
        score = self._verify(entry, answer, generated)
        # Full means exactly full: some verifiers sum shares of a wrong answer up to 1 less a rounding error.
        return score if entry.partial_credit else float(score == 1.0)

    def _verify(self, entry: TaskEntry, answer: str, generated: Mapping[str, Any]) -> float:
        dataset = self._dataset(entry)
        try:
            return verify(entry.generator, dataset, answer, generated)
        except Exception:  # noqa: BLE001
            # A peer's text must not end a round, whatever a verifier of the library does with it.
            self.verifier_errors += 1
            return 0.0

    def _generate(self, entry: TaskEntry, ref: TaskRef) -> dict[str, Any]:
        remedy = "skip this task; if all tasks of the entry fail, change its config"
        dataset = self._dataset(entry)
        for attempt in range(_ATTEMPTS):
            try:
                return generate(dataset, derive_seed("task", entry.name, ref.seed, ref.index, attempt))
            except (ArithmeticError, LookupError):
                continue  # some seeds divide by zero or find nothing to choose from; all nodes try the same next one
            except Exception as error:
                raise UnknownTaskError(f"task {entry.name} can't be made: {error}", remedy) from error
        raise UnknownTaskError(f"task {entry.name} can't be made from this reference", remedy)

    def _dataset(self, entry: TaskEntry) -> Dataset:
        with self._lock:
            if entry.name not in self._datasets:
                self._datasets[entry.name] = make_dataset(entry.generator, entry.config)
            return self._datasets[entry.name]

    def _held_out_candidate(self, entry: TaskEntry, index: int) -> Task:
        seed = derive_seed("held-out", self.manifest.digest)
        return self.regenerate(TaskRef(entry.name, library_version(), seed, index))

    def _draw_for_training(self, seed: int, index: int) -> Task | None:
        try:
            task = self.draw(seed, index)
        except UnknownTaskError:
            return None
        return None if self.is_held_out(task.question) else task
