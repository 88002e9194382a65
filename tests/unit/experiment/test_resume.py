"""A swarm that was interrupted ends as if it had not been, whatever the kill left."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from sapo_edge.errors import StateError
from sapo_edge.experiment.member import Shelves
from sapo_edge.experiment.plan import Arm, Setting
from sapo_edge.experiment.results import SwarmRecord
from sapo_edge.experiment.swarm import Swarm
from tests.fakes import find_the_disk_full
from tests.unit.experiment.small import HALF, LOST, RESUMABLE, SETTING, new_swarm, record_of, shelves, text


class Killed(BaseException):
    """Ends a swarm after a round."""


def run_until(arm: Arm, models: Shelves, state: Path, at: int, setting: Setting = SETTING) -> None:
    def after_round(swarm: Swarm) -> None:
        if swarm.round == at:
            swarm.save(state)
            raise Killed

    with pytest.raises(Killed):
        new_swarm(arm, models, setting=setting).run(after_round)


def resumed(arm: Arm, models: Shelves, state: Path, setting: Setting = SETTING) -> SwarmRecord:
    swarm = new_swarm(arm, models, setting=setting)
    swarm.restore(state)
    kept = [row.seconds for row in swarm.rounds]
    record = swarm.run()
    assert kept and all(kept) and [row.seconds for row in record.rounds][: len(kept)] == kept
    return record


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state of a swarm after three rounds."""
    directory = tmp_path_factory.mktemp("saved")
    run_until(HALF, shelves(directory / "models"), directory / "state", 3)
    return directory / "state"


@pytest.fixture
def state(saved: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(saved, tmp_path / "state")


def assert_ends_as_undisturbed(state: Path, directory: Path) -> None:
    again = resumed(HALF, shelves(directory / "again"), state)
    assert text(again) == text(record_of(HALF, shelves(directory / "undisturbed")))


SOLITARY, MIXED = (
    replace(SETTING, nodes=nodes, models=models, arms=(HALF,), baseline=HALF.name)
    for nodes, models in ((1, ("base",)), (3, ("base", "small")))
)
CASES = [(SETTING, arm, at) for arm in RESUMABLE for at in (1, 4, 7)]
CASES += [(setting, HALF, 3) for setting in (SOLITARY, MIXED)]


@pytest.mark.parametrize(("setting", "arm", "at"), CASES)
def test_a_resumed_swarm_ends_as_an_undisturbed_one(tmp_path: Path, setting: Setting, arm: Arm, at: int) -> None:
    first, second, third = (shelves(tmp_path / name, *setting.models) for name in ("first", "second", "third"))
    run_until(arm, first, tmp_path / "state", at, setting)
    assert text(resumed(arm, second, tmp_path / "state", setting)) == text(record_of(arm, third, setting=setting))


def test_one_state_is_kept_and_drafts_of_kills_go_and_with_hostile_members_there_is_none(tmp_path: Path) -> None:
    assert not new_swarm(LOST, shelves(tmp_path)).can_resume
    state = tmp_path / "state"
    (state / ".draft" / "adapter-0").mkdir(parents=True)
    new_swarm(HALF, shelves(tmp_path / "models")).run(lambda swarm: swarm.save(state))
    assert [path.name for path in state.iterdir()] == ["round-8"]


def test_a_full_disk_leaves_the_earlier_state(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swarm = new_swarm(HALF, shelves(tmp_path / "full"))
    swarm.restore(state)
    with monkeypatch.context() as patch, pytest.raises(StateError, match=r"No space left on device; free .* --to"):
        patch.setattr(shutil, "copytree", find_the_disk_full)
        swarm.run(lambda now: now.save(state))
    assert [path.name for path in state.iterdir()] == ["round-3"]
    assert_ends_as_undisturbed(state, tmp_path)


@pytest.mark.parametrize("name", ["state.json", "pool-0", "pool-2", "adapter-1/adapter_model.safetensors", "adapter-0"])
@pytest.mark.parametrize("damage", ["missing", "empty", "half"])
def test_a_damaged_state_is_recognised(state: Path, tmp_path: Path, name: str, damage: str) -> None:
    path = state / "round-3" / name
    if path.is_dir() or damage == "missing":
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    else:
        path.write_bytes(b"" if damage == "empty" else path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(StateError, match="round-3 is damaged"):
        resumed(HALF, shelves(tmp_path / "again"), state)


def test_the_newest_state_counts_by_number(state: Path, tmp_path: Path) -> None:
    shutil.copytree(state / "round-3", state / "round-10")
    (state / "round-3" / "state.json").unlink()
    assert_ends_as_undisturbed(state, tmp_path)
