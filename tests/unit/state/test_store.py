"""The state directory as a whole."""

import subprocess
import sys
from pathlib import Path

import pytest

from sapo_edge.errors import CheckpointError, StateError, StateLockedError
from sapo_edge.state.checkpoint import Checkpoint
from sapo_edge.state.paths import Paths
from sapo_edge.state.store import Store
from tests.fakes import round_event


def record(store: Store, *rounds: int) -> None:
    for round in rounds:
        store.journal.record(round_event(round))


def save(store: Store, round: int) -> None:
    def write(directory: Path) -> None:
        (directory / "adapter").write_text("weights")

    store.save_checkpoint(Checkpoint(round, "model", "manifest", store.seed), write)


def test_a_killed_node_resumes_from_its_checkpoint_without_duplicates(tmp_path: Path) -> None:
    paths = Paths.default(tmp_path)
    with Store(paths) as store:
        assert store.resume(model_digest="model", manifest_digest="manifest") == (None, 0)
        record(store, 1, 2)
        save(store, 2)
        record(store, 3, 4)
        secret = store.secret
    with Store(paths) as store:
        resumed, round = store.resume(model_digest="model", manifest_digest="manifest")
        assert resumed is not None and resumed.round == round == 2 and resumed.seed == store.seed
        assert store.journal.last_round() == 2 and store.secret == secret
        assert store.notices == ["2 rounds after the checkpoint of round 2 will be repeated"]


def test_another_model_is_rejected_and_the_history_stays(tmp_path: Path) -> None:
    with Store(Paths.default(tmp_path)) as store:
        save(store, 1)
        record(store, 2)
        with pytest.raises(CheckpointError, match="another model"):
            store.resume(model_digest="other", manifest_digest="manifest")
        assert store.journal.last_round() == 2


def test_a_saved_checkpoint_becomes_the_latest(tmp_path: Path) -> None:
    with Store(Paths.default(tmp_path)) as store:
        assert store.latest is None
        save(store, 1)
        assert store.latest is not None and store.latest == store.checkpoints.load(1)


def test_a_second_node_is_rejected_until_the_first_closes(tmp_path: Path) -> None:
    paths = Paths.default(tmp_path)
    with Store(paths), pytest.raises(StateLockedError):
        Store(paths)
    Store(paths).close()


def test_a_failed_start_releases_the_lock(tmp_path: Path) -> None:
    paths = Paths.default(tmp_path)
    paths.create()
    paths.identity.mkdir()
    for _ in range(2):
        with pytest.raises(StateError) as caught:
            Store(paths)
        assert not isinstance(caught.value, StateLockedError)


def test_state_and_settings_load_nothing_heavy() -> None:
    code = (
        "import sys, sapo_edge.state.store, sapo_edge.config.layers, sapo_edge.state.logs\n"
        "heavy = {'torch', 'numpy', 'llama_cpp', 'mlx', 'textual', 'reasoning_gym', 'libp2p', 'trio', 'tomlkit'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
