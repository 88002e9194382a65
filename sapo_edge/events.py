"""Typed events: what the terminal app, the log and users' scripts read of a node.

Each is one JSON object on one line with `v`, `time` and `event`; `docs/interface.md` documents every field. Within a
version fields are only added, so a reader ignores unknown ones.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, Literal, get_args

from sapo_edge.fields import check_flag, check_integer, check_list, check_map, check_number, check_text

VERSION = 1
"""Version of the JSON form."""

WRONG, FORMED, OTHERWISE = "0", "1", "2"
"""Marks of an answer: wrong, right in the form that the manifest asks for, right in another form."""
Phase = Literal["load", "head_start", "generate", "update", "evaluate"]
Level = Literal["info", "warning", "error"]
EVENTS: dict[str, type[Event]] = {}
"""Every kind of event by its name in JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base of all events; `time` in Unix seconds."""

    event: ClassVar[str]
    time: float = field(default_factory=time.time)

    def __init_subclass__(cls) -> None:
        # A dataclass with slots is made twice; the second class, which the module keeps, replaces the first.
        EVENTS[cls.event] = cls


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStarted(Event):
    """The node is ready for the round after `round`, 0 for a fresh start; a sentence says why each choice was made."""

    event: ClassVar[str] = "node_started"
    model: str
    backend: str
    reasons: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    round: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(Event):
    """Progress of a long step, in answers, groups, bytes ... Sent often, never journaled."""

    event: ClassVar[str] = "progress"
    phase: Phase
    done: int
    total: int
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFinished(Event):
    """A round is finished and its update applied.

    Attributes:
        reward_own: mean reward of own answers before any filter, in [0, 1].
        reward_external: mean reward of external answers as sampled; None without any.
        informative: groups that had a gradient.
        shared: own rollouts that were published.
        received: other nodes' rollouts accepted since the round before.
        corrected: own groups among `informative` whose answers were all wrong, and that taught the known right one.
        seconds_generate, seconds_update: wall-clock time.
        statistics: of the update (`policy.UpdateStatistics`).
        answers: own ones, generated in this round; 0 in events of earlier versions.
    """

    event: ClassVar[str] = "round"
    round: int
    reward_own: float
    reward_external: float | None
    groups: int
    informative: int
    own: int
    external: int
    tokens: int
    seconds_generate: float
    seconds_update: float
    statistics: Mapping[str, float] = field(default_factory=dict)
    shared: int = 0
    received: int = 0
    corrected: int = 0
    answers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut(Event):
    """An evaluation on held-out questions.

    Attributes:
        round: the last round before it; 0 is the model before training.
        correct, questions: counts; an answer is correct by its content, in whatever form.
        low, high: 95 % interval of the accuracy.
        split: the set of questions, "validation"; "" in events of versions that had only one.
        answers: for each question, in their order: "0" wrong, "1" right in the form that the manifest asks for, "2"
            right in another form; "" in events of earlier versions.
        question_set: mark of the questions and of their verifiers; only accuracies with the same one can be compared.
            "" in events of earlier versions.
    """

    event: ClassVar[str] = "held_out"
    round: int
    accuracy: float
    correct: int
    questions: int
    low: float
    high: float
    split: str = ""
    answers: str = ""
    question_set: str = ""

    @property
    def asked(self) -> tuple[str, int, str]:
        """What was asked: evaluations can be compared if it is equal."""
        return self.split, self.questions, self.question_set


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(Event):
    """Base model and best checkpoint on the test questions, by which no checkpoint is chosen.

    Attributes:
        base, adapter: questions that each answered correctly, in whatever form.
        gain: rise of the accuracy, (`adapter` - `base`) / `questions`.
        low, high: paired 95 % interval of the gain.
        question_set: as in `HeldOut`.
        base_answers, adapter_answers: as `HeldOut.answers`; "" in events of earlier versions.
        base_examples: worked examples that the base model was shown beyond those of the manifest, because it answers
            better with them.
    """

    event: ClassVar[str] = "comparison"
    round: int
    questions: int
    base: int
    adapter: int
    gain: float
    low: float
    high: float
    question_set: str = ""
    base_answers: str = ""
    adapter_answers: str = ""
    base_examples: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadStart(Event):
    """How far a head start is: supervised updates before the first round.

    Attributes:
        learned: different questions that were learned from, since the program started.
        accuracy: on the validation questions, `correct` / `questions`; when it is over, of the adapter that goes on.
        done: whether it is over and the rounds begin.
        best_updates: updates after which the accuracy was the best; these count when it is over.
        answers: as in `HeldOut`.
    """

    event: ClassVar[str] = "head_start"
    updates: int
    learned: int
    accuracy: float
    correct: int
    questions: int
    done: bool = False
    best_updates: int = 0
    answers: str = ""

    @property
    def is_validation(self) -> bool:
        """Whether the accuracy is that after `updates`, not that of an earlier adapter which goes on."""
        return not self.done or self.best_updates == self.updates


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved(Event):
    """A checkpoint is complete on disk, maybe with the best held-out accuracy so far."""

    event: ClassVar[str] = "checkpoint"
    round: int
    path: str
    best: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBack(Event):
    """The node returned to an earlier checkpoint: the rounds after `to_round`, up to `from_round`, no longer count."""

    event: ClassVar[str] = "rolled_back"
    from_round: int
    to_round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice(Event):
    """A message to the user, in one sentence."""

    event: ClassVar[str] = "notice"
    level: Level
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused(Event):
    """The node pauses, for reasons in one short phrase each, or resumes, without reasons."""

    event: ClassVar[str] = "paused"
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStopped(Event):
    """The node stopped without an error; if all rounds of the run are `done`, it would end again at once."""

    event: ClassVar[str] = "node_stopped"
    reason: str
    rounds: int
    adapter: str | None = None
    done: bool = False


def count_right(marks: str) -> int:
    """Number of answers that are right, in whatever form, of those with these marks."""
    return len(marks) - marks.count(WRONG)


def as_dict(event: Event) -> dict[str, Any]:
    """The event as its JSON object: `v`, `time`, `event`, then its own fields; NaN and infinity become None."""
    own = {item.name: _finite(getattr(event, item.name)) for item in fields(event) if item.name != "time"}
    return {"v": VERSION, "time": _finite(event.time), "event": event.event, **own}


def to_json(event: Event) -> str:
    """The event as one line of ASCII JSON without the line end."""
    return json.dumps(as_dict(event), allow_nan=False, separators=(",", ":"))


def from_json(text: str) -> Event:
    """Read an event from a line of JSON; unknown fields are ignored, and null for a number becomes NaN.

    Raises:
        ValueError: if it is not a JSON object, has another version or an unknown kind, or lacks a field.
    """
    try:
        record = json.loads(text)
    except RecursionError as error:
        raise ValueError("an event is nested too deep") from error
    return from_dict(record)


def from_dict(record: object) -> Event:
    """Read an event from a JSON object, as `from_json` does."""
    if not isinstance(record, dict):
        raise ValueError("an event is a JSON object")
    if record.get("v") != VERSION:
        raise ValueError(f"an event of version {record.get('v')!r}, not {VERSION}")
    kind = EVENTS.get(record["event"]) if isinstance(record.get("event"), str) else None
    if kind is None:
        raise ValueError(f"there is no event {record.get('event')!r}")
    values: dict[str, Any] = {}
    for item in fields(kind):
        if item.name in record:
            values[item.name] = _DECODERS[str(item.type)](f"{kind.event}.{item.name}", record[item.name])
        elif item.name == "time" or (item.default is MISSING and item.default_factory is MISSING):
            raise ValueError(f"a {kind.event} event lacks {item.name}")
    return kind(**values)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _number(name: str, value: object) -> float:
    return math.nan if value is None else check_number(name, value)


def _texts(name: str, value: object) -> tuple[str, ...]:
    return tuple(check_text(name, item) for item in check_list(name, value))


def _numbers(name: str, value: object) -> dict[str, float]:
    return {key: _number(name, item) for key, item in check_map(name, value).items()}


def _choice(options: tuple[str, ...]) -> Callable[[str, object], str]:
    def check(name: str, value: object) -> str:
        if value not in options:
            raise ValueError(f"{name} is not one of {', '.join(options)}")
        return str(value)

    return check


_DECODERS: Mapping[str, Callable[[str, Any], Any]] = {
    "float": _number,
    "int": check_integer,
    "str": check_text,
    "bool": check_flag,
    "float | None": lambda name, value: None if value is None else check_number(name, value),
    "str | None": lambda name, value: None if value is None else check_text(name, value),
    "tuple[str, ...]": _texts,
    "Mapping[str, Any]": check_map,
    "Mapping[str, float]": _numbers,
    "Phase": _choice(get_args(Phase)),
    "Level": _choice(get_args(Level)),
}
"""How to read a field, by its annotation as written above."""
