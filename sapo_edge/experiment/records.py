"""Result files of an experiment: one record and one costs file for each swarm.

A swarm is one (setting, arm, seed). Its record contains nothing measured by a clock, so the same command writes the
same bytes; processor seconds, which differ from run to run, are in the costs file. Both are JSON with sorted keys.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sapo_edge.errors import StateError
from sapo_edge.experiment.files import reported
from sapo_edge.fields import check_integer, check_list, check_map, check_number, check_text
from sapo_edge.state.durable import write_atomically

VERSION = 1
"""Version of both files."""

_REMEDY = "remove that file and run the same command again, which repeats this swarm alone"


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One round of one member, learning or not.

    Attributes:
        round: from 1.
        node: the member's number, the same in all rounds.
        own: mean reward of its own answers before any filter; 0 if it generated none.
        external: mean reward of the external answers as sampled; None if it sampled none.
        generated: own answers.
        tokens: tokens of own answers.
        trained: answer tokens trained on.
        informative_own, informative_external: groups in the update whose answers differ in reward.
        taken: external rollouts in the update.
        tasks: entry -> (sum of own rewards, own answers).
    """

    round: int
    node: int
    own: float
    external: float | None
    generated: int
    tokens: int
    trained: int
    informative_own: int
    informative_external: int
    taken: int
    tasks: Mapping[str, tuple[float, int]]


@dataclass(frozen=True, slots=True)
class EvaluationRecord:
    """Answers of one honest learning node to one set of questions.

    Attributes:
        round: after which it was asked; 0 is before training.
        node: its number.
        questions: name of the set: "validation", "test", "harder", "unseen"; with "@8", 8 samples a question.
        correct: one character a question: "0" or "1" for greedy answers, else the number of right samples.
    """

    round: int
    node: int
    questions: str
    correct: str


@dataclass(frozen=True, slots=True)
class SwarmRecord:
    """Everything deterministic about one swarm.

    Attributes:
        setting, arm: names in the plan.
        seed: from 0.
        rounds: of all members, those that do not learn included.
        evaluations: of honest learning nodes: "validation" every few rounds, all other sets after the last one.
        entries: question set -> the task entry of each question, in the order of `EvaluationRecord.correct`.
    """

    setting: str
    arm: str
    seed: int
    rounds: tuple[RoundRecord, ...]
    evaluations: tuple[EvaluationRecord, ...]
    entries: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class SwarmCosts:
    """Measured costs of one swarm.

    Attributes:
        setting, arm, seed: as in `SwarmRecord`.
        seconds: (round, node, processor seconds of generating and updating together), of all members.
    """

    setting: str
    arm: str
    seed: int
    seconds: tuple[tuple[int, int, float], ...]


def write_record(path: Path, record: SwarmRecord) -> None:
    """Replace the file, completely or not at all.

    Args:
        path: in a directory that exists.
        record: of one swarm.

    Raises:
        StateError: if it can't be written; an old file is untouched.
    """
    _write(path, {"version": VERSION, **asdict(record)})


def read_record(path: Path) -> SwarmRecord:
    """What `write_record` wrote.

    Raises:
        StateError: if it can't be read or is damaged.
    """
    fields = _read(path)
    try:
        return _record(fields)
    except (KeyError, ValueError) as error:
        raise _damaged(path, error) from error


def write_costs(path: Path, costs: SwarmCosts) -> None:
    """Replace the file as `write_record` does.

    Raises:
        StateError: if it can't be written; an old file is untouched.
    """
    _write(path, {"version": VERSION, **asdict(costs)})


def read_costs(path: Path) -> SwarmCosts:
    """What `write_costs` wrote.

    Raises:
        StateError: if it can't be read or is damaged.
    """
    fields = _read(path)
    try:
        return SwarmCosts(*_swarm(fields), tuple(map(_second, check_list("seconds", fields["seconds"]))))
    except (KeyError, ValueError) as error:
        raise _damaged(path, error) from error


def _write(path: Path, fields: dict[str, Any]) -> None:
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
    with reported("write", path):
        write_atomically(path, text.encode() + b"\n", mode=0o644)


def _read(path: Path) -> dict[str, Any]:
    with reported("read", path):
        data = path.read_bytes()
    try:
        fields = check_map("the file", json.loads(data))
        if fields.get("version") != VERSION:
            raise ValueError(f"it is not of version {VERSION}")
    except (ValueError, RecursionError) as error:
        raise _damaged(path, error) from error
    return fields


def _damaged(path: Path, error: Exception) -> StateError:
    reason = f"the field {error} is missing" if isinstance(error, KeyError) else str(error)
    return StateError(f"{path} is damaged: {reason}", _REMEDY)


def _swarm(fields: dict[str, Any]) -> tuple[str, str, int]:
    setting = check_text("setting", fields["setting"])
    return setting, check_text("arm", fields["arm"]), check_integer("seed", fields["seed"], 0)


def _record(fields: dict[str, Any]) -> SwarmRecord:
    entries = {
        questions: tuple(check_text("an entry", entry) for entry in check_list("entries", names))
        for questions, names in check_map("entries", fields["entries"]).items()
    }
    rounds = tuple(read_round(check_map("a round", item)) for item in check_list("rounds", fields["rounds"]))
    evaluations = tuple(
        _evaluation(check_map("an evaluation", item), entries)
        for item in check_list("evaluations", fields["evaluations"])
    )
    return SwarmRecord(*_swarm(fields), rounds, evaluations, entries)


def read_round(fields: dict[str, Any]) -> RoundRecord:
    """A round from its fields in JSON.

    Raises:
        KeyError: if a field is missing.
        ValueError: if one is not valid.
    """
    counts = ("generated", "tokens", "trained", "informative_own", "informative_external", "taken")
    external = fields["external"]
    return RoundRecord(
        round=check_integer("round", fields["round"], 0),
        node=check_integer("node", fields["node"], 0),
        own=check_number("own", fields["own"]),
        external=None if external is None else check_number("external", external),
        tasks={entry: _task(value) for entry, value in check_map("tasks", fields["tasks"]).items()},
        **{name: check_integer(name, fields[name], 0) for name in counts},
    )


def _task(value: object) -> tuple[float, int]:
    items = check_list("a task", value)
    if len(items) != 2:
        raise ValueError("a task has not two numbers")
    return check_number("a task's reward", items[0]), check_integer("a task's answers", items[1], 0)


def _evaluation(fields: dict[str, Any], entries: Mapping[str, tuple[str, ...]]) -> EvaluationRecord:
    questions = check_text("questions", fields["questions"])
    correct = check_text("correct", fields["correct"])
    if questions not in entries or len(entries[questions]) != len(correct):
        raise ValueError("an evaluation and its entries differ in length")
    if not correct or not set(correct) <= set("0123456789"):
        raise ValueError("correct is not a row of digits")
    return EvaluationRecord(
        check_integer("round", fields["round"], 0), check_integer("node", fields["node"], 0), questions, correct
    )


def _second(value: object) -> tuple[int, int, float]:
    items = check_list("seconds of a round", value)
    if len(items) != 3:
        raise ValueError("seconds of a round have not three numbers")
    round, node, seconds = items
    return check_integer("round", round, 0), check_integer("node", node, 0), check_number("seconds", seconds, 0)
