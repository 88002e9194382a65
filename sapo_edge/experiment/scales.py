"""Plans: those that ship, by scale (tiny, law, embedded and paper), and those that people write as TOML files."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from sapo_edge.errors import ConfigError
from sapo_edge.experiment.hostile import ATTACKS, KNOWN
from sapo_edge.experiment.plan import Arm, Learning, Plan, Setting, Training
from sapo_edge.plain import did_you_mean
from sapo_edge.policy import PUBLISHED, ExternalRule
from sapo_edge.selection import STRATEGIES
from sapo_edge.state.durable import reported

TINY, LAW = "tiny", "law"
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)
"""Members of the swarms of `law`, ..."""
ASKED = 16
"""... of which so many are examined."""
ALONE = Arm("8/0", "alone")
HALF = Training(own=4, external=4)
_PUBLISHED: dict[str, Any] = {"strategy": "published", "rule": PUBLISHED, "cut": False, "distinct": False}
"""External answers are trained on as in the paper: as if the policy had written them."""
_MIXES = ((6, 2), (4, 4), (2, 6))
SHARING = tuple(Arm(f"{i}/{j}", f"{i} own, {j} external", Training(i, j)) for i, j in _MIXES)
"""The paper's mixes, I own and J external rollouts, under the default rule; ..."""
AS_PUBLISHED = tuple(
    Arm(f"{i}/{j} published", f"{i} own, {j} external, as published", Training(i, j, **_PUBLISHED)) for i, j in _MIXES
)
"""... and as published."""
FEW = (ALONE, *SHARING[1:], *AS_PUBLISHED[1:])


def hostile_arms() -> Iterator[Arm]:
    """Each attack by a quarter of the members; the known ones by half of them, too, and under the rule as published.

    At the end the default rule without one defence, under the attack that it is against.
    """
    yield from (ALONE, Arm("4/4", "no hostile member", HALF), AS_PUBLISHED[1])
    for attack, member in ATTACKS.items():
        yield Arm(f"{attack} 25 %", member.description, HALF, attack, 1)
        if attack in KNOWN:
            yield Arm(f"{attack} 50 %", member.description, HALF, attack, 2)
            yield Arm(f"{attack} published", "25 %, rule as published", replace(HALF, **_PUBLISHED), attack, 1)
    for attack, name, title, changes in (
        ("inversion", "uncut", "scored by the last pair, not cut", {"cut": False}),
        ("long", "unbounded", "groups of any size and length", {"cut": False, "rule": ExternalRule(bounded=False)}),
        ("wrong_end", "negatives", "negatives kept", {"rule": ExternalRule(negatives=1.0, negative_floor=0.0)}),
        ("unlikely", "floorless", "unlikely tokens count fully", {"rule": ExternalRule(patience=0.0)}),
        ("repetition", "allowed", "copies allowed", {"distinct": False}),
    ):
        yield Arm(f"{attack} {name}", f"{attack}, 25 % hostile, {title}", replace(HALF, **changes), attack, 1)


def tiny() -> Plan:
    """Models that come with the program; ten swarms an arm take about 75 minutes of two cores."""
    every = (
        ALONE,
        *SHARING,
        *AS_PUBLISHED,
        # What could explain a gain besides others' rollouts; 4/4 took 1.1 times the processor seconds.
        Arm("8/0 same time", "alone, processor time of 4/4", rounds=1.1),
        Arm("4/4 frozen", "4 own, 4 of the base model", replace(HALF, origin="frozen"), frozen=2),
    )
    generators = (ALONE, *(replace(arm, frozen=2) for arm in FEW[1:]))
    ten = (Arm(f"{name} 10 %", f"{name}, 10 % hostile", HALF, name, 1) for name in ("adaptive", "wrong_end", "flood"))
    settings = (
        Setting("mixed", "All members draw all tasks", every, "8/0", rounds=50),
        Setting("hard", "A fresh member earns next to nothing", FEW, "8/0", rounds=50, models=("hard",)),
        Setting("specialised", "Each member draws one task and is asked all", FEW, "8/0", rounds=50, specialised=True),
        Setting(
            "one trained", "One trained member among beginners", FEW, "8/0", rounds=50,
            models=("trained", "hard", "hard", "hard"),
        ),
        Setting("two sizes", "Two sizes of model", FEW, "8/0", rounds=50, models=("small", "base")),
        Setting("generators", "Two of six members only generate", generators, "8/0", rounds=50),
        Setting("hostile", "Hostile members", tuple(hostile_arms()), "4/4", rounds=40),
        Setting(
            "hostile ten", "One hostile member of ten", (Arm("4/4", "no hostile member", HALF), *ten), "4/4",
            nodes=10, rounds=40,
        ),
    )  # fmt: skip
    return Plan(TINY, settings, 10, Learning(1.5e-3, 5, 0, 8, 16.0), backend="torch")


