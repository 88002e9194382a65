"""Writing files so that a crash, a power cut or a full disk leaves either the old content or the new one.

The steps are always the same: write beside the target, fsync, rename, fsync the directory.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain, count
from pathlib import Path

from sapo_edge.backends.machine.disk import nearest_existing
from sapo_edge.errors import StateError

SPACE_MARGIN = 16 * 1024 * 1024
"""Bytes that a checked write leaves free for journal and log."""

_FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}
_ELSEWHERE = "use --home to keep state elsewhere"


def is_disk_full(error: BaseException, directory: Path) -> bool:
    """Whether `error` came from a full disk or an exhausted quota.

    Libraries with native writers raise their own errors without an errno, so the text and the free space count too.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _FULL
    return "no space left" in str(error).lower() or free_bytes(directory) < 1024 * 1024


def free_bytes(directory: Path) -> int:
    """Bytes that this user may still write on the disk of `directory`."""
    return shutil.disk_usage(directory).free


def bytes_in(place: Path) -> int:
    """Bytes of a file, or of all files below a directory, links as links."""
    total = 0
    inside = [os.path.join(directory, name) for directory, _, names in os.walk(place) for name in names]
    for path in inside if place.is_dir() else [place]:
        # A running node replaces files meanwhile.
        with suppress(FileNotFoundError):
            total += os.lstat(path).st_size
    return total


def is_read_only(path: Path) -> bool:
    """Whether `path`, or the nearest directory above it that exists, is on a file system that is read-only now."""
    with suppress(OSError):
        return bool(os.statvfs(nearest_existing(path)).f_flag & os.ST_RDONLY)
    return False


def check_space(directory: Path, needed: int) -> None:
    """Check that `needed` bytes fit on the disk of `directory`, with a margin."""
    free = free_bytes(directory)
    if free < needed + SPACE_MARGIN:
        raise StateError(
            f"{directory} has {free / 1e6:.0f} MB free and {(needed + SPACE_MARGIN) / 1e6:.0f} MB are needed",
            f"free some space on that disk, or {_ELSEWHERE}",
        )


def state_error(error: OSError, action: str, path: Path, elsewhere: str = _ELSEWHERE) -> StateError:
    """The `StateError`, with a remedy, for an `OSError` about `path`.

    Args:
        action: the verb that failed: "write", "read".
        elsewhere: how the user chooses another place for it.
    """
    message = f"can't {action} {path}: {error.strerror or error}"
    if error.errno in _FULL:
        remedy = f"free some space on that disk, or {elsewhere}"
    elif error.errno == errno.EROFS or is_read_only(path):
        remedy = f"that file system is read-only: {elsewhere}"
    elif error.errno in {errno.EACCES, errno.EPERM}:
        remedy = f"change the owner or the permissions of that path, or {elsewhere}"
    elif error.errno in {errno.ENOTDIR, errno.EEXIST}:
        remedy = f"a file is where a directory belongs: move it away, or {elsewhere}"
    else:
        remedy = f"check that path, or {elsewhere}"
    return StateError(message, remedy)


@contextmanager
def reported(action: str, path: Path, elsewhere: str = _ELSEWHERE) -> Iterator[None]:
    """Turn an `OSError` of the block into a `StateError` about `path`; see `state_error`."""
    try:
        yield
    except OSError as error:
        raise state_error(error, action, path, elsewhere) from error


def make_private_directory(path: Path) -> None:
    """Create a directory with mode 0700; an existing one keeps its mode."""
    with reported("create", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise state_error(PermissionError(errno.EACCES, os.strerror(errno.EACCES)), "write to", path)


def check_creatable(path: Path) -> None:
    """Check that `make_private_directory` can create a directory, or use it as it is; creates nothing."""
    nearest = nearest_existing(path)
    if not nearest.is_dir():
        raise state_error(NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)), "create", path)
    if not os.access(nearest, os.R_OK | os.W_OK | os.X_OK if nearest == path else os.W_OK | os.X_OK):
        raise state_error(PermissionError(errno.EACCES, os.strerror(errno.EACCES)), "write to", nearest)


def sync_directory(path: Path) -> None:
    """Flush a directory's entries to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def unused_path(path: Path) -> Path:
    """`path`, or the first of `path-2`, `path-3`, ... that does not exist."""
    others = (path.with_name(f"{path.name}-{number}") for number in count(2))
    return next(candidate for candidate in chain([path], others) if not candidate.exists())


def read_bounded(path: Path, limit: int) -> bytes:
    """The content of a file; a ValueError, and no more of it is read, if it has more than `limit` bytes."""
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"it has more than {limit} bytes")
    return data


def write_atomically(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace the content of `path`, in a directory that exists, completely or not at all; else an OSError tells why.

    Follows a symbolic link, so that a linked configuration file stays linked. `mode` is that of a new file; an existing
    one keeps its own.
    """
    target = path.resolve()
    if target.exists():
        mode = target.stat().st_mode & 0o777
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, mode)
        os.replace(name, target)
    except BaseException:
        # The error being raised matters more than a leftover hidden file.
        with suppress(OSError):
            os.unlink(name)
        raise
    sync_directory(target.parent)


def replace_file(path: Path, data: bytes, elsewhere: str = _ELSEWHERE) -> None:
    """`write_atomically`, but a StateError with a remedy tells why not; see `state_error`."""
    with reported("write", path, elsewhere):
        write_atomically(path, data)
