"""Checkpoints: complete or absent."""

import errno
import itertools
import json
import os
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sapo_edge.errors import Cancelled, CheckpointError, StateError
from sapo_edge.state import durable
from sapo_edge.state.checkpoint import RECORD, Checkpoint, read_record
from sapo_edge.state.checkpoints import Checkpoints


def state(round: int, accuracy: float | None = None, questions: int = 200) -> Checkpoint:
    cursor: dict[Any, Any] = {"index": round, 9: [1], 10: (2,)}
    return Checkpoint(round, "model", "manifest", 2**63 - 1, cursor, {"own": 8}, accuracy, questions)


def write(directory: Path) -> None:
    (directory / "adapter").mkdir()
    (directory / "adapter" / "weights.bin").write_bytes(b"weights" * 1000)
    (directory / "optimizer.bin").write_bytes(b"")


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "checkpoints", keep=2)


def test_a_saved_checkpoint_is_loaded_and_replaces_one_of_its_round(checkpoints: Checkpoints) -> None:
    assert checkpoints.latest() is None and checkpoints.best() is None and checkpoints.recover() == (None, [])
    with pytest.raises(CheckpointError, match="No such file"):
        checkpoints.load(12)
    checkpoints.save(state(12, accuracy=0.4), write)
    saved = checkpoints.save(state(12, accuracy=0.5), write)
    loaded = checkpoints.load(12)
    assert loaded.directory == saved.directory == checkpoints.directory / "round-000012"
    assert (loaded.seed, loaded.accuracy, loaded.settings, loaded.time) == (2**63 - 1, 0.5, {"own": 8}, saved.time)
    assert loaded.cursor == {"index": 12, "9": [1], "10": [2]}
    assert set(loaded.files) == {"adapter/weights.bin", "optimizer.bin"} and loaded.size == 7000
    assert checkpoints.latest() == loaded
    assert os.listdir(checkpoints.directory) == ["round-000012"]


def test_what_was_made_for_something_else_or_changed_is_rejected(checkpoints: Checkpoints) -> None:
    checkpoint = checkpoints.save(state(1), write)
    checkpoint.check_origin("model", "manifest")
    with pytest.raises(CheckpointError, match=r"another model; .*sapo runs new"):
        checkpoint.check_origin("other", "manifest")
    with pytest.raises(CheckpointError, match="another manifest"):
        checkpoint.check_origin("model", "other")
    checkpoint.directory.rename(checkpoints.directory / "round-000002")
    for use in (checkpoints.read, checkpoints.load):
        with pytest.raises(CheckpointError, match="of round 1"):
            use(2)
    path = checkpoints.save(state(1), write).directory / RECORD
    record = json.loads(path.read_text())
    record["cursor"]["index"] = 2
    path.write_text(json.dumps(record))
    with pytest.raises(CheckpointError, match=r"checkpoint\.json has changed"):
        checkpoints.read(1)
    path.write_text("[]")
    with pytest.raises(CheckpointError, match="can't be read"):
        checkpoints.read(1)


@pytest.mark.parametrize("name", ["/dev/zero", "../x", "adapter/../../x", "", ".", "x\0", "\ud800"])
def test_a_record_that_names_a_file_outside_of_the_checkpoint_is_damaged(tmp_path: Path, name: str) -> None:
    replace(state(1), files={name: (0, "00")}).write_record(tmp_path)
    with pytest.raises(CheckpointError, match="names a file elsewhere"):
        read_record(tmp_path)


@pytest.mark.parametrize("entry", [(-1, "00"), (1.5, "00"), ("1", "00"), (0, 0), (0, None)])
def test_a_record_with_other_sizes_or_digests_is_damaged(tmp_path: Path, entry: Any) -> None:
    replace(state(1), files={"x": entry}).write_record(tmp_path)
    with pytest.raises(CheckpointError, match="is not"):
        read_record(tmp_path)


