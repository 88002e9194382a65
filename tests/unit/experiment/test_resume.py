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


def interrupted(arm: Arm, directory: Path, at: int) -> None:
    run_until(arm, shelves(directory / "models"), directory / "state", at)


def again(arm: Arm, directory: Path) -> SwarmRecord:
    return resumed(arm, shelves(directory / "again"), directory / "state")


SOLITARY, MIXED = (
    replace(SETTING, nodes=nodes, models=models, arms=(HALF,), baseline=HALF.name)
    for nodes, models in ((1, ("base",)), (3, ("base", "small")))
)
CASES = [*((SETTING, arm, at) for arm in RESUMABLE for at in (1, 4, 7)), (SOLITARY, HALF, 3), (MIXED, HALF, 3)]


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


def test_a_full_disk_leaves_the_earlier_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(HALF, tmp_path, 3)
    swarm = new_swarm(HALF, shelves(tmp_path / "full"))
    swarm.restore(tmp_path / "state")
    with monkeypatch.context() as patch, pytest.raises(StateError, match=r"No space left on device; free .* --to"):
        patch.setattr(shutil, "copytree", find_the_disk_full)
        swarm.run(lambda now: now.save(tmp_path / "state"))
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["round-3"]
    assert text(again(HALF, tmp_path)) == text(record_of(HALF, shelves(tmp_path / "undisturbed")))


@pytest.mark.parametrize("name", ["state.json", "pool-0", "pool-2", "adapter-1/adapter_model.safetensors", "adapter-0"])
@pytest.mark.parametrize("damage", ["missing", "empty", "half"])
def test_a_damaged_state_is_recognised(tmp_path: Path, name: str, damage: str) -> None:
    interrupted(HALF, tmp_path, 3)
    path = tmp_path / "state" / "round-3" / name
    if path.is_dir() or damage == "missing":
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    else:
        path.write_bytes(b"" if damage == "empty" else path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(StateError, match="round-3 is damaged"):
        again(HALF, tmp_path)


def test_the_newest_state_counts_by_number(tmp_path: Path) -> None:
    interrupted(HALF, tmp_path, 7)
    state = tmp_path / "state"
    shutil.copytree(state / "round-7", state / "round-10")
    (state / "round-7" / "state.json").unlink()
    assert text(again(HALF, tmp_path)) == text(record_of(HALF, shelves(tmp_path / "undisturbed")))
