"""How many of eight groups teach in each round, from the base model on, without a head start, for each manifest.

`python -m tests.benchmarks.teaching --output FILE [--manifest NAME ...] [--seeds 5] [--rounds 6]`

One process with one thread runs all of it; each finished run is a line of the file, and is not repeated. A group
teaches if its answers earned different rewards, or, told apart, if a known right answer corrects it. Ends with an error
if a run has three rounds in a row in which nothing teaches.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from sapo_edge.backends.llama.policy import LlamaCppPolicy
from sapo_edge.config.settings import Settings
from sapo_edge.events import Event, RoundFinished
from sapo_edge.node.rounds import Node
from sapo_edge.state.paths import Paths
from sapo_edge.state.store import Store
from sapo_edge.tasks.manifest import load_manifest, shipped_manifests
from sapo_edge.tasks.source import TaskSource
from sapo_edge.transport import Solo
from tests.benchmarks.work import embedded

MOST_VAIN = 3
"""Rounds in a row in which nothing teaches that a run must not have."""


def main() -> None:
    """Make the runs that are missing, and print all."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.teaching", description=__doc__)
    parser.add_argument("--manifest", action="append", choices=shipped_manifests())
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--output", type=Path, required=True, help="file for the finished runs")
    arguments = parser.parse_args()
    made: dict[str, list[list[int]]] = {}
    if arguments.output.exists():
        made = dict(json.loads(line) for line in arguments.output.read_text().splitlines())
    vain = []
    with tempfile.TemporaryDirectory() as home:
        policy, fresh = LlamaCppPolicy(embedded(home, threads=1, sampled="bf16")), Path(home, "fresh")
        fresh.mkdir()
        policy.save(fresh)
        print("| manifest | seed | own groups of 8 that teach, by round | with the corrected ones |\n|---|---|---|---|")
        for seed in range(1, arguments.seeds + 1):
            for manifest in arguments.manifest or shipped_manifests():
                key = f"{manifest} {seed} {arguments.rounds}"
                if key not in made:
                    policy.load(fresh)
                    made[key] = _run(policy, manifest, seed, arguments.rounds)
                    with arguments.output.open("a") as file:
                        file.write(json.dumps([key, made[key]]) + "\n")
                own, all_of_them = ([str(round[part]) for round in made[key]] for part in (0, 1))
                print(f"| {manifest} | {seed} | {' '.join(own)} | {' '.join(all_of_them)} |", flush=True)
                if _longest_vain(made[key]) >= MOST_VAIN:
                    vain.append(key)
    if vain:
        raise SystemExit(f"nothing teaches in {MOST_VAIN} rounds in a row: {', '.join(vain)}")


def _run(policy: LlamaCppPolicy, manifest: str, seed: int, rounds: int) -> list[list[int]]:
    """Of each round, the own groups that teach, and those with the corrected ones."""
    settings = Settings(
        manifest=manifest, own=8, external=0, rounds=rounds, seed=seed, network="solo", head_start="0", held_out=0
    )
    finished: list[RoundFinished] = []

    def keep(event: Event) -> None:
        if isinstance(event, RoundFinished):
            finished.append(event)

    with tempfile.TemporaryDirectory() as home, Store(Paths.default(Path(home))) as store:
        Node(settings, TaskSource(load_manifest(manifest)), store, policy, Solo(), keep).run()
    return [[event.informative - event.corrected, event.informative] for event in finished]


def _longest_vain(rounds: list[list[int]]) -> int:
    length = longest = 0
    for _, teaching in rounds:
        length = 0 if teaching else length + 1
        longest = max(longest, length)
    return longest


if __name__ == "__main__":
    main()
