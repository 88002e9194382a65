"""Reads the node's log from its files, whether or not a node runs.

The log is one file and the rotated ones beside it (`sapo_edge/state/logs.py`), about 3 MB in all. The reader holds
their newest records in memory and reads only what was added. A file may be rotated, cut off or removed at any time.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar

from sapo_edge.errors import StateError
from sapo_edge.state.logs import MAX_BYTES, OLDER_FILES

MAX_FILE_BYTES = 2 * MAX_BYTES
"""Bytes that are read of a file, from its end."""
MAX_RECORDS = 20_000
"""Records that are kept of a file."""
HEAD_BYTES = 256
"""First bytes of a file, compared to recognise it: a new file often gets the inode of a removed one."""

Place = tuple[int, int]
"""Where a record begins: the number of its file and the offset in bytes. A later record has a greater one."""
Record = TypeVar("Record")
Parse = Callable[[Place, bytes], Record]
"""Makes a record of a line, without its end; takes any bytes."""


@dataclass(slots=True)
class _LogFile(Generic[Record]):
    """What was read of one file.

    Attributes:
        number: greater for a newer file; a file keeps it when it is renamed.
        size: offset up to which the file was read: the end of a line, but at first.
    """

    number: int
    inode: int
    head: bytes = b""
    size: int = 0
    records: list[Record] = field(default_factory=list)

    def extend(self, stream: BinaryIO, parse: Parse[Record]) -> None:
        """Read the lines that were added; one without an end may still grow."""
        stream.seek(self.size)
        *lines, _ = stream.read(MAX_FILE_BYTES).split(b"\n")
        # It was opened in the middle of the first one.
        is_cut = bool(self.size) and not self.records
        for line in lines:
            if line.strip() and not is_cut:
                self.records.append(parse((self.number, self.size), line))
            self.size += len(line) + 1
            is_cut = False
        del self.records[:-MAX_RECORDS]


class LogReader(Generic[Record]):
    """Reads one log, by the path of its newest file; `records`, oldest first, are replaced, not changed, by `read`."""

    def __init__(self, path: Path, parse: Parse[Record]) -> None:
        self.path = path
        self.records: list[Record] = []
        self.exists = False
        self._parse = parse
        self._files: list[_LogFile[Record]] = []
        self._stamp: list[tuple[int, int]] | None = None
        self._reads = 0

    def read(self) -> bool:
        """Read what is new, and return whether anything changed. It blocks; call it from one thread at a time.

        A StateError if the log can't be read; the next call starts from the beginning.
        """
        try:
            self._files = self._read_files()
        except OSError as error:
            self._files, self.records, self.exists, self._stamp = [], [], False, None
            raise StateError(
                f"can't read {error.filename or self.path}: {error.strerror or error}",
                "check that it is a file that you may read",
            ) from error
        stamp = [(file.number, file.size) for file in self._files]
        changed = stamp != self._stamp
        if changed:
            self.records = [record for file in self._files for record in file.records]
            self.exists, self._stamp = bool(self._files), stamp
        return changed

    def _read_files(self) -> list[_LogFile[Record]]:
        # Newest first: a file that is renamed meanwhile is met twice rather than missed.
        paths = [self.path, *(self.path.with_name(f"{self.path.name}.{n}") for n in range(1, OLDER_FILES + 1))]
        files: list[_LogFile[Record]] = []
        self._reads += 1
        for age, path in enumerate(paths):
            try:
                with path.open("rb") as stream:
                    file = self._read_file(stream, number=len(paths) * self._reads - age)
            except FileNotFoundError:
                continue
            if all(file.inode != newer.inode for newer in files):
                files.append(file)
        return files[::-1]

    def _read_file(self, stream: BinaryIO, number: int) -> _LogFile[Record]:
        status, head = os.fstat(stream.fileno()), stream.read(HEAD_BYTES)
        for file in self._files:
            same = file.inode == status.st_ino and head.startswith(file.head)
            if same and file.size <= status.st_size <= file.size + MAX_FILE_BYTES:
                break
        else:
            file = _LogFile(number, status.st_ino, size=max(0, status.st_size - MAX_FILE_BYTES))
        file.head = head
        if status.st_size > file.size:
            file.extend(stream, self._parse)
        return file
