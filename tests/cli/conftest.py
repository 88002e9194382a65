"""A tiny model, a trained state directory, and commands on them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sapo_edge.backends.choose import detect
from sapo_edge.cli import service
from sapo_edge.config.settings import SETTINGS
from sapo_edge.service import systemd
from sapo_edge.service.systemd import Systemd
from sapo_edge.state.paths import Paths
from tests.cli.inprocess import invoke  # noqa: F401 - a fixture
from tests.cli.process import Result, kill_node, run
from tests.models import SHAPES, write_model
from tests.unit.service.test_systemd import Commands

Command = Callable[..., Result]
"""Runs `sapo`; see `process.run`."""


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny.gguf", SHAPES["llama-gqa"])


@pytest.fixture(scope="session")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("other") / "other.gguf", SHAPES["qwen3"])


@pytest.fixture(scope="session")
def sapo(tmp_path_factory: pytest.TempPathFactory) -> Command:
    """Each command prints into a fresh directory, in which it runs."""
    return lambda *arguments, **options: run(arguments, tmp_path_factory.mktemp("command"), **options)


def quick(model: Path, home: Path, *more: str | Path) -> list[str | Path]:
    """Arguments of a run whose rounds take a fraction of a second."""
    return [
        "run", "--model", model, "--home", home, "--own", "2", "--external", "0", "--answers", "4",
        "--threads", "1", "--seed", "3",
        "--set", "rank=2", "--set", "max_tokens=8", "--set", "held_out=4", "--set", "evaluate_every=2",
        "--set", "learning_rate=0.01", "--set", "warmup=0", *more,
    ]  # fmt: skip


def checkpoints(home: Path) -> list[str]:
    """Names of what is in the directory of the current run's checkpoints."""
    return sorted(path.name for path in Paths.default(home).checkpoints.iterdir())


@pytest.fixture(scope="session")
def trained(sapo: Command, model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """The home of an undisturbed run of five rounds, and what it printed. Not to be changed."""
    home = tmp_path_factory.mktemp("trained") / "home"
    return home, sapo(*quick(model, home, "--rounds", "5", "--json"), rewarded=True)


@pytest.fixture
def home(trained: tuple[Path, Result], tmp_path: Path) -> Path:
    """A copy of the trained home."""
    return Path(shutil.copytree(trained[0], tmp_path / "home"))


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home that does not exist, of a node that works alone with one thread; one that is left there is killed."""
    monkeypatch.setenv("SAPO_EDGE_NETWORK", "solo")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield tmp_path / "home"
    kill_node(tmp_path / "home")


@pytest.fixture
def unprobed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A doctor that does not load the backends' packages, which takes seconds."""
    monkeypatch.setattr(detect, "probe", lambda _backends: {})


@pytest.fixture
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SETTINGS:
        monkeypatch.delenv(f"SAPO_EDGE_{name.upper()}", raising=False)


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """A machine that systemd runs, and what systemd is asked."""
    commands = Commands()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(systemd, "BOOTED", tmp_path)
    monkeypatch.setattr(service, "manager_of", lambda name, system: Systemd(system=system, run=commands))
    return commands
