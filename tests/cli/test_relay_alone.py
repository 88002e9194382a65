"""`sapo relay` with no other packages than those that every machine needs, and those of the extra `swarm`."""

from __future__ import annotations

import json
import os
import signal
import tomllib
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import psutil
import pytest
import trio
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from sapo_edge.swarm.addresses import parse_address
from sapo_edge.swarm.finding.directory import ask
from sapo_edge.swarm.wire.exchange import ExchangeRequest
from tests.benchmarks.relay import MOST_AT_START
from tests.cli.process import python
from tests.swarm.lines import LineProcess
from tests.swarm.visits.test_relay import OK, Host

ROOT = Path(__file__).parents[2]
HEAVY = {
    "accelerate", "gguf", "llama_cpp", "matplotlib", "mlx", "mlx_lm", "numpy", "peft", "reasoning_gym", "safetensors",
    "scipy", "sympy", "textual", "tokenizers", "torch", "transformers",
}  # fmt: skip
SITE = """
import importlib.abc, json, os, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

absent = set(json.loads(os.environ["ABSENT"]))
sys.meta_path.insert(0, Absent())
"""
"""A `sitecustomize` of programs that run as if some modules were not installed."""


def requirements() -> list[Requirement]:
    """Those of the wheel that `packaging/wheels.py core` writes, with the extra `swarm`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"]["swarm"]]
    return [requirement for line in lines if (requirement := Requirement(line)).name != "sapo-edge"]


def installed_for_a_relay() -> set[str]:
    """Distributions that pip installs for a relay, by their canonical names."""
    names, waiting = set[str](), requirements()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name not in names and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            names.add(name)
            waiting += [Requirement(line) for line in requires(name) or ()]
    return names


@pytest.fixture(scope="module")
def absent() -> set[str]:
    """Modules that are installed here and would not be on a relay."""
    present = {"sapo-edge", *installed_for_a_relay()}
    modules = {
        module
        for module, names in packages_distributions().items()
        if not present & {canonicalize_name(name) for name in names}
    }
    assert modules & HEAVY and "libp2p" not in modules
    return modules | HEAVY


@pytest.fixture
def without(absent: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that are started now lack these modules."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(SITE)
    monkeypatch.setenv("ABSENT", json.dumps(sorted(absent)))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "site"), str(ROOT)]))


@pytest.mark.usefixtures("without")
def test_a_relay_runs_without_what_trains(tmp_path: Path) -> None:
    arguments = ("relay", "--loopback", "--port", "0", "--json", "--home", str(tmp_path))
    process = LineProcess("-m", "sapo_edge", *arguments)
    try:
        relay = parse_address(process.first(lambda line: "addresses" in line)["addresses"][0])

        async def scenario() -> None:
            async with Host().running() as member:
                await member.join(relay)
                assert await member.reserve() == OK
                answer = await ask(member.host, relay.peer_id, ExchangeRequest(bytes(32), 0, (), False))
                assert answer is not None and answer.seen == "127.0.0.1"

        trio.run(scenario)
        memory = psutil.Process(process.process.pid).memory_info()
        assert memory.rss < MOST_AT_START * 1e6, "an import on the way of a relay has become heavy"
        process.process.send_signal(signal.SIGINT)
        assert process.process.wait(20) == 0
    finally:
        process.kill()


@pytest.mark.parametrize("arguments", [("run", "--solo", "--rounds", "1"), ("bench",), ("chat",)])
@pytest.mark.usefixtures("without")
def test_other_commands_name_what_is_missing(arguments: tuple[str, ...], tmp_path: Path) -> None:
    ended = python("-m", "sapo_edge", *arguments, "--home", tmp_path, directory=ROOT)
    assert ended.code == 1 and ended.err.startswith("sapo: "), ended.err
    assert "install" in ended.err and "Traceback" not in ended.err
