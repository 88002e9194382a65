"""A run with the setting `curves`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Command, quick
from tests.unit.library.test_curves import scalars


def test_a_run_with_curves_writes_figures_of_its_rounds(sapo: Command, model: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    home = tmp_path / "home"
    arguments = [*quick(model, home, "--solo", "--json", "--set", "curves=tensorboard"), "--rounds"]
    ran = sapo(*arguments, "2", rewarded=True)
    assert ran.code == 0 and not [event for event in ran.named("notice") if "curves" in event["text"]], ran.err
    assert "curves: tensorboard keeps figures" in " ".join(ran.named("node_started")[0]["reasons"])
    places = home / "state" / "curves"
    (directory,) = (places / "tensorboard").iterdir()
    rewards = {step: value for tag, step, value in scalars(directory) if tag == "reward/own"}
    assert directory.name.startswith("starter-first-")
    assert rewards == pytest.approx({event["round"]: event["reward_own"] for event in ran.named("round")})
    # One that can't be opened is told, and rounds go on.
    shutil.rmtree(places)
    places.write_text("in the way")
    ran = sapo(*arguments, "3", rewarded=True)
    assert ran.code == 0 and [event["round"] for event in ran.named("round")] == [3]
    (told,) = [event for event in ran.named("notice") if "curves" in event["text"]]
    assert told["level"] == "warning" and told["text"].startswith("no curves: tensorboard can't be opened: ")
    assert told["text"].endswith('or set curves = ""')
