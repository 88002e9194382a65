"""What may be wrong with own questions that are valid: repeated, impossible to answer, or too long for a model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sapo_edge.errors import ManifestError
from sapo_edge.policy import Prompt
from sapo_edge.tasks.checks import Code, folded
from sapo_edge.tasks.manifest import Manifest, read_tables
from sapo_edge.tasks.question_file import (
    BY_DIGEST,
    MAX_MISTAKES,
    SUFFIXES,
    find_mistakes_in,
    is_beside,
    place_name,
    read_listed,
    read_questions,
)
from sapo_edge.tasks.questions import OwnQuestion
from sapo_edge.tasks.readings import CLOSE_TAG, FIT, OPEN_TAG, TAGS, read

SPARE = 8
"""Tokens that a tokenizer may add to those of a text."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A question, where it stands ("tasks.jsonl, line 3"), and how its task reads answers."""

    where: str
    question: OwnQuestion
    reading: str = FIT


@dataclass(frozen=True, slots=True)
class Room:
    """The most tokens of a prompt and its answer that a model takes, and of an answer with its end."""

    prompt_tokens: Callable[[Prompt], int]
    answer_tokens: Callable[[str], int]
    context: int
    max_tokens: int


def read_own(path: Path, store: Path) -> tuple[Manifest, Iterator[Placed]]:
    """A manifest with its own questions, worked examples included; or questions alone, in a manifest around them."""
    manifest = Manifest.read(path, store)
    if path.suffix.lower() in SUFFIXES:
        return manifest, _placed_in(path)
    tasks = read_tables(path)["tasks"]
    return manifest, (placed for task in tasks for placed in _placed(task, manifest, path.parent))


def find_mistakes(path: Path) -> list[ManifestError]:
    """What is wrong with the lines of questions: at most `MAX_MISTAKES` errors."""
    if path.suffix.lower() in SUFFIXES:
        return find_mistakes_in(path)
    try:
        tasks = read_tables(path).get("tasks")
    except ManifestError:
        return []
    mistakes: list[ManifestError] = []
    for task in tasks if isinstance(tasks, list) else ():
        questions = task.get("questions") if isinstance(task, dict) else None
        if isinstance(questions, str) and is_beside(questions) and len(mistakes) < MAX_MISTAKES:
            mistakes += find_mistakes_in(path.parent / questions)
    return mistakes[:MAX_MISTAKES]


def remarks(manifest: Manifest, questions: Iterable[Placed], room: Room | None) -> Iterator[tuple[str, str]]:
    """Where a question stands, and what may be wrong with it; lengths only where the model has a room."""
    # Digests and places, not texts: there may be 200,000 questions.
    first: dict[bytes, str] = {}
    others = 0 if room is None else room.prompt_tokens(manifest.prompt_for(""))
    for placed in questions:
        question, where = placed.question, placed.where
        earlier = first.setdefault(hashlib.sha256(folded(question.question).encode()).digest(), where)
        if earlier != where:
            yield where, f"the same question as in {earlier}"
        reading = question.check.reading if placed.reading == FIT else placed.reading
        answers = read(reading, f"{OPEN_TAG}{question.answer}{CLOSE_TAG}")
        # Only the function can say what its answers are worth.
        if not isinstance(question.check, Code) and all(question.score(answer) < 1 for answer in answers):
            yield where, "its own answer is wrong by its check and reading: no model can be right"
        if room is not None:
            yield from ((where, text) for text in _lengths(manifest, placed, room, others))


def _placed_in(path: Path, reading: str = FIT) -> Iterator[Placed]:
    for question, _, line in read_questions(path, *BY_DIGEST):
        yield Placed(f"{path.name}, {place_name(path)} {line}", question, reading)


def _placed(task: dict[str, Any], manifest: Manifest, directory: Path) -> Iterator[Placed]:
    questions = task.get("questions")
    (entry,) = (entry for entry in manifest.tasks if entry.name == task["name"])
    if isinstance(questions, str):
        yield from _placed_in(directory / questions, entry.reading)
    elif questions is not None:
        for number, (question, _) in enumerate(read_listed(f"task {entry.name}", questions), start=1):
            yield Placed(f"task {entry.name}, question {number}", question, entry.reading)


def _lengths(manifest: Manifest, placed: Placed, room: Room, others: int) -> Iterator[str]:
    question = placed.question
    # Most texts need no tokenizer: a token has at least one byte.
    tokens = others + len(question.question.encode()) + SPARE
    if tokens + room.max_tokens > room.context:
        tokens = room.prompt_tokens(manifest.prompt_for(question.question))
    if tokens + room.max_tokens > room.context:
        together = f"its prompt has {tokens} tokens, and an answer up to {room.max_tokens}"
        yield f"too long for the model: {together}; it takes {room.context} in all"
    text, tags = question.answer, ""
    if placed.reading == TAGS:
        text, tags = f"{OPEN_TAG}{text}{CLOSE_TAG}", " with its tags"
    answer = len(text.encode()) + SPARE
    if answer > room.max_tokens:
        answer = room.answer_tokens(text)
    if answer > room.max_tokens:
        yield f"its answer has {answer} tokens{tags}, more than max_tokens, {room.max_tokens}"