@pytest.mark.parametrize(("name", "value"), [
    ("settings", 5), ("settings", ["own"]), ("cursor", 5), ("cursor", {"tasks": "x"}), ("cursor", {"tasks": None}),
    ("seed", "1"), ("seed", 1.5), ("time", "now"), ("time", None), ("questions", "all"), ("questions", -1),
    ("round", 1.5), ("round", True), ("accuracy", "0.5"), ("accuracy", True),
    ("model_digest", 5), ("manifest_digest", None), ("question_set", 5),
])  # fmt: skip
def test_a_record_with_values_of_other_types_is_damaged(tmp_path: Path, name: str, value: object) -> None:
    checkpoint = state(1)
    object.__setattr__(checkpoint, name, value)
    checkpoint.write_record(tmp_path)
    with pytest.raises(CheckpointError, match=f"{name}.* is not"):
        read_record(tmp_path)


def test_what_is_no_file_or_has_another_size_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "endless")
    (tmp_path / "long").write_text("long")
    for name in ("endless", "long"):
        replace(state(1), files={name: (0, "00")}).write_record(tmp_path)
        checkpoint = read_record(tmp_path)
        with monkeypatch.context() as patched, pytest.raises(CheckpointError, match=f"{name} has changed"):
            patched.setattr(Path, "open", lambda *_: pytest.fail("opened"))
            checkpoint.verify_files()


@pytest.mark.parametrize("name", ["adapter/weights.bin", RECORD])
@pytest.mark.parametrize("damage", ["missing", "short", "flipped"])
def test_a_damaged_checkpoint_is_skipped_and_set_aside(checkpoints: Checkpoints, name: str, damage: str) -> None:
    checkpoints.save(state(1), write)
    path = checkpoints.save(state(2), write).directory / name
    if damage == "flipped":
        flip_a_bit(path)
    elif damage == "short":
        path.write_bytes(path.read_bytes()[:-5])
    else:
        path.unlink()
    with pytest.raises(CheckpointError, match="damaged"):
        checkpoints.load(2)
    latest = checkpoints.latest()
    assert latest is not None and latest.round == 1 and checkpoints.rounds() == [1, 2]
    newest, (repair,) = checkpoints.recover()
    assert newest == latest and "round-000002.damaged" in repair and "\n" not in repair
    assert checkpoints.rounds() == [1] and (checkpoints.directory / "round-000002.damaged").is_dir()


@pytest.mark.parametrize("name", ["round-0000002", "round-00000\u0662"])
def test_another_name_of_a_number_is_no_checkpoint(checkpoints: Checkpoints, name: str) -> None:
    checkpoints.save(state(1), write)
    (checkpoints.directory / name).mkdir()
    assert checkpoints.rounds() == [1] and checkpoints.recover() == (checkpoints.load(1), [])


def test_a_checkpoint_of_a_newer_version_is_neither_skipped_nor_set_aside(checkpoints: Checkpoints) -> None:
    checkpoints.save(state(1), write)
    path = checkpoints.save(state(2), write).directory / RECORD
    path.write_text(json.dumps({**json.loads(path.read_text()), "v": 99}))
    for call in (checkpoints.latest, checkpoints.recover, checkpoints.best):
        with pytest.raises(StateError, match="newer"):
            call()
    assert checkpoints.rounds() == [1, 2]


def test_the_newest_and_the_best_are_kept(checkpoints: Checkpoints) -> None:
    for round, accuracy in ((1, 0.1), (2, 0.6), (3, 0.6), (4, None), (5, 0.2), (6, None)):
        checkpoints.save(state(round, accuracy), write)
    assert checkpoints.rounds() == [2, 5, 6]
    best = checkpoints.best()
    assert best is not None and best.round == 2
    checkpoints.record_accuracy(6, 0.9, 200)
    checkpoints.save(state(7), write)
    best = checkpoints.best()
    assert checkpoints.rounds() == [6, 7] and best is not None and best.round == 6
    checkpoints.load(6)


def test_accuracies_on_other_numbers_of_questions_are_not_compared(checkpoints: Checkpoints) -> None:
    for round, accuracy, questions in ((1, 1.0, 4), (2, 0.5, 200), (3, 0.4, 200), (4, None, 0), (5, None, 0)):
        checkpoints.save(state(round, accuracy, questions), write)
    best = checkpoints.best()
    assert best is not None and best.round == 2
    assert checkpoints.rounds() == [1, 2, 4, 5], "the best of every number of questions is kept"
    checkpoints.record_accuracy(5, 0.3, 200, "0.1.26-ab")
    best = checkpoints.best()
    assert best is not None and best.round == 5, "as many questions, but others"


