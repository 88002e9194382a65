"""The tasks of a manifest: drawing, regenerating from a reference, verifying, holding out.

A task is a pure function of the manifest's entry, the version of its generator, a seed and an index. ReasoningGYM seeds
with the *sum* of seed and index, so neighbouring seeds repeat each other's tasks. Here both are hashed with the entry's
name, so every index of every node has its own seed. Each of n own questions is drawn at one of n successive indices, in
an order that depends on the seed.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgpack

from sapo_edge.errors import ManifestError, SapoError, UnknownTaskError
from sapo_edge.events import FORMED, OTHERWISE, WRONG
from sapo_edge.rollout import Task, TaskRef
from sapo_edge.tasks.checks import Code
from sapo_edge.tasks.held_out import SAMPLES, Split, choose_held_out
from sapo_edge.tasks.library import Dataset, generate, generator_version, library_version, make_dataset
from sapo_edge.tasks.manifest import Manifest, TaskEntry
from sapo_edge.tasks.question_data import QuestionData, open_questions
from sapo_edge.tasks.questions import (
    MAX_QUESTIONS,
    SPLIT_QUESTIONS,
    OwnQuestion,
    SplitQuestions,
    place,
    require_training,
    split_questions,
)
from sapo_edge.tasks.readings import CLOSE_TAG, FIT, OPEN_TAG, TAGS, extract_answer, fitting, is_bare, read
from sapo_edge.tasks.skills import SKILLS, make_skill
from sapo_edge.tasks.verifiers import verify

MAX_SKIPPED = 200
"""Most indices in a row without a task for training, because it is held out or can't be generated."""
JUDGED = "content2"
"""Name of the way in which `judge` decides; accuracies by another one are not comparable."""
_ATTEMPTS = 8

Function = Callable[[str, str, str], float]
"""Judges a completion: (question, expected answer, completion) -> 0 to 1; 1 is right. Of this machine's owner."""


def derive_seed(purpose: str, *parts: str | int | bytes) -> int:
    """A seed from 0 to 2**63 - 1: the first 63 bits of the SHA-256 of the msgpack list of purpose and parts."""
    digest = hashlib.sha256(msgpack.packb([f"sapo-edge {purpose}", *parts])).digest()
    return int.from_bytes(digest[:8], "big") >> 1


