"""A backup in one ZIP file: what the state directory can't lose, and the settings. It may be written while a node runs.

An archive is read as if a stranger had made it: only names that a backup has, sizes and digests from its index, and
plain files that are written anew, so that no link and no path leads outside.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import sqlite3
import struct
import tempfile
import time
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import sapo_edge
from sapo_edge.errors import StateError
from sapo_edge.fields import check_integer, check_list, check_map, check_number, check_text
from sapo_edge.state.checkpoint import RECORD, read_record
from sapo_edge.state.durable import (
    check_space,
    is_disk_full,
    make_private_directory,
    reported,
    state_error,
    sync_directory,
    write_atomically,
)
from sapo_edge.state.journal import reading
from sapo_edge.state.lock import StateLock
from sapo_edge.state.paths import IDENTITIES, Paths
from sapo_edge.state.runs import run_names

FORMAT_VERSION = 1
"""Version of the archive's index."""
INDEX = "backup.json"
"""Name of the index, the last file of an archive: bytes and SHA-256 of each file."""
MAX_FILES = 20_000
"""Most files of an archive."""
MAX_BYTES = 2**31 - 1
"""Largest archive: in longer ones `zipfile` writes an extension of the format, whose lengths nothing bounds here."""
MAX_SETTINGS_BYTES = 1024 * 1024
"""Largest file of the settings that is restored."""

_MAX_INDEX_BYTES = 8 * 1024 * 1024
_MAX_FILE_BYTES = 2**40
_MAX_DIRECTORY_BYTES = 16 * 1024 * 1024
_CHUNK = 1024 * 1024
_RESTORING = ".restoring-"
_SETTINGS = ("config/config.toml", "config/keys.toml")
_JOURNAL = ("journal", "journal.sqlite")
# Of each run, beside its journal.
_OF_RUN = ("checkpoints", "origin.json", "pool", "rollback.json")
_KEPT = ("consent.json", "current-run", "manifests", "peers", "ports.json", "swarms.json")
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
_MAX_PARTS = 8
# The end of a ZIP file without a comment: signature, two numbers of disks, two of entries, bytes and place of the list.
_END = struct.Struct("<4s4H2LH")
_LONG_END_BYTES = 20
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, KeyError, ValueError, TypeError)


@dataclass(frozen=True, slots=True)
class Backup:
    """What an archive holds: the version of the program that wrote it, Unix seconds, and name -> (bytes, SHA-256)."""

    program: str
    time: float
    files: Mapping[str, tuple[int, str]]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(size for size, _ in self.files.values())

    @property
    def has_identity(self) -> bool:
        """Whether it holds a secret key."""
        return any(f"state/{name}" in self.files for name in IDENTITIES)


def write_backup(paths: Paths, file: Path, *, with_identity: bool = True) -> Backup:
    """Write a backup, of a running node, too, into a new file with mode 0600; with the secret keys or without them."""
    with reported("write the backup", file, "name another file"):
        if file.exists():
            raise StateError(f"{file} exists", "name another file: a backup is never overwritten")
        descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
        try:
            with os.fdopen(descriptor, "wb") as stream:
                backup = _write(paths, stream, Path(name).parent, with_identity=with_identity)
                stream.flush()
                os.fsync(stream.fileno())
                if stream.tell() > MAX_BYTES or len(backup.files) > MAX_FILES:
                    raise StateError(
                        f"the backup would have more than 2 GiB, or more than {MAX_FILES} files",
                        "remove checkpoints (`sapo checkpoints remove`) or a run (`sapo runs remove`)",
                    )
            os.rename(name, file)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
        sync_directory(file.parent)
    return backup


def restore_backup(paths: Paths, file: Path) -> Backup:
    """Put the files of a backup where they belong. Nothing is overwritten, and nothing changes if one is damaged.

    Args:
        paths: of a node that does not run; what the backup holds must not exist there.
    """
    with _opened(file) as archive:
        backup = _read_index(archive, file)
        _refuse_existing(paths, backup)
        paths.create()
        with StateLock(paths.lock):
            # Again, as nothing else changes from here on.
            _refuse_existing(paths, backup)
            check_space(paths.state, backup.size)
            with reported("restore", paths.state):
                _restore(archive, backup, paths)
    return backup


