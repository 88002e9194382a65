"""The state directory as a whole."""

import os
import shutil
from pathlib import Path

import pytest

from sapo_edge.errors import CheckpointError, StateError, StateLockedError
from sapo_edge.events import RolledBack
from sapo_edge.state import store as store_module
from sapo_edge.state.checkpoint import Checkpoint
from sapo_edge.state.checkpoints import Checkpoints
from sapo_edge.state.journal import Journal
from sapo_edge.state.lock import StateLock
from sapo_edge.state.paths import FIRST_RUN, Paths
from sapo_edge.state.rollback import write_rollback
from sapo_edge.state.runs import begin_run, read_looked, use_run, write_looked
from sapo_edge.state.store import GENERATOR_CURSOR, GENERATOR_ROUND, ROLLED_BACK_CURSOR, Store
from tests.fakes import round_event


def record(store: Store, *rounds: int) -> None:
    for round in rounds:
        store.journal.record(round_event(round))


def save(store: Store, *rounds: int) -> None:
    for round in rounds:
        checkpoint = Checkpoint(round, "model", "manifest", store.seed)
        store.save_checkpoint(checkpoint, lambda directory: (directory / "adapter").touch())


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths.default(tmp_path)


def test_a_killed_node_resumes_from_its_checkpoint_without_duplicates(paths: Paths) -> None:
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


def test_a_run_that_is_chosen_while_a_node_waits_is_opened_whole(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    for last in (9, 1):
        with Store(paths) as store:
            record(store, *range(1, last + 1))
            save(store, last)
        if last == 9:
            begin_run(paths, "short")
    acquire = StateLock.acquire

    def choose_before(lock: StateLock) -> None:
        monkeypatch.undo()
        use_run(paths, FIRST_RUN)
        acquire(lock)

    monkeypatch.setattr(StateLock, "acquire", choose_before)
    with Store(paths) as store:
        latest, round = store.resume(model_digest="model", manifest_digest="manifest")
        assert latest is not None and latest.round == round == store.journal.last_round() == 9
        assert store.run == paths.run_of(FIRST_RUN)


def test_a_node_that_is_killed_after_each_checkpoint_keeps_no_more_of_them(paths: Paths) -> None:
    with Store(paths, keep_checkpoints=9) as store:
        save(store, *range(1, 7))
    with Store(paths, keep_checkpoints=3) as store:
        assert store.checkpoints.rounds() == [1, 2, 3, 4, 5, 6]
        store.resume(model_digest="model", manifest_digest="manifest")
        assert store.checkpoints.rounds() == [4, 5, 6]


def test_what_was_half_written_is_removed_if_no_other_program_writes_it_now(paths: Paths) -> None:
    Store(paths).close()
    half = [directory / f".{name}.ab12.tmp" for directory in (paths.state, paths.run.directory) for name in "ab"]
    for path in (*half, pool := paths.run.directory / ".pool.ab12.tmp"):
        path.write_bytes(b"half")
    for path in half[::2]:
        os.utime(path, (0, 0))
    with Store(paths):
        assert [path.exists() for path in half] == [False, True] * 2 and not pool.exists()


def test_another_model_and_a_second_node_are_rejected_and_the_history_stays(paths: Paths) -> None:
    with Store(paths), pytest.raises(StateLockedError):
        Store(paths)
    Store(paths).close()
    with Store(paths) as store:
        save(store, 1)
        record(store, 2)
        with pytest.raises(CheckpointError, match="another model"):
            store.resume(model_digest="other", manifest_digest="manifest")
        assert store.journal.last_round() == 2


def test_a_failed_start_releases_the_lock(paths: Paths) -> None:
    paths.create()
    paths.identity.mkdir()
    for _ in range(2):
        with pytest.raises(StateError) as caught:
            Store(paths)
        assert not isinstance(caught.value, StateLockedError)


STEPS: list[tuple[object, str]] = [
    (store_module, "write_rollback"), (Checkpoints, "set_aside_after"), (Journal, "roll_back"),
    (store_module, "remove_rollback"),
]  # fmt: skip


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step[1])
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_end_in_the_middle_of_a_return_leaves_one_state_or_the_other(
    paths: Paths, monkeypatch: pytest.MonkeyPatch, step: tuple[object, str], when: str
) -> None:
    with Store(paths) as store:
        record(store, 1, 2, 3)
        save(store, 1, 2, 3)
        with monkeypatch.context() as patched:
            owner, name = step
            original = getattr(owner, name)

            def end(*arguments: object) -> None:
                if when == "after":
                    original(*arguments)
                raise KeyboardInterrupt

            patched.setattr(owner, name, end)
            with pytest.raises(KeyboardInterrupt):
                store.roll_back(1, 9)
    is_decided = (step, when) != (STEPS[0], "before")
    with Store(paths) as store:
        assert store.latest is not None and not paths.run.rollback.exists()
        _, round = store.resume(model_digest="model", manifest_digest="manifest")
        told = [event for event in store.journal.events() if isinstance(event, RolledBack)]
        assert round == store.latest.round == store.journal.last_round() == (1 if is_decided else 3)
        assert [(event.from_round, event.to_round) for event in told] == ([(3, 1)] if is_decided else [])
        assert store.journal.counter(ROLLED_BACK_CURSOR) == (9 if is_decided else 0)
        names = sorted(path.name for path in paths.checkpoints.iterdir())
    aside = ["round-000002.rolled-back", "round-000003.rolled-back"]
    assert names == ["round-000001", *(aside if is_decided else ["round-000002", "round-000003"])]


