"""Four nodes that share, against four that don't: same seeds, same rounds, over libp2p on one machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from sapo_edge.state.paths import Paths
from sapo_edge.state.secret import read_or_create_secret
from sapo_edge.swarm.joining.identity import Identity

NODES = 4
ARMS = {"4 own / 4 external": (4, 4), "8 own / 0 external": (8, 0)}


def free_port() -> int:
    """A TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def run_arm(directory: Path, own: int, external: int, rounds: int) -> list[list[dict[str, Any]]]:
    """The events of each node; the nodes run at the same time, each with one thread."""
    port = free_port()
    homes = [directory / f"node-{number}" for number in range(NODES)]
    identities = []
    for home in homes:
        paths = Paths.default(home)
        paths.create()
        identities.append(Identity(read_or_create_secret(paths.identity)))
    first = f"/ip4/127.0.0.1/tcp/{port}/p2p/{identities[0].peer_id}"
    processes = []
    for number, home in enumerate(homes):
        command = [
            sys.executable, "-m", "sapo_edge", "run", "--json", "--home", str(home), "--rounds", str(rounds),
            "--own", str(own), "--external", str(external), "--threads", "1", "--seed", str(11 + number),
            "--set", "mdns=off", "--set", "listen=loopback", *(("--solo",) if not external else ()),
            "--set", f"port={port if not number else 0}", "--set", f"bootstrap={first if number else ''}",
        ]  # fmt: skip
        with (home / "events.jsonl").open("w") as events:
            environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
            processes.append(subprocess.Popen(command, stdout=events, stderr=subprocess.DEVNULL, env=environment))
    for process in processes:
        if process.wait():
            raise SystemExit(f"a node of {directory} ended with {process.returncode}")
    return [[json.loads(line) for line in (home / "events.jsonl").read_text().splitlines()] for home in homes]


def held_out(events: Sequence[dict[str, Any]]) -> list[float]:
    """Held-out accuracy before training and at each evaluation."""
    return [event["accuracy"] for event in events if event["event"] == "held_out"]


def run(home: Path, rounds: int) -> None:
    """Print the table; everything is kept below `home`."""
    print(f"\n### {NODES} nodes, {rounds} rounds on `starter`\n")
    print(
        "| arm | mean own reward | of the last 10 rounds | cumulative | external in updates | held-out, mean of nodes |"
    )
    print("|---|---|---|---|---|---|")
    for name, (own, external) in ARMS.items():
        nodes = run_arm(home / f"{own}-{external}", own, external, rounds)
        rewards = [[event["reward_own"] for event in events if event["event"] == "round"] for events in nodes]
        shared = [event["external"] for events in nodes for event in events if event["event"] == "round"]
        accuracies = [held_out(events) for events in nodes]
        curve = ", ".join(f"{mean(column):.2f}" for column in zip(*accuracies, strict=True))
        ends = ", ".join(f"{column[-1]:.2f}" for column in accuracies)
        last = mean(mean(row[-10:]) for row in rewards)
        print(
            f"| {name} | {mean(map(mean, rewards)):.3f} | {last:.3f} | {mean(map(sum, rewards)):.1f} "
            f"| {mean(shared):.2f} | {curve} (at the end: {ends}) |",
            flush=True,
        )