class TaskSource:
    """Generates and verifies the tasks of one manifest. Thread-safe.

    Args:
        functions: of this machine's owner, by the names that its questions have for them.

    Attributes:
        own: own questions by their use, by the name of their entry.
        verifier_errors: answers that scored 0 because their verifier raised an unexpected exception; not 0 means a bug.
    """

    def __init__(self, manifest: Manifest, functions: Mapping[str, Function] | None = None) -> None:
        self.manifest = manifest
        self.verifier_errors = 0
        # Of questions by digest the names are not known before they are asked for, so an empty one may still give some.
        self._functions = {} if functions is None else functions
        for name in manifest.functions - self._functions.keys():
            raise self._lacks(name)
        self._entries = {entry.name: entry for entry in manifest.tasks}
        self.own = {entry.name: self._split(entry) for entry in manifest.tasks if entry.questions}
        self._datasets: dict[str, Dataset] = {}
        self._held_out: dict[Split, tuple[Task, ...]] | None = None
        self._held_out_questions: frozenset[str] = frozenset()
        self._lock = threading.RLock()

    def _split(self, entry: TaskEntry) -> SplitQuestions:
        shown = {question for question, _ in self.manifest.examples}
        if isinstance(entry.questions, QuestionData):
            return open_questions(entry.questions, self.manifest.store, shown)
        split = split_questions([question for question in entry.questions if question.question not in shown])
        return require_training(split)

    @property
    def shown_seed(self) -> int:
        """The seed of the questions that a base model is shown as worked examples, the same on every node."""
        return derive_seed("shown", self.manifest.digest)

    def draw(self, seed: int, index: int) -> Task:
        """The task at an index of a node's sequence; it may be held out. Seldom raises an UnknownTaskError."""
        entry = self._drawn_entry(seed, index)
        return self.regenerate(TaskRef(entry, generator_version(self._entries[entry].generator), seed, index))

    def is_drawn(self, ref: TaskRef) -> bool:
        """Whether a reference names the entry that `draw` gives at its seed and index."""
        return ref.entry == self._drawn_entry(ref.seed, ref.index)

    def _drawn_entry(self, seed: int, index: int) -> str:
        return self.manifest.entry_at(derive_seed("entry", seed, index) / 2**63).name

    def regenerate(self, ref: TaskRef) -> Task:
        """Generate the task of a reference, which may be a peer's.

        Raises:
            UnknownTaskError: if the manifest lacks the entry, the version differs, or the generator fails.
        """
        entry = self._entries.get(ref.entry)
        if entry is None:
            raise UnknownTaskError("the manifest has no such task", "join the swarm whose manifest has it")
        version = generator_version(entry.generator)
        if ref.version != version:
            maker = "sapo-edge" if entry.generator in SKILLS else "reasoning_gym"
            raise UnknownTaskError(
                f"the task was made with another version of {maker} than {version}",
                "install the same version on all nodes of the swarm",
            )
        if entry.name in self.own:
            return _own_task(ref, self._own_question(ref))
        return _made_task(ref, self._generate(entry, ref))

    def training_tasks(self, seed: int, cursor: int, count: int) -> tuple[tuple[Task, ...], int]:
        """The next tasks of a node's sequence, without held-out ones, and the cursor for the next call."""
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
            skipped = skipped + 1 if task is None else 0
            if task is not None:
                tasks.append(task)
        return tuple(tasks), cursor

    def held_out(self, split: Split, count: int) -> tuple[Task, ...]:
        """The first `count` tasks of a held-out set: distinct questions, the same on all nodes, over all entries.

        Each set has at most `held_out.SPLIT_QUESTIONS`; both together have at most a third of an entry's distinct ones.
        """
        with self._lock:
            if self._held_out is None:
                own = {name: self._own_held_out(name) for name in self.own}
                skills = [entry for entry in self.manifest.tasks if entry.generator in SKILLS]
                own |= {entry.name: self._skill_held_out(entry) for entry in skills}
                self._held_out = choose_held_out(self.manifest, self._held_out_candidate, own)
                self._held_out_questions = frozenset(
                    task.question for tasks in self._held_out.values() for task in tasks
                )
            return self._held_out[split][:count]

    def own_training(self, count: int) -> tuple[Task, ...]:
        """The first `count` own questions that are trained on, as tasks. No draw gives their references."""
        trained = ((name, question) for name, split in self.own.items() for question in split.train)
        return _own_tasks(itertools.islice(trained, count))

    def own_tasks(self) -> tuple[Task, ...]:
        """All own questions that the manifest holds, whatever their use, as tasks. No draw gives their references."""
        held = ((entry.name, entry.questions) for entry in self.manifest.tasks if isinstance(entry.questions, tuple))
        return _own_tasks((name, question) for name, questions in held for question in questions)

    def question_set(self, split: Split, count: int) -> str:
        """Mark of a held-out set: how answers are judged, the version of ReasoningGYM, and 16 digits of a SHA-256.

        Accuracies with different marks can't be compared, whatever the number of questions.
        """
        asked = [[task.question, task.ground_truth] for task in self.held_out(split, count)]
        return f"{JUDGED}-{library_version()}-{hashlib.sha256(msgpack.packb(asked)).hexdigest()[:16]}"

    def is_held_out(self, question: str) -> bool:
        """Whether a question is held out of training; compares its text."""
        self.held_out("test", 0)
        return question in self._held_out_questions

    def score(self, task: Task, text: str) -> float:
        """The reward of a completion, in [0, 1]. No text raises an error, and none is evaluated as code."""
        entry, question = self._entry(task), self._generated(task)
        if (called := self._call(question, task, text)) is not None:
            return called
        reading = _reading(entry, question) if entry.reading == FIT else entry.reading
        score, answer = self._best(entry, question, _answers(reading, task, text))
        # Exactly 1: some verifiers add shares of a wrong answer up to almost 1.
        reward = score if entry.partial_credit else float(score == 1.0)
        is_formed = entry.reading == TAGS or not entry.form or is_bare(text, answer)
        return reward if is_formed else reward * (1.0 - entry.form)

    def judge(self, task: Task, text: str) -> str:
        """The mark of a completion: `FORMED` if it is right in tags, or bare, as the manifest asks; else by content."""
        entry, question = self._entry(task), self._generated(task)
        if (called := self._call(question, task, text)) is not None:
            return FORMED if called == 1.0 else WRONG
        score, answer = self._best(entry, question, _answers(_reading(entry, question), task, text))
        if entry.reading == TAGS:
            is_formed = self._best(entry, question, read(TAGS, text))[0] == 1.0
        else:
            is_formed = score == 1.0 and is_bare(text, answer)
        if is_formed:
            return FORMED
        return OTHERWISE if score == 1.0 else WRONG

    def right_answer(self, task: Task) -> str | None:
        """The right answer as a model shall write it; None where none is known."""
        tagged = self._entry(task).reading == TAGS
        text = f"{OPEN_TAG}{task.ground_truth}{CLOSE_TAG}" if tagged else task.ground_truth
        return text if self.score(task, text) == 1.0 else None

    def as_asked(self, task: Task, text: str) -> str:
        """A person's answer in the form that the manifest asks for: without tags, unless answers are read in them."""
        answer = None if self._entry(task).reading == TAGS else extract_answer(text)
        return text if answer is None else answer

    def _entry(self, task: Task) -> TaskEntry:
        entry = self._entries.get(task.ref.entry)
        if entry is None:
            raise UnknownTaskError("the manifest has no such task", "score it with the manifest that has it")
        return entry

    def _generated(self, task: Task) -> Mapping[str, Any]:
        return task.generated or self.regenerate(task.ref).generated

    def _call(self, generated: Mapping[str, Any], task: Task, text: str) -> float | None:
        """What the function that a question names gives, from 0 to 1; None for another question."""
        check = generated["own"].check if "own" in generated else None
        if not isinstance(check, Code):
            return None
        if (function := self._functions.get(check.code)) is None:
            raise self._lacks(check.code)
        try:
            score = float(function(task.question, task.ground_truth, text))
        except SapoError:
            raise
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise ManifestError(f"the function {check.code} failed on an answer: {what}", "mend it") from error
        if math.isnan(score) or not 0.0 <= score <= 1.0:
            raise ManifestError(f"the function {check.code} gave {score}", "let it give a number from 0 to 1")
        return score

    def _lacks(self, function: str) -> ManifestError:
        return ManifestError(
            f"answers to {self.manifest.name} are judged by {function}, a function of whoever made it",
            "use it from Python, and give the function as check: docs/python.md",
        )

    def _best(self, entry: TaskEntry, generated: Mapping[str, Any], answers: tuple[str, ...]) -> tuple[float, str]:
        """The best score of two ways to read one answer, and that answer."""
        scored = [(self._verify(entry, answer, generated), answer) for answer in answers]
        return max(scored, key=lambda pair: pair[0], default=(0.0, ""))

    def _verify(self, entry: TaskEntry, answer: str, generated: Mapping[str, Any]) -> float:
        try:
            if entry.questions:
                question: OwnQuestion = generated["own"]
                return question.score(answer)
            return verify(entry.generator, self._dataset(entry), answer, generated)
        except Exception:  # noqa: BLE001
            # A peer's text must not end a round, whatever a library's verifier does.
            self.verifier_errors += 1
            return 0.0

    def _generate(self, entry: TaskEntry, ref: TaskRef) -> dict[str, Any]:
        remedy = "skip this task; if all tasks of the entry fail, change its config"
        dataset = self._dataset(entry)
        for attempt in range(_ATTEMPTS):
            try:
                return generate(dataset, derive_seed("task", entry.name, ref.seed, ref.index, attempt))
            except (ArithmeticError, LookupError):
                continue  # some seeds divide by zero or choose from nothing; all nodes try the same next seed
            except Exception as error:
                raise UnknownTaskError(f"task {entry.name} can't be generated: {error}", remedy) from error
        raise UnknownTaskError(f"task {entry.name} can't be generated from this reference", remedy)

    def _dataset(self, entry: TaskEntry) -> Dataset:
        with self._lock:
            if entry.name not in self._datasets:
                self._datasets[entry.name] = make_dataset(entry.generator, entry.config)
            return self._datasets[entry.name]

    def _held_out_candidate(self, entry: TaskEntry, index: int) -> Task:
        seed = derive_seed("held-out", self.manifest.digest)
        return self.regenerate(TaskRef(entry.name, library_version(), seed, index))

    def _own_question(self, ref: TaskRef) -> OwnQuestion:
        """The question of a reference: each is drawn once in a pass, as many indices as there are questions."""
        questions = self.own[ref.entry].train
        index, position = divmod(ref.index, len(questions))
        offset, step = (derive_seed(purpose, ref.entry, ref.seed, index) for purpose in ("offset", "step"))
        return questions[place(position, len(questions), offset, step)]

    def _own_held_out(self, entry: str) -> dict[Split, tuple[Task, ...]]:
        """Tasks of an entry's held-out questions. No draw gives their references."""
        seed, questions = derive_seed("held-out", self.manifest.digest), self.own[entry]
        refs = (TaskRef(entry, library_version(), seed, index) for index in itertools.count())
        return {
            "validation": tuple(map(_own_task, refs, itertools.islice(questions.validation, MAX_QUESTIONS))),
            "test": tuple(map(_own_task, refs, itertools.islice(questions.test, MAX_QUESTIONS))),
        }

    def _skill_held_out(self, entry: TaskEntry) -> dict[Split, tuple[Task, ...]]:
        """Tasks of a skill's parts for validation and test, distinct within a part. No draw gives their references."""
        skill, version = make_skill(entry.generator, entry.config), generator_version(entry.generator)
        seed, parts = derive_seed("held-out", self.manifest.digest), dict[Split, tuple[Task, ...]]()
        for part in ("validation", "test"):
            tasks: dict[str, Task] = {}
            for index in range(SAMPLES):
                made = skill.generate(derive_seed(part, entry.name, seed, index), part)
                tasks.setdefault(made["question"], _made_task(TaskRef(entry.name, version, seed, index), made))
                if len(tasks) == SPLIT_QUESTIONS:
                    break
            parts[part] = tuple(tasks.values())
        return parts

    def _draw_for_training(self, seed: int, index: int) -> Task | None:
        try:
            task = self.draw(seed, index)
        except UnknownTaskError:
            return None
        return None if self.is_held_out(task.question) else task


def _reading(entry: TaskEntry, generated: Mapping[str, Any]) -> str:
    """The reading by which content is judged: the entry's, or the one that fits its check."""
    if entry.reading not in (TAGS, FIT):
        return entry.reading
    return generated["own"].check.reading if entry.questions else fitting(entry.generator)


def _answers(reading: str, task: Task, text: str) -> tuple[str, ...]:
    lines = len([line for line in task.ground_truth.splitlines() if line.strip()])
    return read(reading, text, max(1, lines), task.question)


def _made_task(ref: TaskRef, made: dict[str, Any]) -> Task:
    try:
        return Task(ref, made["question"], made["answer"] or "", made)
    except ValueError as error:
        raise UnknownTaskError(f"the task is not valid: {error}", "change the entry's config") from error


def _own_task(ref: TaskRef, question: OwnQuestion) -> Task:
    return Task(ref, question.question, question.answer, {"own": question})


def _own_tasks(questions: Iterable[tuple[str, OwnQuestion]]) -> tuple[Task, ...]:
    return tuple(
        _own_task(TaskRef(entry, library_version(), 0, index), question)
        for index, (entry, question) in enumerate(questions)
    )
