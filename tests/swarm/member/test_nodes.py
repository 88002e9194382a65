"""Whole nodes, `sapo run` in fresh homes, find each other on the local network and train on each other's rollouts.

`tests/swarm/finding/test_households.py` has those who are invited, or only look their swarm up.
"""

from __future__ import annotations

import json
import secrets
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cli.process import fork
from tests.models import SHAPES, write_model
from tests.swarm.lines import Line, LineProcess

START_SECONDS = 90.0
"""Importing torch takes its time where all cores are busy."""
PROGRAM = """
from tests.cli.process import rest_between_answers
rest_between_answers(0.3)
from sapo_edge.cli.entry import main
main()
"""
MANIFEST = """
name = "test-{name}"
max_tokens = 48
[[tasks]]
name = "sums"
generator = "chain_sum"
config = {{ min_terms = 2, max_terms = 2, min_digits = 1, max_digits = 1 }}
"""


class Running(LineProcess):
    """`sapo run --json`."""

    def __init__(self, home: Path, model: Path, manifest: Path) -> None:
        self.home = home
        super().__init__(
            "-c", PROGRAM, "run", "--json", "--home", str(home), "--model", str(model), "--manifest", str(manifest),
            "--own", "2", "--external", "2", "--answers", "8", "--threads", "1", "--set", "rank=2",
            "--set", "held_out=0", "--set", "strategy=uniform", "--set", "mdns=on", "--set", "listen=all", fork=True,
        )  # fmt: skip

    def started(self) -> float:
        """When it was ready for its first round."""
        return float(self.first(lambda event: event["event"] == "node_started", START_SECONDS)["time"])

    def connected(self) -> float:
        """When it first had somebody to share with."""
        return float(self.first(lambda event: event.get("text") == "connected to the swarm")["time"])

    def status(self) -> Line:
        process = fork("status", "--json", "--home", self.home, directory=self.home.parent)
        out, err = process.communicate(60)
        assert process.wait() == 0, err
        return dict(json.loads(out))


@pytest.mark.slow
def test_two_fresh_homes_find_each_other_on_the_local_network(tmp_path: Path) -> None:
    model, manifest = write_model(tmp_path / "tiny.gguf", SHAPES["llama-gqa"]), tmp_path / "manifest.toml"
    # Nodes of others on the network are not to take part.
    manifest.write_text(MANIFEST.format(name=secrets.token_hex(8)))
    with ExitStack() as stack:
        nodes = [stack.enter_context(Running(tmp_path / name, model, manifest)) for name in ("a", "b")]
        ready = max(node.started() for node in nodes)
        for node in nodes:
            assert node.connected() - ready < 15.0
            event = node.first(lambda event: event["event"] == "round" and event["external"] > 0)
            assert event["own"] + event["external"] == 4 and event["reward_external"] is not None
        status = nodes[0].status()
    assert len(status["swarm"]["peers"]) == 1 and status["swarm"]["rollouts_in"] > 0
    assert status["swarm"]["faults"] == {}