def _write(paths: Paths, stream: IO[bytes], directory: Path, *, with_identity: bool) -> Backup:
    files: dict[str, tuple[int, str]] = {}
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=1, strict_timestamps=False) as archive:
        # Before the journal: a node journals a round before it saves it, so no checkpoint is ahead of the journal.
        for group in _groups(paths, with_identity=with_identity):
            files |= _add_group(archive, group)
        for run in map(paths.run_of, run_names(paths)):
            if run.journal.exists():
                with tempfile.TemporaryDirectory(dir=directory, prefix=".journal-") as temporary:
                    copy = Path(temporary) / "journal.sqlite"
                    with reading(run.journal) as source, closing(sqlite3.connect(copy)) as target:
                        _copy_journal(source, target, directory)
                    name = _name_of(paths, run.journal)
                    files[name] = _add(archive, name, copy)
        backup = Backup(sapo_edge.__version__, time.time(), files)
        record = {"v": FORMAT_VERSION, "program": backup.program, "time": backup.time, "files": files}
        archive.writestr(INDEX, json.dumps(record))
    return backup


def _groups(paths: Paths, *, with_identity: bool) -> Iterator[dict[str, Path]]:
    """Files by their names in the archive; those that belong together in one group."""
    yield {name: path for name in _SETTINGS if (path := _target(paths, name)).exists()}
    places = [paths.state / name for name in (*(IDENTITIES if with_identity else ()), *_KEPT)]
    places += [paths.run_of(run).directory / name for run in run_names(paths) for name in _OF_RUN]
    for place in places:
        for root in sorted(place.iterdir()) if place.is_dir() else [place]:
            # What was set aside is not used any more.
            if place.name != "checkpoints" or re.fullmatch(r"round-\d+", root.name):
                found = sorted(root.rglob("*")) if root.is_dir() else [root]
                names = {_name_of(paths, path): path for path in found if path.is_file() and not path.is_symlink()}
                # What is hidden is half-written; with any other name, nothing of the backup could be restored.
                yield {name: path for name, path in names.items() if _is_known(name)}


def _name_of(paths: Paths, path: Path) -> str:
    """The name in the archive of a file of the state directory."""
    return f"state/{path.relative_to(paths.state).as_posix()}"


def _copy_journal(source: sqlite3.Connection, target: sqlite3.Connection, directory: Path) -> None:
    try:
        source.backup(target)
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorname", "") or ""
        # The disk of the backup, not that of the journal.
        if code.startswith("SQLITE_FULL") or is_disk_full(error, directory):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
        raise


def _add_group(archive: zipfile.ZipFile, group: Mapping[str, Path]) -> dict[str, tuple[int, str]]:
    """Add files that belong together; none if a running node removes one meanwhile, as it does old checkpoints."""
    for _ in range(2):
        added: dict[str, tuple[int, str]] = {}
        # Of two files with one name in the archive, the last one counts.
        with contextlib.suppress(FileNotFoundError), warnings.catch_warnings(action="ignore"):
            added = {name: _add(archive, name, path) for name, path in group.items()}
            if _is_whole(group, added):
                break
    return added


def _is_whole(group: Mapping[str, Path], added: Mapping[str, tuple[int, str]]) -> bool:
    """Whether a checkpoint's files are those of its record: a head start replaces it, perhaps between two of them."""
    record = next((name for name in group if name.endswith(f"/{RECORD}")), None)
    if record is None:
        return True
    try:
        files = read_record(group[record].parent).files
    except StateError:
        return False
    return all(added.get(f"{record.removesuffix(RECORD)}{name}") == entry for name, entry in files.items())


def _add(archive: zipfile.ZipFile, name: str, path: Path) -> tuple[int, str]:
    """Add a file; returns its bytes and SHA-256."""
    info = zipfile.ZipInfo.from_file(path, name, strict_timestamps=False)
    info.compress_type = zipfile.ZIP_DEFLATED
    digest, size = hashlib.sha256(), 0
    try:
        source = path.open("rb")
    except PermissionError as error:
        # Otherwise the file of the backup would be blamed.
        raise state_error(error, "read", path) from error
    with source, archive.open(info, "w") as target:
        while chunk := source.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
            target.write(chunk)
    return size, digest.hexdigest()


@contextmanager
def _opened(file: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with reported("read the backup", file, "name another file"), file.open("rb") as stream:
            _check_end(stream)
            with zipfile.ZipFile(stream) as archive:
                yield archive
    except _DAMAGE as error:
        raise StateError(f"{file} is no backup, or damaged ({error})", "use another backup") from error


def _check_end(stream: IO[bytes]) -> None:
    """Check the end of a ZIP file, which says how much the library reads into memory."""
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(0, size - _END.size - _LONG_END_BYTES))
    data = stream.read()
    if len(data) < _END.size:
        raise ValueError("it is too short")
    signature, *_, entries, length, place, comment = _END.unpack(data[-_END.size :])
    if signature != b"PK\x05\x06" or comment or data.startswith(b"PK\x06\x07") or place + length > size:
        raise ValueError("it has another end")
    if entries > MAX_FILES + 1 or length > _MAX_DIRECTORY_BYTES:
        raise ValueError("it has too many files")


