"""Plans that people write: a TOML file with settings and arms.

    scale = "embedded"
    manifest = "starter"
    seeds = 5

    [[settings]]
    name = "mine"
    title = "My tasks"
    baseline = "8/0"
    rounds = 40
    arms = [
        { name = "8/0", title = "alone" },
        { name = "4/4", title = "half from peers", own = 4, external = 4, rule = { negatives = 0.5 } },
    ]

What is left out has the defaults of `plan.py`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar

from sapo_edge.errors import ConfigError
from sapo_edge.experiment.hostile import ATTACKS
from sapo_edge.experiment.plan import NETWORKS, Arm, Learning, Plan, Setting, Training
from sapo_edge.plain import did_you_mean
from sapo_edge.policy import ExternalRule
from sapo_edge.selection import STRATEGIES
from sapo_edge.state.durable import reported

_PARTS: Mapping[str, type[Any]] = {"learning": Learning, "training": Training, "rule": ExternalRule}
_CHOICES = {
    "strategy": tuple(STRATEGIES),
    "attack": ("", *ATTACKS),
    "origin": ("peers", "frozen", "past"),
    "network": NETWORKS,
}

T = TypeVar("T")


def read_plan(path: Path) -> Plan:
    """A plan from a TOML file.

    Raises:
        ConfigError: if it is no TOML, or has an unknown name or a value of another type; names the place.
        StateError: if it can't be read.
    """
    with reported("read", path):
        data = path.read_bytes()
    try:
        content = tomllib.loads(data.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}", "correct that line") from error
    settings = tuple(
        _setting(item, f"{path}: settings {number}") for number, item in _tables(content, "settings", str(path))
    )
    plan = _build(Plan, {"scale": "embedded", "seeds": 5, **content, "settings": settings}, str(path))
    if plan.scale not in ("tiny", "embedded", "paper"):
        raise ConfigError(f"{path}: there is no scale {plan.scale}", "choose tiny, embedded or paper")
    if not settings:
        raise ConfigError(f"{path} has no settings", "add at least one [[settings]]")
    return plan


def _setting(content: Mapping[str, Any], where: str) -> Setting:
    arms = tuple(_arm(item, f"{where}, arms {number}") for number, item in _tables(content, "arms", where))
    return _build(Setting, {**content, "arms": arms}, where)


def _arm(content: Mapping[str, Any], where: str) -> Arm:
    """An arm; the numbers of its training stand beside its name."""
    training = {field.name: content[field.name] for field in fields(Training) if field.name in content}
    others = {name: value for name, value in content.items() if name not in training}
    return _build(Arm, {**others, "training": _build(Training, training, where)}, where)


def _tables(content: Mapping[str, Any], name: str, where: str) -> list[tuple[int, Mapping[str, Any]]]:
    tables = content.get(name, [])
    if not isinstance(tables, list) or not all(isinstance(item, dict) for item in tables):
        raise ConfigError(f"{where}: {name} is not a list of tables", "see docs/experiments.md for an example")
    return list(enumerate(tables, start=1))


def _build(kind: type[T], content: Mapping[str, Any], where: str) -> T:
    """A dataclass from a table: each value has the type of its default."""
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for name, value in content.items():
        if name not in known:
            raise ConfigError(f"{where}: there is no {name}", did_you_mean(name, known, f"use {', '.join(known)}"))
        values[name] = _value(name, value, known[name].default, where)
    for name, field in known.items():
        if name not in values and field.default is MISSING and field.default_factory is MISSING:
            raise ConfigError(f"{where}: {name} is missing", f"add {name}")
    try:
        return kind(**values)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}", "correct it") from error


def _value(name: str, value: Any, default: Any, where: str) -> Any:
    if name in _PARTS and isinstance(value, dict):
        return _build(_PARTS[name], value, f"{where}, {name}")
    if isinstance(value, list):
        value = tuple(value)
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if default is not MISSING and type(value) is not type(default):
        raise ConfigError(f"{where}: {name} is not {type(default).__name__}", f"write a value like {default!r}")
    if name in _CHOICES and value not in _CHOICES[name]:
        raise ConfigError(f"{where}: there is no {name} {value!r}", f"choose one of {', '.join(_CHOICES[name])}")
    if isinstance(value, int | float) and not isinstance(value, bool) and value < 0:
        raise ConfigError(f"{where}: {name} is negative", "write 0 or more")
    return value
