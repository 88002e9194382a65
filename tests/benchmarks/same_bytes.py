"""Whether tiny swarms give the same bytes on another processor: a SHA-256 of a short one's records and adapters.

    python -m tests.benchmarks.same_bytes
    qemu-x86_64 -cpu Haswell .venv/bin/python -m tests.benchmarks.same_bytes    # without AVX-512

The second takes minutes; Debian's package qemu-user has it. It prints what torch computes with, and the digest.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from sapo_edge.experiment.measures import TEST, VALIDATION
from sapo_edge.experiment.plan import Job
from sapo_edge.experiment.scales import tiny
from sapo_edge.experiment.scene import Scene, fix_instructions
from sapo_edge.experiment.swarm import Swarm

ROUNDS = 3


def main() -> None:
    """Run a swarm of two, and print what came out."""
    fix_instructions()
    plan = tiny()
    setting = replace(plan.settings[0], rounds=ROUNDS, nodes=2, validation=4, questions=4, sampled=0)
    digest = hashlib.sha256()
    with TemporaryDirectory() as directory:
        scene = Scene(plan, Path(directory) / "cache", Path(directory) / "work", lambda _text: None)
        sets = {name: each for name, each in scene.question_sets(setting).items() if name in (VALIDATION, TEST)}
        swarm = Swarm(Job(setting, setting.arm("4/4"), 0), plan.learning, scene.source, scene.shelves(setting), sets)
        record = swarm.run()
        rounds = [replace(row, seconds=0.0) for row in record.rounds]
        digest.update(json.dumps(asdict(replace(record, rounds=tuple(rounds))), sort_keys=True).encode())
        for member in swarm.members:
            digest.update((member.shelf.place(member.place) / "adapter_model.safetensors").read_bytes())
        scene.close()
    import torch

    print(f"{torch.backends.cpu.get_cpu_capability()}: {digest.hexdigest()}")


if __name__ == "__main__":
    main()
