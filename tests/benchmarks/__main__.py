"""`python -m tests.benchmarks [--repeats N] [--rounds N] [--home DIR] [NAME ...]`"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from sapo_edge.backends.model.find import find_model
from tests.benchmarks.measure import machine
from tests.undisturbed import UNDISTURBED

Arguments = argparse.Namespace
SHAPED = ["0.5B", "1.7B"]
"""Names of the shaped models."""


def shape(arguments: Arguments) -> tuple[int, ...]:
    return tuple(map(int, arguments.shape.split("x")))


def models(arguments: Arguments) -> list[Path]:
    """The files of the shaped models that are named, or the embedded one."""
    if not arguments.model:
        return [find_model("")]
    from tests.benchmarks.memory import shaped_model

    return [shaped_model(name, arguments.cache) for name in arguments.model]


RUNS: dict[str, Callable[[Any, Arguments], object]] = {
    **dict.fromkeys(("draw", "products", "waiting", "terminal", "journal", "mlx"), lambda run, a: run(a.repeats)),
    "sampling": lambda run, a: [run(a.repeats, path) for path in models(a)],
    "api": lambda run, a: run(a.repeats, models(a)[0]),
    "evaluation": lambda run, a: run(a.repeats, a.threads),
    "update": lambda run, a: [run(a.repeats, path, *shape(a), a.threads) for path in models(a)],
    "node": lambda run, a: run(a.rounds),
    **dict.fromkeys(("exports", "bfcl"), lambda run, a: run(a.home)),
    "crowd": lambda run, a: run([n for n in (100, 1000, 10000) if n <= a.nodes], 60 * a.hours, a.each, a.keys),
    "strangers": lambda run, a: run(a.repeats, [n for n in (10, 1000, 10_000, 100_000) if n <= a.nodes], a.hours),
    "helper": lambda run, a: run(a.minutes),
    "relay": lambda run, a: run(a.members, 60 * a.minutes),
    "gpu": lambda run, a: run(models(a)[0]),
    "trl": lambda run, a: run(a.repeats, *shape(a)),
    "memory": lambda run, a: run(a.cache, a.model or SHAPED, a.tokens, a.trained),
    "questions": lambda run, _: run(),
}
"""How the `run` of each benchmark's module is called."""
COMPARED = ("sampling", "trl", "evaluation", "update", "node")
"""What `compare` runs: the product beside its peers and floors on this processor, half an hour on two cores."""
OPTIONS: dict[str, tuple[Any, str]] = {
    "repeats": (5, ""),
    "rounds": (12, ""),
    "threads": (0, "of evaluation and update; 0: one a core"),
    "minutes": (10.0, "of relay, once all have joined; of helper"),
    "members": (1000, "of relay"),
    "nodes": (10000, "of the largest swarm of crowd and strangers"),
    "hours": (3.0, "of crowd and strangers, simulated"),
    "each": (8, "of crowd, rollouts of a key that is used once: 1 to 8"),
    "keys": (0, "of crowd, that a hostile node keeps; 0: one, and others used once"),
    "shape": ("8x8x64", "of trl and update: questions x answers x tokens"),
    "tokens": (16, "of an answer, of memory"),
    "trained": (2, "of memory: groups of the 8 to learn from"),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*RUNS, "compare", []])
    for name, (default, text) in OPTIONS.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=text)
    parser.add_argument("--home", type=Path, help="a trained state directory")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache/sapo-edge/shaped", help="of shaped models")
    text = "a shaped model for memory, sampling or update; repeatable. Without it: memory both, the others embedded"
    parser.add_argument("--model", action="append", choices=SHAPED, help=text)
    arguments = parser.parse_args()
    os.environ.update(UNDISTURBED)
    print(f"machine: {machine()}")
    names = arguments.names or ["sampling", "update", "node"]
    for name in COMPARED if "compare" in names else names:
        RUNS[name](import_module(f"tests.benchmarks.{name}").run, arguments)


main()
