"""Several runs lie beside each other, and nothing that the identity may use only once begins again."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapo_edge.errors import ConfigError, StateError, StateLockedError
from sapo_edge.state.checkpoint import Checkpoint
from sapo_edge.state.journal import SEQUENCE, Journal
from sapo_edge.state.lock import StateLock
from sapo_edge.state.paths import FIRST_RUN, Paths
from sapo_edge.state.runs import begin_run, remove_run, run_names, unused, use_run
from sapo_edge.state.store import ROLLED_BACK_CURSOR, Store
from tests.fakes import find_the_disk_full


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths.default(tmp_path)


def train(paths: Paths, rollouts: int, tasks: int) -> int:
    """What a node does: reserve sequence numbers, save a checkpoint; returns the first number."""
    with Store(paths) as store:
        first = store.journal.reserve_sequences(rollouts)
        round = (0 if store.latest is None else store.latest.round) + 1
        state = Checkpoint(round, "model", "manifest", 1, {"tasks": tasks})
        store.save_checkpoint(state, lambda directory: (directory / "adapter").touch())
    return first


def test_a_fresh_state_directory_has_the_first_run_and_no_run_changes_while_a_node_runs(paths: Paths) -> None:
    assert run_names(paths) == [FIRST_RUN] and paths.run_name == FIRST_RUN and unused(run_names(paths)) == "run-2"
    train(paths, 1, 1)
    assert run_names(paths) == [FIRST_RUN] and not paths.current_run.exists()
    train(paths, 1, 1)
    with StateLock(paths.lock):
        for change in (begin_run, use_run, remove_run):
            with pytest.raises(StateLockedError):
                change(paths, "run-2")
    assert run_names(paths) == [FIRST_RUN]


def test_a_state_of_a_program_that_was_never_released_is_refused(paths: Paths) -> None:
    (paths.state / "journal").mkdir(parents=True)
    with pytest.raises(StateError, match="never released; use --home"):
        Store(paths)
    assert not paths.runs.exists()


def test_a_new_run_is_empty_and_goes_on_with_numbers_and_questions(paths: Paths) -> None:
    assert train(paths, 10, 40) == 1
    begin_run(paths, "run-2")
    names = run_names(paths)
    assert names == [FIRST_RUN, "run-2"] and paths.run_name == "run-2" and unused(names) == "run-3"
    with Store(paths) as store:
        assert store.latest is None and store.journal.last_round() is None
        assert store.resume(model_digest="another", manifest_digest="another") == (None, 0)
        assert store.journal.counter(ROLLED_BACK_CURSOR) == 40
    assert train(paths, 5, 60) == 11
    use_run(paths, FIRST_RUN)
    with Store(paths) as store:
        assert store.latest is not None and store.latest.cursor["tasks"] == 40
        assert store.journal.counter(ROLLED_BACK_CURSOR) == 60 and store.journal.counter(SEQUENCE) == 15
    assert train(paths, 1, 80) == 16


@settings(max_examples=10)
@given(work=st.lists(st.tuples(st.sampled_from(["first", "a", "b"]), st.integers(1, 5)), min_size=3, max_size=6))
def test_no_sequence_number_comes_twice(tmp_path_factory: pytest.TempPathFactory, work: list[tuple[str, int]]) -> None:
    paths = Paths.default(tmp_path_factory.mktemp("runs"))
    last = 0
    for name, rollouts in work:
        (use_run if name in run_names(paths) else begin_run)(paths, name)
        with closing(Journal(paths.journal)) as journal:
            assert journal.reserve_sequences(rollouts) > last
            last = journal.counter(SEQUENCE)


@pytest.mark.parametrize("name", ["", "../x", "A", "a/b", ".", "-a", "a" * 41, "a b", "a\n", "é"])
def test_a_name_never_leaves_the_directory(paths: Paths, name: str) -> None:
    for choose in (begin_run, use_run):
        with pytest.raises(ConfigError):
            choose(paths, name)
    assert not paths.current_run.exists()


def test_a_run_is_removed_unless_it_goes_on(paths: Paths) -> None:
    train(paths, 3, 3)
    begin_run(paths, "other")
    train(paths, 3, 6)
    with pytest.raises(ConfigError, match="there is a run"):
        begin_run(paths, "other")
    with pytest.raises(ConfigError, match="goes on"):
        remove_run(paths, "other")
    identity = paths.identity.read_bytes()
    remove_run(paths, FIRST_RUN)
    assert run_names(paths) == ["other"] and not paths.run_of(FIRST_RUN).directory.exists()
    assert paths.identity.read_bytes() == identity and (paths.checkpoints / "round-000001").exists()
    begin_run(paths, "third")
    remove_run(paths, "other")
    assert run_names(paths) == ["third"] and train(paths, 1, 7) == 7
    with pytest.raises(ConfigError, match="no run"):
        use_run(paths, "other")


@pytest.mark.parametrize("content", [b"", b"../evil\n", b"\xff\xff", b"x" * 100])
def test_a_damaged_choice_is_told_and_can_be_made_again(paths: Paths, content: bytes) -> None:
    train(paths, 3, 3)
    paths.current_run.write_bytes(content)
    with pytest.raises(StateError, match="does not name a run"):
        _ = paths.journal
    use_run(paths, FIRST_RUN)
    assert train(paths, 1, 4) == 4


def test_a_run_that_could_not_be_begun_is_not_there(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_to_begin(name: str) -> None:
        with monkeypatch.context() as patch, pytest.raises(StateError, match="No space left"):
            patch.setattr("sapo_edge.state.durable.write_atomically", find_the_disk_full)
            begin_run(paths, name)

    train(paths, 1, 1)
    fail_to_begin("other")
    assert run_names(paths) == [FIRST_RUN]
    begin_run(paths, "other")
    remove_run(paths, FIRST_RUN)
    fail_to_begin(FIRST_RUN)
    assert run_names(paths) == ["other"] and paths.identity.exists(), "what belongs to all runs stays"
