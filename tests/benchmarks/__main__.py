"""`python -m tests.benchmarks [--repeats N] [--rounds N] [--home DIR] [NAME ...]`"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from sapo_edge.backends.model.find import find_model
from tests.benchmarks.measure import machine
from tests.undisturbed import UNDISTURBED


def main() -> None:
    """Run the benchmarks that are named, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    known = [
        "sampling",
        "draw",
        "evaluation",
        "update",
        "products",
        "node",
        "bandwidth",
        "exports",
        "stability",
        "bfcl",
        "sharing",
        "churn",
        "crowd",
        "terminal",
        "journal",
        "relay",
        "mlx",
        "trl",
        "memory",
        "questions",
    ]
    parser.add_argument("names", nargs="*", choices=[*known, []])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--threads", type=int, default=0, help="of evaluation and update; 0: one a core")
    parser.add_argument("--minutes", type=float, default=10.0, help="of churn; of relay, once all have joined")
    parser.add_argument("--members", type=int, default=1000, help="of relay")
    parser.add_argument("--nodes", type=int, default=10000, help="of the largest swarm of crowd")
    parser.add_argument("--hours", type=float, default=3.0, help="of crowd, simulated")
    parser.add_argument("--each", type=int, default=8, help="of crowd, rollouts of a key that is used once: 1 to 8")
    parser.add_argument(
        "--keys", type=int, default=0, help="of crowd, that a hostile node keeps; 0: one, and others used once"
    )
    parser.add_argument("--shape", default="8x8x64", help="of trl and update: questions x answers x tokens")
    parser.add_argument("--against", type=Path, help="of terminal: an older app's source; with --home")
    parser.add_argument("--home", type=Path, action="append", help="a trained state directory; repeatable")
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
    names = arguments.names or ["sampling", "update", "node"]
    print(f"machine: {machine()}")
    if "trl" in names:
        from tests.benchmarks import trl

        trl.run(arguments.repeats, *map(int, arguments.shape.split("x")))
    if "questions" in names:
        from tests.benchmarks import questions

        questions.run()
    if "memory" in names:
        from tests.benchmarks import memory

        memory.run(arguments.cache, arguments.model or list(memory.LIMITS), arguments.tokens, arguments.trained)
    if "mlx" in names:
        from tests.benchmarks import mlx

        mlx.run(arguments.repeats)
    if "sampling" in names:
        from tests.benchmarks import sampling

        for path in models(arguments):
            sampling.run(arguments.repeats, path)
    if "draw" in names:
        from tests.benchmarks import draw

        draw.run(arguments.repeats)
    if "evaluation" in names:
        from tests.benchmarks import evaluation

        evaluation.run(arguments.repeats, arguments.threads)
    if "update" in names:
        from tests.benchmarks import update

        count, answers, length = map(int, arguments.shape.split("x"))
        for path in models(arguments):
            update.run(arguments.repeats, path, count, answers, length, arguments.threads)
    if "products" in names:
        from tests.benchmarks import products

        products.run(arguments.repeats)
    if "node" in names:
        from tests.benchmarks import node

        node.run(arguments.rounds)
    if "bandwidth" in names:
        from tests.benchmarks import bandwidth

        bandwidth.run(arguments.rounds)
    if "churn" in names:
        from tests.benchmarks import churn

        churn.run(arguments.minutes)
    if "relay" in names:
        from tests.benchmarks import relay

        relay.run(arguments.members, 60 * arguments.minutes)
    if "crowd" in names:
        from tests.benchmarks import crowd

        sizes = [size for size in (100, 1000, 10000) if size <= arguments.nodes]
        crowd.run(sizes, 60 * arguments.hours, arguments.each, arguments.keys)
    if "sharing" in names:
        from tests.benchmarks import sharing

        sharing.run(arguments.home[0], arguments.rounds)
    if "terminal" in names:
        from tests.benchmarks import terminal

        if arguments.against is None:
            terminal.run(arguments.repeats)
        else:
            terminal.compare(arguments.against, arguments.repeats, arguments.home[0])
    if "journal" in names:
        from tests.benchmarks import journal

        journal.run(arguments.repeats)
    if "exports" in names:
        from tests.benchmarks import exports

        exports.run(arguments.home[0])
    if "bfcl" in names:
        from tests.benchmarks import bfcl

        bfcl.run(arguments.home[0], arguments.cases)
    if "stability" in names:
        from tests.benchmarks import stability

        stability.run(arguments.home)


def models(arguments: argparse.Namespace) -> list[Path]:
    """The files of the shaped models that are named, or the embedded one."""
    if not arguments.model:
        return [find_model("")]
    from tests.benchmarks.shaped import shaped_model

    return [shaped_model(name, arguments.cache) for name in arguments.model]


main()
