"""A tiny model, a trained state directory, and commands on them."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pytest

from tests.cli.inprocess import invoke  # noqa: F401 - a fixture
from tests.cli.process import Result, run
from tests.models import SHAPES, write_model


class Command(Protocol):
    """Runs `sapo`; see `process.run`."""

    def __call__(
        self, *arguments: str | Path, fault: str = "", rewarded: bool = False, environment: dict[str, str] | None = None
    ) -> Result: ...


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny.gguf", SHAPES["llama-gqa"])


@pytest.fixture(scope="session")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("other") / "other.gguf", SHAPES["qwen3"])


@pytest.fixture(scope="session")
def directories(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """A fresh directory at each call."""
    numbers = itertools.count()
    return lambda: tmp_path_factory.mktemp(f"command-{next(numbers)}")


@pytest.fixture(scope="session")
def sapo(directories: Callable[[], Path]) -> Command:
    def command(
        *arguments: str | Path, fault: str = "", rewarded: bool = False, environment: dict[str, str] | None = None
    ) -> Result:
        return run(arguments, directories(), fault=fault, rewarded=rewarded, environment=environment)

    return command


def quick(model: Path, home: Path, *more: str | Path) -> list[str | Path]:
    """Arguments of a run whose rounds take a fraction of a second."""
    return [
        "run", "--model", model, "--home", home, "--own", "2", "--external", "0", "--answers", "4",
        "--threads", "1", "--seed", "3",
        "--set", "rank=2", "--set", "max_tokens=8", "--set", "held_out=4", "--set", "evaluate_every=2",
        "--set", "learning_rate=0.01", "--set", "warmup=0", *more,
    ]  # fmt: skip


@pytest.fixture(scope="session")
def trained(sapo: Command, model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """The home of an undisturbed run of five rounds, and what it printed. Not to be changed."""
    home = tmp_path_factory.mktemp("trained") / "home"
    return home, sapo(*quick(model, home, "--rounds", "5", "--json"), rewarded=True)


@pytest.fixture
def home(trained: tuple[Path, Result], tmp_path: Path) -> Path:
    """A copy of the trained home."""
    return Path(shutil.copytree(trained[0], tmp_path / "home"))
