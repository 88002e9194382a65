"""How many of eight groups teach in each round, from the base model on, without a head start, for each manifest.

`python -m tests.benchmarks.teaching --output FILE [--seeds 5] [--rounds 6]`

One process with one thread runs all of it; each finished run is a line of the file, and is not repeated. A group
teaches if its answers earned different rewards, or, told apart, if a known right answer corrects it.
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


def main() -> None:
    """Make the runs that are missing, and print all."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.teaching", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--output", type=Path, required=True, help="file for the finished runs")
    arguments = parser.parse_args()
    made: dict[str, list[list[int]]] = {}
    if arguments.output.exists():
        made = dict(json.loads(line) for line in arguments.output.read_text().splitlines())
    with tempfile.TemporaryDirectory() as home:
        policy, fresh = LlamaCppPolicy(embedded(home, threads=1, sampled="bf16")), Path(home, "fresh")
        fresh.mkdir()
        policy.save(fresh)
        print("| manifest | seed | own groups of 8 that teach, by round | with the corrected ones |\n|---|---|---|---|")
        for seed in range(1, arguments.seeds + 1):
            for manifest in shipped_manifests():
                key = f"{manifest} {seed} {arguments.rounds}"
                if key not in made:
                    policy.load(fresh)
                    made[key] = _run(policy, manifest, seed, arguments.rounds)
                    with arguments.output.open("a") as file:
                        file.write(json.dumps([key, made[key]]) + "\n")
                own, all_of_them = ([str(round[part]) for round in made[key]] for part in (0, 1))
                print(f"| {manifest} | {seed} | {' '.join(own)} | {' '.join(all_of_them)} |", flush=True)


def _run(policy: LlamaCppPolicy, manifest: str, seed: int, rounds: int) -> list[list[int]]:
    """Of each round, the own groups that teach, and those with the corrected ones."""
    settings = Settings(
        manifest=manifest, own=8, external=0, rounds=rounds, seed=seed, network="solo", head_start="0", held_out=0
    )
    events: list[Event] = []
    with tempfile.TemporaryDirectory() as home, Store(Paths.default(Path(home))) as store:
        Node(settings, TaskSource(load_manifest(manifest)), store, policy, Solo(), events.append).run()
    finished = [event for event in events if isinstance(event, RoundFinished)]
    return [[event.informative - event.corrected, event.informative] for event in finished]


if __name__ == "__main__":
    main()