def _read_index(archive: zipfile.ZipFile, file: Path) -> Backup:
    with _member(archive, INDEX) as source:
        data = source.read(_MAX_INDEX_BYTES + 1)
    if len(data) > _MAX_INDEX_BYTES:
        raise ValueError(f"{INDEX} is too large")
    try:
        record = check_map("the index", json.loads(data))
        version = check_integer("its version", record.get("v"))
        if version > FORMAT_VERSION:
            raise StateError(f"{file} was written by a newer sapo-edge", "update sapo-edge")
        if version != FORMAT_VERSION:
            raise ValueError("another version")
        files = {
            name: (check_integer("bytes", size, 0, _MAX_FILE_BYTES), check_text("digest", digest))
            for name, (size, digest) in (
                (name, check_list("a file", entry)) for name, entry in check_map("files", record.get("files")).items()
            )
        }
        program, moment = check_text("program", record.get("program")), check_number("time", record.get("time"))
    except RecursionError as error:
        raise ValueError("its index is nested too deep") from error
    if not 0 < len(files) <= MAX_FILES:
        raise ValueError("it has no files, or too many")
    if not all(map(_is_known, files)):
        raise ValueError("it has a file that no backup has")
    return Backup(program, moment, files)


def _is_known(name: str) -> bool:
    """Whether a backup may hold a file of this name; not one whose path leads outside."""
    parts = tuple(name.split("/"))
    if name in _SETTINGS:
        return True
    of_run = parts[1:2] == ("runs",) and (parts[3:] == _JOURNAL or parts[3:4] in {(kept,) for kept in _OF_RUN})
    known = parts[0] == "state" and (of_run or parts[1:2] in {(kept,) for kept in (*IDENTITIES, *_KEPT)})
    return known and len(parts) <= _MAX_PARTS and all(_PART.fullmatch(part) for part in parts)


def _refuse_existing(paths: Paths, backup: Backup) -> None:
    targets = sorted({_target(paths, name) for name in backup.files})
    existing = next((target for target in targets if target.exists() or target.is_symlink()), None)
    if existing is not None:
        raise StateError(
            f"{existing} exists: a backup overwrites nothing",
            "name an empty directory with --home, or remove what is here with `sapo uninstall --identity`",
        )


def _target(paths: Paths, name: str) -> Path:
    """What must not exist for a file to be restored: itself, or the directory of the state that it is in."""
    return (paths.config if name in _SETTINGS else paths.state) / name.split("/")[1]


def _restore(archive: zipfile.ZipFile, backup: Backup, paths: Paths) -> None:
    # A killed restore left copies there, the secret key among them.
    for leftover in paths.state.glob(f"{_RESTORING}*"):
        shutil.rmtree(leftover)
    with tempfile.TemporaryDirectory(dir=paths.state, prefix=_RESTORING) as name:
        temporary = Path(name)
        for member in backup.files:
            _extract(archive, member, backup.files[member], temporary / member)
        for settings in filter(backup.files.__contains__, _SETTINGS):
            make_private_directory(paths.config)
            write_atomically(_target(paths, settings), (temporary / settings).read_bytes(), mode=0o644)
        # None where the settings alone are the backup. The identity comes last: with it the directory is a node's.
        for entry in sorted(temporary.glob("state/*"), key=lambda path: path.name in IDENTITIES):
            entry.rename(paths.state / entry.name)
        sync_directory(paths.state)


def _extract(archive: zipfile.ZipFile, name: str, expected: tuple[int, str], target: Path) -> None:
    """Write a file of the archive anew, with mode 0600; a ValueError if it is not as the index says."""
    if name in _SETTINGS and expected[0] > MAX_SETTINGS_BYTES:
        raise ValueError("its settings are too large")
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    digest, size = hashlib.sha256(), 0
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as out, _member(archive, name) as source:
        while size <= expected[0] and (chunk := source.read(min(_CHUNK, expected[0] + 1 - size))):
            digest.update(chunk)
            size += len(chunk)
            out.write(chunk)
        out.flush()
        os.fsync(out.fileno())
    if (size, digest.hexdigest()) != expected:
        raise ValueError(f"{name} has changed")


def _member(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    info = archive.getinfo(name)
    # Other methods take memory that the archive chooses.
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{name} is compressed in another way")
    return archive.open(info)