def law() -> Plan:
    """Swarms of 1 to 1,000 of the tiny models, whose members share as much as nodes of such a swarm do.

    A fifth of the members leave in each run and are replaced; the slowest make a tenth of the rounds of the fastest.
    """
    rounds = 60
    training = replace(HALF, share=64)
    settings = []
    for nodes in SIZES:
        arms = [Arm("honest", "honest members", training)]
        if nodes >= 4:
            arms += [
                Arm("liars 25 %", "a quarter adaptive attackers", training, "adaptive", nodes // 4),
                Arm("churn", "a fifth are replaced", training, churn=0.2 / rounds),
                Arm("speeds", "tenfold differences in speed", training, slowest=10.0),
            ]
        if nodes == ASKED:
            arms.append(Arm("speeds, alone", "the same without others' answers", slowest=10.0))
        title = f"{nodes} members"
        settings.append(Setting(str(nodes), title, tuple(arms), "honest", nodes, rounds, sampled=0, asked=ASKED))
    return Plan(LAW, tuple(settings), 1, tiny().learning, backend="torch")


def embedded() -> Plan:
    """The embedded model, four members; a swarm takes about ten minutes of one core."""
    settings = (Setting("starter", "All members draw all tasks", FEW, "8/0", rounds=30, validation=100, sampled=32),)
    return Plan("embedded", settings, 5, Learning(), manifest="starter-2", backend="llama_cpp")


def paper() -> Plan:
    """The published experiment: eight members, the nine tasks, 2,000 rounds."""
    arms = (ALONE, *AS_PUBLISHED, *SHARING)
    settings = (Setting("nine", "The nine tasks of the paper", arms, "8/0", nodes=8, rounds=2000, every=100),)
    model = "hf:Qwen/Qwen2.5-0.5B-Instruct"
    return Plan("paper", settings, 3, Learning(), manifest="reasoning-gym-nine", model=model, backend="auto", threads=0)


SCALES: Mapping[str, Callable[[], Plan]] = {TINY: tiny, LAW: law, "embedded": embedded, "paper": paper}
"""The plans by the name of their scale."""
_CHOICES = {"scale": SCALES, "strategy": STRATEGIES, "attack": ("", *ATTACKS), "origin": ("peers", "frozen")}
_WORDS: Mapping[type, str] = {
    str: "text", bool: "true or false", int: "a whole number", float: "a number", list: "a list", dict: "a table"
}  # fmt: skip

T = TypeVar("T")


def read_plan(path: Path) -> Plan:
    """A plan from a TOML file; docs/results.md has an example.

    What the plan itself and its table `learning` leave out is as in the plan of the scale; what settings and arms leave
    out has the defaults of `plan.py`. An arm's training stands beside its name. Errors name the place.
    """
    try:
        with reported("read", path, "give another file"):
            content = tomllib.loads(path.read_bytes().decode())
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}", "correct that line") from error
    if not content.get("settings"):
        raise ConfigError(f"{path} has no settings", "add at least one [[settings]]")
    scale = _value("scale", content.get("scale", "embedded"), str, str(path))
    return _read(Plan, content, str(path), SCALES[scale]())


def _read(kind: type[T], table: Mapping[str, Any], where: str, base: T | None = None) -> T:
    if kind is Arm:
        if "training" in table:
            raise ConfigError(f"{where}: there is no training", "write its numbers beside the name of the arm")
        training = {field.name: table[field.name] for field in fields(Training) if field.name in table}
        table = {name: value for name, value in table.items() if name not in training} | {"training": training}
    known = get_type_hints(kind)
    values = {}
    for name, value in table.items():
        if name not in known:
            raise ConfigError(f"{where}: there is no {name}", did_you_mean(name, known, f"use {', '.join(known)}"))
        values[name] = _value(name, value, known[name], where, getattr(base, name, None))
    for field in fields(kind) if base is None else ():  # type: ignore[arg-type]
        if field.name not in values and field.default is field.default_factory is MISSING:
            raise ConfigError(f"{where}: {field.name} is missing", f"add {field.name}")
    try:
        return kind(**values) if base is None else replace(base, **values)  # type: ignore[type-var]
    except ValueError as error:
        raise ConfigError(f"{where}: {error}", "correct it") from error


def _value(name: str, value: Any, kind: Any, where: str, base: Any = None) -> Any:
    expected: Any = list if get_origin(kind) is tuple else dict if is_dataclass(kind) else kind
    if expected is float and type(value) is int:
        with suppress(OverflowError):
            value = float(value)
    if type(value) is not expected:
        raise ConfigError(f"{where}: {name} is not {_WORDS[expected]}", "docs/results.md has an example")
    if expected is list:
        place = f"{where}, {name}" if where.count(":") else f"{where}: {name}"
        return tuple(
            _value(name, item, get_args(kind)[0], f"{place} {number}") for number, item in enumerate(value, start=1)
        )
    if expected is dict:
        return _read(kind, value, where if base is None else f"{where}, {name}", base)
    if value not in _CHOICES.get(name, (value,)):
        options = ", ".join(filter(None, _CHOICES[name]))
        raise ConfigError(f"{where}: there is no {name} {value!r}", f"choose one of {options}")
    if kind in (int, float) and not 0 <= value < math.inf:
        raise ConfigError(f"{where}: {name} is negative or not finite", "write a number of 0 or more")
    return value