@pytest.mark.parametrize("name", ["adapter/weights.bin", RECORD])
def test_a_bit_flipped_in_the_best_checkpoint_is_noticed(checkpoints: Checkpoints, name: str) -> None:
    checkpoints.keep = 3
    for round, accuracy in ((1, 0.3), (2, 0.9), (3, 0.1)):
        checkpoints.save(state(round, accuracy), write)
    flip_a_bit(checkpoints.directory / "round-000002" / name)
    warnings: list[str] = []
    best = checkpoints.best(warn=warnings.append)
    assert best is not None and best.round == 1
    assert len(warnings) == 1 and "round-000002 is damaged" in warnings[0]
    checkpoints.keep = 1
    checkpoints.save(state(4), write)
    assert checkpoints.rounds() == [1, 4], "the best complete one is kept"


@pytest.mark.parametrize(("error", "expected"), [
    (OSError(errno.ENOSPC, "No space left on device"), StateError),
    (RuntimeError("I/O error: No space left on device (os error 28)"), StateError),
    (RuntimeError("something else"), RuntimeError),
    (Cancelled(), Cancelled),
    (KeyboardInterrupt(), KeyboardInterrupt),
])  # fmt: skip
def test_a_failed_write_leaves_the_previous_one(
    checkpoints: Checkpoints, error: BaseException, expected: type[BaseException]
) -> None:
    checkpoints.save(state(1), write)

    def fail(directory: Path) -> None:
        write(directory)
        raise error

    for round in (1, 2):
        with pytest.raises(expected) as caught:
            checkpoints.save(state(round), fail)
        if expected is StateError:
            assert "free some space" in str(caught.value)
    assert os.listdir(checkpoints.directory) == ["round-000001"]
    checkpoints.load(1)


def test_what_can_not_be_written_is_noticed_before_anything_changes(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TypeError):
        checkpoints.save(Checkpoint(1, "model", "manifest", 0, cursor={"a": object()}), write)
    assert os.listdir(checkpoints.directory) == []
    monkeypatch.setattr(durable, "free_bytes", lambda directory: durable.SPACE_MARGIN + 5000)
    checkpoints.save(state(1), write)
    with pytest.raises(StateError, match=r"free.*needed"):
        checkpoints.save(state(2), lambda directory: pytest.fail("written"))
    assert checkpoints.rounds() == [1]


def test_a_checkpoint_that_was_being_replaced_comes_back(checkpoints: Checkpoints) -> None:
    directory = checkpoints.save(state(1), write).directory
    directory.rename(checkpoints.directory / ".replaced-round-000001")
    shutil.copytree(checkpoints.directory / ".replaced-round-000001", checkpoints.directory / ".writing-round-000001-x")
    newest, (back, removed) = checkpoints.recover()
    assert newest is not None and newest.round == 1
    assert back.endswith("the earlier one is back") and removed.startswith("removed .writing-round-000001-")
    assert os.listdir(checkpoints.directory) == ["round-000001"]
    checkpoints.load(1)


def save_until(step: int, directory: Path) -> int:
    """Save two checkpoints in a process that is killed before its change on disk with this number; its exit code."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    changes = itertools.count()

    def counted(event: str, arguments: tuple[Any, ...]) -> None:
        opened = event == "open" and str(directory) in str(arguments[0])
        if (opened or event in ("os.rename", "os.rmdir", "os.remove", "os.mkdir")) and next(changes) == step:
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        store = Checkpoints(directory, keep=1)
        sys.addaudithook(counted)
        for round in (1, 2):
            store.save(state(round, questions=2), lambda place: (place / "adapter.bin").touch())
        os._exit(0)
    finally:
        os._exit(1)


def test_a_kill_before_any_change_on_disk_leaves_a_complete_checkpoint(tmp_path: Path) -> None:
    for step in range(200):
        directory = tmp_path / str(step)
        Checkpoints(directory).save(state(1), write)
        code = save_until(step, directory)
        latest, _ = Checkpoints(directory).recover()
        assert latest is not None, step
        assert all(name.startswith("round-") and not name.endswith(".damaged") for name in os.listdir(directory)), step
        if code == 0:
            assert latest.round == 2
            break
        assert code == -signal.SIGKILL
    else:
        pytest.fail("never finished")
    assert step > 10
