"""Typed events: the only thing that the terminal app, the log and people's scripts read.

Each is one JSON object on one line with `v`, `time` and `event`; `docs/events.md` documents every field. Within a
version fields are only added, so a reader ignores those that it doesn't know.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, Literal, get_args

VERSION = 1
"""Version of the JSON form."""

Phase = Literal["load", "generate", "update", "evaluate"]
Level = Literal["info", "warning", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base of all events.

    Attributes:
        time: Unix seconds.
    """

    event: ClassVar[str]
    time: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStarted(Event):
    """The node is ready for its first round.

    Attributes:
        model, backend: for people.
        reasons: why each choice that the program made was made, one sentence each.
        settings: the resolved settings by name.
        round: the last finished round, 0 for a fresh start.
    """

    event: ClassVar[str] = "node_started"
    model: str
    backend: str
    reasons: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    round: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(Event):
    """How far a long step is. Sent often and never journaled.

    Attributes:
        phase: the step.
        done, total: in `unit`.
        unit: "answers", "groups", "bytes" ...
    """

    event: ClassVar[str] = "progress"
    phase: Phase
    done: int
    total: int
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFinished(Event):
    """One round is done and its update applied.

    Attributes:
        round: from 1.
        reward_own: mean reward of own answers before any filter, in [0, 1].
        reward_external: mean reward of external answers as sampled; None without any.
        groups: groups in the update.
        informative: those that had a gradient.
        own, external: groups by origin.
        shared: own rollouts that were handed to the swarm.
        received: rollouts of others that were admitted since the round before.
        tokens: generated in this round.
        seconds_generate, seconds_update: wall-clock.
        statistics: of the update (`policy.UpdateStatistics`).
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


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut(Event):
    """An evaluation on the fixed questions that are never trained on.

    Attributes:
        round: after which it was made; 0 is the model before training.
        accuracy: `correct` / `questions`.
        correct, questions: counts.
        low, high: 95 % interval of the accuracy.
    """

    event: ClassVar[str] = "held_out"
    round: int
    accuracy: float
    correct: int
    questions: int
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved(Event):
    """A checkpoint is complete on disk.

    Attributes:
        round: that it holds.
        path: its directory.
        best: whether it has the best held-out accuracy so far.
    """

    event: ClassVar[str] = "checkpoint"
    round: int
    path: str
    best: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice(Event):
    """Something that the user should know, in one sentence."""

    event: ClassVar[str] = "notice"
    level: Level
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused(Event):
    """The node rests, or goes on.

    Attributes:
        reasons: why it rests, one short phrase each; empty when it goes on.
    """

    event: ClassVar[str] = "paused"
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStopped(Event):
    """The node has ended in order.

    Attributes:
        reason: in a few words.
        rounds: finished since it started.
        adapter: path of the adapter; None if none was written.
    """

    event: ClassVar[str] = "node_stopped"
    reason: str
    rounds: int
    adapter: str | None = None


EVENTS: Mapping[str, type[Event]] = {
    kind.event: kind
    for kind in (NodeStarted, Progress, RoundFinished, HeldOut, CheckpointSaved, Notice, Paused, NodeStopped)
}
"""Every kind of event by the name that it has in JSON."""


def as_dict(event: Event) -> dict[str, Any]:
    """The event as its JSON object: `v`, `time`, `event`, then its own fields; NaN and infinity become None."""
    own = {item.name: _finite(getattr(event, item.name)) for item in fields(event) if item.name != "time"}
    return {"v": VERSION, "time": _finite(event.time), "event": event.event, **own}


def to_json(event: Event) -> str:
    """The event as one line of ASCII JSON without the line end."""
    return json.dumps(as_dict(event), allow_nan=False, separators=(",", ":"))


def from_json(text: str) -> Event:
    """The event that a line holds; unknown fields are ignored, and null where a number belongs becomes NaN.

    Raises:
        ValueError: if it is no JSON object, of another version, of an unknown kind, or lacks a field.
    """
    try:
        record = json.loads(text)
    except RecursionError as error:
        raise ValueError("an event is nested too deep") from error
    return from_dict(record)


def from_dict(record: object) -> Event:
    """The event that a JSON object holds, as `from_json`.

    Raises:
        ValueError: as `from_json`.
    """
    if not isinstance(record, dict):
        raise ValueError("an event is a JSON object")
    if record.get("v") != VERSION:
        raise ValueError(f"an event of version {record.get('v')!r}, not {VERSION}")
    kind = EVENTS.get(record["event"]) if isinstance(record.get("event"), str) else None
    if kind is None:
        raise ValueError(f"no event is called {record.get('event')!r}")
    values: dict[str, Any] = {}
    for item in fields(kind):
        if item.name in record:
            values[item.name] = _decoded(f"{kind.event}.{item.name}", str(item.type), record[item.name])
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


def _number(value: Any) -> float:
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("not a number")
    return float(value)


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("not an integer")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("not text")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("not true or false")
    return value


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError("not a list")
    return tuple(_text(item) for item in value)


def _choice(names: tuple[str, ...], value: Any) -> str:
    if value not in names:
        raise ValueError(f"not one of {', '.join(names)}")
    return _text(value)


_DECODERS: Mapping[str, Any] = {
    "float": _number,
    "int": _integer,
    "str": _text,
    "bool": _flag,
    "float | None": lambda value: None if value is None else _number(value),
    "str | None": lambda value: None if value is None else _text(value),
    "tuple[str, ...]": _texts,
    "Mapping[str, Any]": _object,
    "Mapping[str, float]": lambda value: {key: _number(item) for key, item in _object(value).items()},
    "Phase": lambda value: _choice(get_args(Phase), value),
    "Level": lambda value: _choice(get_args(Level), value),
}
"""How to read a field, by its annotation as written above."""


def _decoded(name: str, annotation: str, value: Any) -> Any:
    try:
        return _DECODERS[annotation](value)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{name} is {error}") from error
