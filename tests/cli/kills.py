"""`python -m tests.cli.kills [--instants N] [--seed N]`: a node killed at random instants, and what it must have kept.

A node with the tiny model trains with external rollouts and evaluates every second round. Meanwhile a client reads
the journal over the control socket, and a transaction on the journal's file stays open. The node is killed with SIGKILL
at a random instant and started again, and its swarm sends it all rollouts again at each start.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import sqlite3
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from sapo_edge.control.client import connect
from sapo_edge.errors import SapoError
from sapo_edge.rollout import Answer, Rollout
from sapo_edge.state.paths import Paths
from sapo_edge.state.store import Store
from sapo_edge.tasks.manifest import load_manifest
from sapo_edge.tasks.source import TaskSource
from sapo_edge.transport import Receiver, Solo
from tests.cli.conftest import quick
from tests.cli.process import ONE_THREAD, reward_by_length
from tests.forked import Forked
from tests.models import SHAPES, write_model
from tests.waiting import wait_until

EVERY = 2
"""Rounds between evaluations."""
EXTERNAL = 2000
"""Rollouts that the swarm sends."""
LONGEST = 2.5
"""Most seconds from the node's first event to its end."""


class Resending(Solo):
    """A transport whose peer sends the same rollouts at each start."""

    def subscribe(self, receiver: Receiver) -> None:
        tasks, _ = TaskSource(load_manifest("starter")).training_tasks(99, 0, EXTERNAL)
        answers = (Answer("x", True), Answer("xx", True))
        for number, task in enumerate(tasks):
            receiver(Rollout(task.ref, task.question, task.ground_truth, answers, "a peer", 1, number, 1.0), "")


def main_of_node() -> None:
    """The process that is killed: `sapo run` with `Resending` for its swarm."""
    from sapo_edge.cli.main import main
    from sapo_edge.library import session

    reward_by_length()
    session.open_transport = lambda *_: (Resending(), None)
    main()


class Killed:
    """A state directory whose nodes are killed, in an empty directory.

    Attributes:
        round: the last one that was saved.
        replies: number of answers that the reading client got.
    """

    def __init__(self, directory: Path) -> None:
        self.home = directory / "home"
        self.output = directory / "output"
        self.paths = Paths.default(self.home)
        self.model = write_model(directory / "tiny.gguf", SHAPES["llama-gqa"])
        self.round = 0
        self.replies = 0

    def run(self, rounds: int, seconds: float | None) -> None:
        """Start a node, kill it after so many seconds from its first event (None: wait for its end), and check."""
        # Each round must take an external rollout, however the tiny model's accuracy swings.
        settings = ("--set", f"evaluate_every={EVERY}", "--set", "held_out=20", "--set", "protect=off")
        arguments = [*map(str, quick(self.model, self.home, "--json", "--rounds", str(rounds), *settings))]
        arguments[arguments.index("--external") + 1] = "1"
        environment = {**os.environ, **ONE_THREAD, "SAPO_EDGE_NETWORK": "swarm"}
        code = "from tests.cli.kills import main_of_node; main_of_node()"
        with self.output.open("w") as file:
            out, here = file.fileno(), Path.cwd()
            process = Forked("-c", code, *arguments, directory=here, environment=environment, stdout=out, stderr=out)
        ended = threading.Event()
        reader = threading.Thread(target=self._read, args=(ended,))
        reader.start()
        try:
            if seconds is None:
                assert process.wait(120) == 0, self.output.read_text()
            else:
                wait_until(lambda: self.events() or process.poll() is not None)
                time.sleep(seconds)
                assert process.poll() is None, self.output.read_text()
                process.kill()
                process.wait()
        finally:
            ended.set()
            reader.join()
        self.check()

    def check(self) -> None:
        events = self.events()
        finished = max((event["round"] for event in events if event["event"] == "round"), default=0)
        saved = max((event["round"] for event in events if event["event"] == "checkpoint"), default=0)
        with Store(self.paths) as store:
            latest = 0 if store.latest is None else store.latest.round
            assert latest >= max(self.round, saved, finished - 1), "no more than the round in progress is lost"
            rounds = [event.round for event in store.journal.rounds(1000)]
            assert rounds == list(range(1, len(rounds) + 1)) and latest <= len(rounds) <= latest + 1
            evaluated = {event.round for event in store.journal.held_out(1000)}
            assert set(range(EVERY, latest, EVERY)) <= evaluated, "only the last evaluation may be missing"
            scored = [one for round in range(1, latest + 1) for one in store.journal.rollouts(round)]
            trained = [one.rollout.id for one in scored if not one.own]
        assert len(trained) == len(set(trained)), "an external rollout was trained on twice"
        assert len(trained) == latest, "there are external rollouts enough"
        self.round = latest

    def events(self) -> list[dict[str, Any]]:
        """What the last node printed, without a line that was cut off."""
        lines = self.output.read_text().splitlines(keepends=True) if self.output.exists() else []
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]

    def _read(self, ended: threading.Event) -> None:
        """Read the journal over the control socket, and keep a transaction on its file open."""
        with contextlib.ExitStack() as closing:
            while not ended.wait(0.02):
                with contextlib.suppress(SapoError, sqlite3.Error), connect(self.paths) as client:
                    uri = f"{self.paths.journal.as_uri()}?mode=ro"
                    file = closing.enter_context(contextlib.closing(sqlite3.connect(uri, uri=True)))
                    file.execute("BEGIN")
                    file.execute("SELECT count(*) FROM rounds").fetchone()
                    while not ended.is_set():
                        client.request("history", {"points": 100})
                        client.request("rollouts", {"limit": 50})
                        self.replies += 1


def run(directory: Path, instants: int, seed: int) -> int:
    """Kill a node at so many random instants, let it finish two more rounds, and return the number of rounds."""
    generator = random.Random(seed)
    killed = Killed(directory)
    for _ in range(instants):
        killed.run(0, generator.uniform(0, LONGEST))
    killed.run(killed.round + 2, None)
    assert [event["round"] for event in killed.events() if event["event"] == "comparison"]
    assert killed.replies > instants, "the client read meanwhile"
    return killed.round


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.cli.kills", description=__doc__)
    parser.add_argument("--instants", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        rounds = run(Path(directory), arguments.instants, arguments.seed)
    print(f"killed at {arguments.instants} instants within {rounds} rounds: nothing was lost or trained on twice")


if __name__ == "__main__":
    main()
