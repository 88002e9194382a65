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


def shape(arguments: Arguments) -> tuple[int, ...]:
    return tuple(map(int, arguments.shape.split("x")))


def models(arguments: Arguments) -> list[Path]:
    """The files of the shaped models that are named, or the embedded one."""
    if not arguments.model:
        return [find_model("")]
    from tests.benchmarks.shaped import shaped_model

    return [shaped_model(name, arguments.cache) for name in arguments.model]


def sample(run: Callable[..., None], arguments: Arguments) -> None:
    for path in models(arguments):
        run(arguments.repeats, path)


def update(run: Callable[..., None], arguments: Arguments) -> None:
    for path in models(arguments):
        run(arguments.repeats, path, *shape(arguments), arguments.threads)


def remember(run: Callable[..., None], arguments: Arguments) -> None:
    from tests.benchmarks.memory import LIMITS

    run(arguments.cache, arguments.model or list(LIMITS), arguments.tokens, arguments.trained)


RUNS: dict[str, Callable[[Any, Arguments], None]] = {
    "sampling": sample,
    "api": lambda run, a: run(a.repeats, models(a)[0]),
    "draw": lambda run, a: run(a.repeats),
    "evaluation": lambda run, a: run(a.repeats, a.threads),
    "update": update,
    "products": lambda run, a: run(a.repeats),
    "waiting": lambda run, a: run(a.repeats),
    "node": lambda run, a: run(a.rounds),
    "exports": lambda run, a: run(a.home),
    "bfcl": lambda run, a: run(a.home, a.cases),
    "crowd": lambda run, a: run([n for n in (100, 1000, 10000) if n <= a.nodes], 60 * a.hours, a.each, a.keys),
    "terminal": lambda run, a: run(a.repeats),
    "journal": lambda run, a: run(a.repeats),
    "strangers": lambda run, a: run(a.repeats, [n for n in (10, 1000, 10_000, 100_000) if n <= a.nodes], a.hours),
    "helper": lambda run, a: run(a.minutes),
    "relay": lambda run, a: run(a.members, 60 * a.minutes),
    "mlx": lambda run, a: run(a.repeats),
    "gpu": lambda run, a: run(models(a)[0]),
    "trl": lambda run, a: run(a.repeats, *shape(a)),
    "memory": remember,
    "questions": lambda run, _: run(),
}
"""How the `run` of each benchmark's module is called."""
COMPARED = ("sampling", "trl", "evaluation", "update", "node")
"""What `compare` runs: the product beside its peers and floors on this processor, half an hour on two cores."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*RUNS, "compare", []])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--threads", type=int, default=0, help="of evaluation and update; 0: one a core")
    parser.add_argument("--minutes", type=float, default=10.0, help="of relay, once all have joined; of helper")
    parser.add_argument("--members", type=int, default=1000, help="of relay")
    parser.add_argument("--nodes", type=int, default=10000, help="of the largest swarm of crowd and strangers")
    parser.add_argument("--hours", type=float, default=3.0, help="of crowd and strangers, simulated")
    parser.add_argument("--each", type=int, default=8, help="of crowd, rollouts of a key that is used once: 1 to 8")
    parser.add_argument(
        "--keys", type=int, default=0, help="of crowd, that a hostile node keeps; 0: one, and others used once"
    )
    parser.add_argument("--shape", default="8x8x64", help="of trl and update: questions x answers x tokens")
    parser.add_argument("--home", type=Path, help="a trained state directory")
    parser.add_argument(
        "--cache", type=Path, default=Path("~/.cache/sapo-edge/shaped").expanduser(), help="of shaped models"
    )
    parser.add_argument(
        "--model",
        action="append",
        choices=["0.5B", "1.7B"],
        help="a shaped model for memory, sampling or update; repeatable. Without it: memory both, the others embedded",
    )
    parser.add_argument("--cases", type=int, default=400, help="of bfcl, at most")
    parser.add_argument("--tokens", type=int, default=16, help="of an answer, of memory")
    parser.add_argument("--trained", type=int, default=2, help="of memory: groups of the 8 to learn from")
    arguments = parser.parse_args()
    os.environ.update(UNDISTURBED)
    print(f"machine: {machine()}")
    names = arguments.names or ["sampling", "update", "node"]
    for name in COMPARED if "compare" in names else names:
        RUNS[name](import_module(f"tests.benchmarks.{name}").run, arguments)


main()