def test_a_return_whose_checkpoint_is_gone_by_then_is_given_up(paths: Paths) -> None:
    with Store(paths) as store:
        save(store, 1, 2)
    write_rollback(paths.run.rollback, RolledBack(from_round=2, to_round=1), 0)
    shutil.rmtree(paths.checkpoints / "round-000001")
    with Store(paths) as store:
        assert store.latest is not None and store.latest.round == 2
        assert "does not return" in store.notices[0] and not paths.run.rollback.exists()


UNKNOWN = b'{"v": 1, "from_round": 2, "to_round": 1, "cursor": 0, "time": 1.0, "more": 1}'


@pytest.mark.parametrize("content", [b"", b"[]", b'{"v": 2}', b'{"v": 1, "from_round": "x"}', b"\xff", UNKNOWN])
def test_a_damaged_decision_is_reported_with_a_remedy(paths: Paths, content: bytes) -> None:
    Store(paths).close()
    paths.run.rollback.write_bytes(content)
    with pytest.raises(StateError, match=r"rollback\.json is damaged; remove it"):
        Store(paths)


def test_a_return_twice_to_the_same_round_loses_no_checkpoint_and_rounds_that_are_gone_were_not_looked_at(
    paths: Paths,
) -> None:
    with Store(paths) as store:
        save(store, 1, 2, 3)
        for looked, kept in ((3, 2), (1, 1)):
            write_looked(store.run, looked)
            store.roll_back(2)
            assert read_looked(store.run) == kept
            save(store, 3)
        store.run.looked.unlink()
        store.run.looked.mkdir()
        assert store.roll_back(1).to_round == 1
        names = sorted(path.name for path in store.paths.checkpoints.iterdir())
    aside = ["round-000002.rolled-back", *(f"round-000003.rolled-back{again}" for again in ("", "-2", "-3"))]
    assert names == ["round-000001", *aside]


def test_after_a_generator_a_return_numbers_rounds_from_the_checkpoint(paths: Paths) -> None:
    with Store(paths) as store:
        record(store, 1)
        save(store, 1)
        store.journal.record(round_event(2), counters={GENERATOR_CURSOR: 5, GENERATOR_ROUND: 2})
        assert store.roll_back(1).from_round == 2
    with Store(paths) as store:
        assert store.resume(model_digest="model", manifest_digest="manifest")[1] == 1
