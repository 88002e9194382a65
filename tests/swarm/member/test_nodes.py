"""Whole nodes, `sapo run` in fresh homes: they find each other and train on each other's rollouts."""

from __future__ import annotations

import contextlib
import json
import secrets
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.process import fork
from tests.models import SHAPES, write_model
from tests.swarm.lines import LineProcess

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


def sapo(home: Path, *arguments: str) -> str:
    process = fork(*arguments, "--home", home, directory=home.parent)
    out, err = process.communicate(60)
    assert process.wait() == 0, err
    return out


class Running(LineProcess):
    """`sapo run --json`."""

    def __init__(self, home: Path, model: Path, *more: str, mdns: str = "off", listen: str = "loopback") -> None:
        self.home = home
        super().__init__(
            "-c", PROGRAM, "run", "--json", "--home", str(home), "--model", str(model),
            "--own", "2", "--external", "2", "--answers", "8", "--threads", "1",
            "--set", "rank=2", "--set", "held_out=0", "--set", "strategy=uniform",
            "--set", f"mdns={mdns}", "--set", f"listen={listen}", *more, fork=True,
        )  # fmt: skip

    def started(self) -> float:
        """When it was ready for its first round."""
        return float(self.first(lambda event: event["event"] == "node_started", START_SECONDS)["time"])

    def connected(self) -> float:
        """When it first had somebody to share with."""
        return float(self.first(lambda event: event.get("text") == "connected to the swarm")["time"])

    def trained_on_others(self) -> dict[str, Any]:
        """Its first round with rollouts of others in the update."""
        return self.first(lambda event: event["event"] == "round" and event["external"] > 0)

    def status(self) -> dict[str, Any]:
        return dict(json.loads(sapo(self.home, "status", "--json")))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny.gguf", SHAPES["llama-gqa"])


@pytest.fixture
def running() -> Iterator[Callable[..., Running]]:
    with contextlib.ExitStack() as stack:

        def start(*arguments: Any, **options: Any) -> Running:
            node = Running(*arguments, **options)
            return stack.enter_context(node)

        yield start


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """A swarm of this test alone: nodes of others on the network are not to take part."""
    path = tmp_path / "manifest.toml"
    path.write_text(MANIFEST.format(name=secrets.token_hex(8)))
    return path


@pytest.mark.slow
def test_two_fresh_homes_find_each_other_on_the_local_network(
    tmp_path: Path, model: Path, manifest: Path, running: Callable[..., Running]
) -> None:
    nodes = [
        running(tmp_path / name, model, "--manifest", str(manifest), mdns="on", listen="all") for name in ("a", "b")
    ]
    ready = max(node.started() for node in nodes)
    for node in nodes:
        assert node.connected() - ready < 15.0
        event = node.trained_on_others()
        assert event["own"] + event["external"] == 4 and event["reward_external"] is not None
    status = nodes[0].status()
    assert len(status["swarm"]["peers"]) == 1 and status["swarm"]["rollouts_in"] > 0
    assert status["swarm"]["faults"] == {}


@pytest.mark.slow
def test_an_invite_suffices_for_a_private_swarm_and_late_members_get_earlier_rollouts(
    tmp_path: Path, model: Path, manifest: Path, running: Callable[..., Running]
) -> None:
    sapo(tmp_path / "a", "swarm", "create", str(manifest), "--private")
    first = running(tmp_path / "a", model, listen="all")
    first.started()
    invite = sapo(tmp_path / "a", "swarm", "invite").strip()
    assert invite.startswith("sapo://") and "\n" not in invite
    sapo(tmp_path / "b", "swarm", "join", invite)
    second = running(tmp_path / "b", model, listen="all")
    outsider = running(
        tmp_path / "d", model, "--manifest", str(manifest), "--set", f"bootstrap={_address(invite)}", listen="all"
    )
    # It has the manifest from the first node: it is in no file of its own.
    second.started()
    for node in (first, second):
        node.trained_on_others()
    outsider.first(lambda event: event["event"] == "round" and event["round"] == 3)
    assert outsider.status()["swarm"]["peers"] == []
    shared = first.status()["swarm"]["rollouts_out"]
    first.process.send_signal(signal.SIGSTOP)  # what the third one gets of it can only be backfill from the second
    sapo(tmp_path / "c", "swarm", "join", sapo(tmp_path / "b", "swarm", "invite").strip())
    third = running(tmp_path / "c", model, listen="all")
    third.trained_on_others()
    assert shared > 0 and third.status()["swarm"]["rollouts_in"] > 0


def _address(invite: str) -> str:
    return next(part for part in invite.split("+") if part.startswith("at=")).removeprefix("at=")
