"""Backups: all that can't be made again comes back, and nothing that another archive says is believed."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import stat
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import pytest

from sapo_edge.errors import StateError, StateLockedError
from sapo_edge.state import archive
from sapo_edge.state.archive import INDEX, restore_backup, write_backup
from sapo_edge.state.checkpoint import Checkpoint
from sapo_edge.state.lock import StateLock
from sapo_edge.state.paths import Paths
from sapo_edge.state.runs import begin_run, run_names, use_run
from sapo_edge.state.store import Store
from sapo_edge.tui.app import KEYS_FILE
from tests.allocated import memory_below
from tests.defences.defence import fails_without
from tests.fakes import round_event

Change = Callable[[dict[str, Any]], object]


def write_adapter(directory: Path) -> None:
    (directory / "adapter.safetensors").write_bytes(b"weights" * 1000)


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    """A node that has finished two rounds, with settings and things that no backup needs."""
    paths = Paths.default(tmp_path / "home")
    with Store(paths) as store:
        for round in (1, 2):
            store.journal.record(round_event(round))
            store.save_checkpoint(Checkpoint(round, "model", "manifest", store.seed), write_adapter)
    paths.config_file.write_text("own = 6\n")
    (paths.state / "manifests").mkdir()
    (paths.state / "manifests" / f"{'ab' * 32}.manifest").write_bytes(b"manifest")
    (paths.state / "consent.json").write_text("{}")
    (paths.state / "sapo-edge.log").write_text("private")
    (paths.checkpoints / "round-000001.damaged").mkdir()
    (paths.checkpoints / "round-000001.damaged" / "old").write_text("old")
    (paths.state / "ports.json").symlink_to("/etc/passwd")
    return paths


@pytest.fixture
def file(paths: Paths, tmp_path: Path) -> Path:
    """A backup of it."""
    write_backup(paths, tmp_path / "backup.zip")
    return tmp_path / "backup.zip"


@pytest.fixture
def target(tmp_path: Path) -> Paths:
    """Where nothing is yet."""
    return Paths.default(tmp_path / "x" / "other")


def files_of(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_all_that_cannot_be_made_again_comes_back(paths: Paths, target: Paths, tmp_path: Path) -> None:
    file = tmp_path / "backup.zip"
    with Store(paths):
        made = write_backup(paths, file)  # while a node holds the lock
    assert file.stat().st_mode & 0o077 == 0 and made.has_identity
    assert not any("log" in name or "damaged" in name or "peers" in name for name in made.files)
    assert restore_backup(target, file).files == made.files
    before, after = files_of(paths.state), files_of(target.state)
    starts = ("runs/first/checkpoints/round-000002/", "manifests", "identity", "consent")
    names = [name for name in before if name.startswith(starts)]
    assert len(names) == 5 and all(after[name] == before[name] for name in names)
    assert target.config_file.read_text() == "own = 6\n" and target.identity.stat().st_mode & 0o077 == 0
    with Store(target) as store:
        assert store.latest is not None and store.latest.round == 2 and store.journal.last_round() == 2
    assert not list(target.state.glob(".restoring-*")) and [path.name for path in tmp_path.glob(".*")] == []
    made = write_backup(paths, tmp_path / "another.zip", with_identity=False)
    assert not made.has_identity and b"identity" not in (tmp_path / "another.zip").read_bytes()


def test_every_run_comes_back_and_the_same_one_goes_on(paths: Paths, target: Paths, tmp_path: Path) -> None:
    begin_run(paths, "other")
    with Store(paths) as store:
        store.journal.record(round_event(1))
        store.save_checkpoint(Checkpoint(1, "model", "manifest", store.seed), write_adapter)
    write_backup(paths, tmp_path / "backup.zip")
    restore_backup(target, tmp_path / "backup.zip")
    assert run_names(target) == ["first", "other"] and target.run_name == "other"
    for name, round in (("other", 1), ("first", 2)):
        use_run(target, name)
        with Store(target) as store:
            assert store.latest is not None and store.latest.round == round and store.journal.last_round() == round


def test_settings_alone_come_back(tmp_path: Path, target: Paths) -> None:
    paths = Paths.default(tmp_path / "home")
    paths.create()
    paths.config_file.write_text("own = 6\n")
    (paths.config / KEYS_FILE).write_text("[keys]\n")
    write_backup(paths, tmp_path / "backup.zip")
    restore_backup(target, tmp_path / "backup.zip")
    assert (target.config / KEYS_FILE).read_text() == "[keys]\n"
    assert target.config_file.read_text() == "own = 6\n"


def test_it_overwrites_nothing_and_disturbs_no_node(file: Path, target: Paths, paths: Paths, tmp_path: Path) -> None:
    target.create()
    with StateLock(target.lock), pytest.raises(StateLockedError):
        restore_backup(target, file)
    with pytest.raises(StateError, match="exists; name another file"):
        write_backup(paths, file)
    for home, existing in (("one", "state/identity"), ("two", "config/config.toml"), ("three", "state/runs/x")):
        path = tmp_path / home / existing
        path.parent.mkdir(parents=True)
        path.write_text("mine")
        with pytest.raises(StateError, match="overwrites nothing"):
            restore_backup(Paths.default(tmp_path / home), file)
        assert list(files_of(tmp_path / home).values()) == [b"mine"]


def test_what_could_not_come_back_is_not_written(paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert archive.MAX_BYTES <= cast(Any, zipfile).ZIP64_LIMIT, "beyond it, the end of the file is of another form"
    for name, limit in (("MAX_BYTES", 1000), ("MAX_FILES", 5)):
        with monkeypatch.context() as patch:
            patch.setattr(archive, name, limit)
            with pytest.raises(StateError, match=f"{limit} files|more than 2 GiB"):
                write_backup(paths, tmp_path / "backup.zip")
        assert not list(tmp_path.glob("*backup.zip*"))


def test_a_file_that_may_not_be_read_is_named(paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed, opened = paths.identity, Path.open

    def refused(path: Path, *arguments: Any, **options: Any) -> Any:
        if path == closed:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(StateError, match=rf"can't read {closed}"):
        write_backup(paths, tmp_path / "backup.zip")
    assert not list(tmp_path.glob("*.zip"))


def test_a_half_written_file_and_a_checkpoint_that_vanishes_do_not_spoil_the_backup(
    paths: Paths, target: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = archive._add

    def vanish(file: zipfile.ZipFile, name: str, path: Path) -> tuple[int, str]:
        if name.endswith("round-000001/checkpoint.json"):
            raise FileNotFoundError(path)
        return add(file, name, path)

    monkeypatch.setattr(archive, "_add", vanish)
    for name in (".adapter.tmp", "my notes"):
        (paths.checkpoints / "round-000002" / name).write_bytes(b"half")
    write_backup(paths, tmp_path / "backup.zip")
    names = " ".join(restore_backup(target, tmp_path / "backup.zip").files)
    assert "round-000002" in names and "round-000001" not in names and "adapter.tmp" not in names


@pytest.mark.parametrize("vanishes", [False, True])
def test_a_checkpoint_that_is_replaced_between_two_of_its_files_comes_back_as_one_of_both(
    paths: Paths, target: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vanishes: bool
) -> None:
    add, replaced = archive._add, [False]

    def write_better(directory: Path) -> None:
        (directory / "adapter.safetensors").write_bytes(b"better!" * 1000)

    with Store(paths) as running:

        def replace_before(file: zipfile.ZipFile, name: str, path: Path) -> tuple[int, str]:
            if name.endswith("round-000002/checkpoint.json") and not replaced[0]:
                replaced[0] = True
                running.save_checkpoint(Checkpoint(2, "model", "manifest", running.seed), write_better)
                if vanishes:
                    raise FileNotFoundError(path)
            return add(file, name, path)

        monkeypatch.setattr(archive, "_add", replace_before)
        write_backup(paths, tmp_path / "backup.zip")
    restore_backup(target, tmp_path / "backup.zip")
    with Store(target) as store:
        assert store.latest is not None and store.latest.round == 2 and not store.notices
        assert (store.latest.directory / "adapter.safetensors").read_bytes() == b"better!" * 1000


def test_a_full_disk_of_the_backup_is_not_reported_as_one_of_the_journal(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect

    def small(place: str | Path, *arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(place, *arguments, **options)
        if isinstance(place, Path):  # the copy
            connection.execute("PRAGMA max_page_count = 1")
        return connection

    monkeypatch.setattr(sqlite3, "connect", small)
    with pytest.raises(StateError, match=r"can't write the backup .*No space.*; free some space.*name another file"):
        write_backup(paths, tmp_path / "backup.zip")
    assert not list(tmp_path.glob("*backup.zip*")) and not list(tmp_path.glob(".journal-*"))


def rewritten(
    file: Path, change: Change = lambda record: None, extra: Mapping[str, bytes] = MappingProxyType({}), *,
    method: int = zipfile.ZIP_STORED, mode: int = 0o100600,
) -> None:  # fmt: skip
    """Write an archive again with another index, further files, another compression, or files of another kind."""
    with zipfile.ZipFile(file) as old:
        content = {name: old.read(name) for name in old.namelist()}
    record = json.loads(content[INDEX])
    change(record)
    with zipfile.ZipFile(file, "w", method) as new:
        for name, data in {**content, **extra, INDEX: json.dumps(record).encode()}.items():
            info = zipfile.ZipInfo(name)
            info.external_attr, info.compress_type = mode << 16, method
            new.writestr(info, data)


def outside(name: str) -> Change:
    return lambda record: record["files"].update({name: [1, "00"]})


@fails_without("state/archive.py", "if not all(map(_is_known, files)):")
@fails_without("state/archive.py", " and all(_PART.fullmatch(part) for part in parts)")
@fails_without(
    "state/archive.py",
    'check_text("program", record.get("program")), check_number("time", record.get("time"))',
    'record.get("program"), record.get("time")',
)
@fails_without("state/archive.py", "if (size, digest.hexdigest()) != expected:")
@pytest.mark.parametrize("change", [
    *map(outside, ["../x", "/etc/x", "state/../../x", "state/identity/../../x", "state\\identity", "C:/x"]),
    *map(outside, ["state/runs/x", "state/runs/x/identity", "state/runs/../journal/journal.sqlite"]),
    *map(outside, ["state/journal/x", "state/runs/.x/pool", "state/runs", "state/runs/x/journal/other"]),
    *map(outside, ["state", "state/x", "state/lock", "state/runs/x/checkpoints/.x", "config/other.toml", ""]),
    *map(outside, ["state/manifests/../../../../x", "state/runs/x/checkpoints/" + "a/" * 9 + "b"]),
    lambda record: record.update(v="1"),
    lambda record: record.update(program=7),
    lambda record: record.update(time="1"),
    lambda record: record.update(files={}),
    lambda record: record.update(files=[]),
    lambda record: record["files"]["state/identity"].__setitem__(0, -1),
    lambda record: record["files"]["state/identity"].__setitem__(0, 64),
    lambda record: record["files"]["state/identity"].__setitem__(1, "00" * 32),
    lambda record: record["files"]["state/identity"].append(1),
    lambda record: record["files"].update({"state/manifests/missing": [1, "00"]}),
    lambda record: record["files"]["config/config.toml"].__setitem__(0, 2**40),
    lambda record: record["files"]["config/config.toml"].__setitem__(0, 10**400),
])  # fmt: skip
def test_what_is_not_a_backup_changes_nothing(file: Path, target: Paths, tmp_path: Path, change: Change) -> None:
    rewritten(file, change, {"../x": b"x", "state/../../x": b"x"})
    with pytest.raises(StateError, match=r"damaged|free some space"):
        restore_backup(target, file)
    assert set(files_of(tmp_path / "x")) <= {"other/state/lock"}


def test_only_what_the_index_names_is_read_as_files_and_what_a_killed_restore_left_is_removed(
    file: Path, target: Paths, tmp_path: Path
) -> None:
    left = target.state / ".restoring-left" / "state"
    left.mkdir(parents=True)
    (left / "identity").write_bytes(b"secret")
    rewritten(file, extra={"../../evil": b"x", "state/evil": b"x"}, mode=stat.S_IFLNK | 0o777)
    restore_backup(target, file)
    assert not [name for name in files_of(tmp_path) if "evil" in name] and not left.parent.exists()
    assert not target.identity.is_symlink() and target.identity.stat().st_mode & 0o777 == 0o600


def test_a_newer_backup_and_a_method_that_takes_much_memory_are_refused(file: Path, target: Paths) -> None:
    rewritten(file, lambda record: record.update(v=2))
    with pytest.raises(StateError, match="newer sapo-edge"):
        restore_backup(target, file)
    rewritten(file, method=zipfile.ZIP_LZMA)
    with pytest.raises(StateError, match="compressed in another way"):
        restore_backup(target, file)


def bytes_changed(data: bytes) -> list[bytes]:
    end = data.rindex(b"PK\x05\x06")
    *_, entries, length, place, _ = struct.unpack("<4s4H2LH", data[end:])
    # The extension of the format, whose lengths count instead.
    long = data[:end] + struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, entries, entries, length, place)
    long += struct.pack("<4sLQL", b"PK\x06\x07", 0, end, 1) + data[end:]
    content = 30 + sum(struct.unpack("<2H", data[26:30]))  # of the first file

    def change(at: int, value: bytes) -> bytes:
        return data[:at] + value + data[at + len(value) :]

    cut = [b"", b"x" * 100, data[:-1], data[: len(data) // 2], data + b"x"]
    # Too many entries, and too long a directory.
    counted = [change(end + 10, b"\xff\xff"), change(end + 12, b"\xff" * 4)]
    # What the library has other errors for: a newer version, encryption, content that is cut or no deflated one.
    others = ((place + 6, b"\xff"), (place + 8, b"\x01"), (place + 20, b"\x01\0\0\0"), (content, b"\xff"))
    return [*cut, long, *counted, *(change(*other) for other in others)]


@fails_without("state/archive.py", ' or data.startswith(b"PK\\x06\\x07")')
@fails_without("state/archive.py", "zlib.error, EOFError, NotImplementedError, RuntimeError, ")
def test_other_bytes_are_no_backup(file: Path, target: Paths) -> None:
    for changed in bytes_changed(file.read_bytes()):
        file.write_bytes(changed)
        with pytest.raises(StateError, match="no backup, or damaged"):
            restore_backup(target, file)


@fails_without("state/archive.py", "if len(data) > _MAX_INDEX_BYTES:")
@fails_without("state/archive.py", " or length > _MAX_DIRECTORY_BYTES")
@fails_without("state/archive.py", "if name in _SETTINGS and expected[0] > MAX_SETTINGS_BYTES:")
@pytest.mark.parametrize("bound", ["_MAX_INDEX_BYTES", "_MAX_DIRECTORY_BYTES", "MAX_SETTINGS_BYTES"])
def test_what_is_read_into_memory_is_bounded(
    file: Path, target: Paths, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, bound, 5)
    with pytest.raises(StateError, match=r"too large|too many"):
        restore_backup(target, file)


@fails_without("state/archive.py", "source.read(_MAX_INDEX_BYTES + 1)", "source.read()")
@fails_without("state/archive.py", "min(_CHUNK, expected[0] + 1 - size)", "_CHUNK")
def test_a_file_that_inflates_to_more_than_its_bound_is_not_inflated(
    file: Path, target: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewritten(file, lambda record: record["files"].update({"state/manifests/x": [9, "00"]}))
    with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED) as bomb:
        bomb.writestr("state/manifests/x", bytes(30_000_000))
    written: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda number: written.append(os.fstat(number).st_size))
    with pytest.raises(StateError, match="has changed"):
        restore_backup(target, file)
    assert written[-1] == 10

    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as bomb:
        bomb.writestr(INDEX, b" " * 30_000_000)
    with memory_below(20_000_000), pytest.raises(StateError, match="too large"):
        restore_backup(target, file)


@fails_without("state/archive.py", "except RecursionError as error:", "except ZeroDivisionError as error:")
def test_an_index_that_is_nested_too_deep_is_damage(tmp_path: Path, target: Paths) -> None:
    with zipfile.ZipFile(tmp_path / "backup.zip", "w") as file:
        file.writestr(INDEX, "[" * 100_000)
    with pytest.raises(StateError, match="nested too deep"):
        restore_backup(target, tmp_path / "backup.zip")
