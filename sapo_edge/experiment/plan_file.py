"""Plans that people write: a TOML file with settings and arms. `docs/results.md` has an example.

What the plan itself and its table `learning` leave out is as in the plan of the scale; what settings and arms leave out
has the defaults of `plan.py`. An arm's training stands beside its name.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from sapo_edge.errors import ConfigError
from sapo_edge.experiment.hostile import ATTACKS
from sapo_edge.experiment.plan import Arm, Plan, Training
from sapo_edge.experiment.scales import SCALES
from sapo_edge.plain import did_you_mean
from sapo_edge.selection import STRATEGIES
from sapo_edge.state.durable import reported

_CHOICES = {
    "scale": tuple(SCALES),
    "strategy": tuple(STRATEGIES),
    "attack": ("", *ATTACKS),
    "origin": ("peers", "frozen"),
}
_WORDS = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}

T = TypeVar("T")


def read_plan(path: Path) -> Plan:
    """A plan from a TOML file.

    Raises:
        ConfigError: if it is no TOML, or has an unknown name, or a value of another type or out of bounds; names the
            place.
    """
    with reported("read", path, "give another file"):
        data = path.read_bytes()
    try:
        content = tomllib.loads(data.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}", "correct that line") from error
    if not content.get("settings"):
        raise ConfigError(f"{path} has no settings", "add at least one [[settings]]")
    scale = _value("scale", content.get("scale", "embedded"), str, str(path))
    return _read(Plan, content, str(path), SCALES[scale]())


def _read(kind: type[T], table: Mapping[str, Any], where: str, base: T | None = None) -> T:
    """A dataclass from a table; what the table leaves out is as in `base`, or as the dataclass has it."""
    if kind is Arm:
        if "training" in table:
            raise ConfigError(f"{where}: there is no training", "write its numbers beside the name of the arm")
        training = {field.name: table[field.name] for field in fields(Training) if field.name in table}
        table = {name: value for name, value in table.items() if name not in training} | {"training": training}
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    hints = get_type_hints(kind)
    values = {}
    for name, value in table.items():
        if name not in known:
            raise ConfigError(f"{where}: there is no {name}", did_you_mean(name, known, f"use {', '.join(known)}"))
        values[name] = _value(name, value, hints[name], where, getattr(base, name, None))
    for name, field in known.items():
        if base is None and name not in values and field.default is MISSING and field.default_factory is MISSING:
            raise ConfigError(f"{where}: {name} is missing", f"add {name}")
    try:
        return kind(**values) if base is None else replace(base, **values)  # type: ignore[type-var]
    except ValueError as error:
        raise ConfigError(f"{where}: {error}", "correct it") from error


def _value(name: str, value: Any, kind: Any, where: str, base: Any = None) -> Any:
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise ConfigError(f"{where}: {name} is not a list", "docs/results.md has an example")
        place = f"{where}, {name}" if where.count(":") else f"{where}: {name}"
        return tuple(
            _value(name, item, get_args(kind)[0], f"{place} {number}") for number, item in enumerate(value, start=1)
        )
    if is_dataclass(kind):
        if not isinstance(value, dict):
            raise ConfigError(f"{where}: {name} is not a table", "docs/results.md has an example")
        return _read(kind, value, where if base is None else f"{where}, {name}", base)  # type: ignore[arg-type]
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise ConfigError(f"{where}: {name} is not {_WORDS[kind]}", "correct it")
    if value not in _CHOICES.get(name, (value,)):
        options = ", ".join(filter(None, _CHOICES[name]))
        raise ConfigError(f"{where}: there is no {name} {value!r}", f"choose one of {options}")
    if kind in (int, float) and not 0 <= value < math.inf:
        raise ConfigError(f"{where}: {name} is negative or not finite", "write a number of 0 or more")
    return value
