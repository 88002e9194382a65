"""Reads the node's log from its files, whether or not a node runs.

The log is one file and the rotated ones beside it (`sapo_edge/state/logs.py`), about 3 MB in all. The reader holds
their newest records in memory and reads only what was added. A file may be rotated, cut off or removed at any time.
"""

from __future__ import annotations

import itertools
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from sapo_edge.errors import StateError
from sapo_edge.state.logs import MAX_BYTES, OLDER_FILES
from sapo_edge.tui.node.records import Record, parse_record

MAX_FILE_BYTES = 2 * MAX_BYTES
"""Bytes that are read of a file, from its end."""
MAX_RECORDS = 20_000
"""Records that are kept of a file."""
HEAD_BYTES = 256
"""First bytes of a file, compared to recognise it: a new file often gets the inode of a removed one."""

# JSON, or text of earlier versions, whose records may have several lines.
_BEGIN = re.compile(rb'\n(?=\{"time":|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ [A-Z]+ )')


@dataclass(slots=True)
class _LogFile:
    """What was read of one file.

    Attributes:
        number: greater for a newer file; a file keeps it when it is renamed.
        start: offset of the last record, which may still grow.
        size: offset up to which the file was read.
    """

    number: int
    inode: int
    head: bytes = b""
    start: int = 0
    size: int = 0
    records: list[Record] = field(default_factory=list)

    def extend(self, stream: BinaryIO) -> None:
        """Read what was added, and the last record again."""
        stream.seek(self.start)
        data = stream.read(MAX_FILE_BYTES)
        begins = [0, *(match.end() for match in _BEGIN.finditer(data))]
        if self.start and not self.records and len(begins) > 1:
            # It was opened in the middle of a record.
            del begins[0]
        self.records[-1:] = [
            parse_record((self.number, self.start + begin), data[begin:end])
            for begin, end in itertools.pairwise([*begins[-MAX_RECORDS:], len(data)])
        ]
        del self.records[:-MAX_RECORDS]
        self.size = self.start + len(data)
        self.start += begins[-1]


class LogReader:
    """Reads one log.

    Args:
        path: of the newest file.

    Attributes:
        records: oldest first; replaced, not changed, by `read`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records: list[Record] = []
        self.exists = False
        self._files: list[_LogFile] = []
        self._stamp: list[tuple[int, int]] | None = None
        self._reads = 0

    def read(self) -> bool:
        """Read what is new. It blocks; call it from one thread at a time.

        Returns:
            Whether anything changed.

        Raises:
            StateError: if the log can't be read. The next call starts from the beginning.
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

    def _read_files(self) -> list[_LogFile]:
        # Newest first: a file that is renamed meanwhile is met twice rather than missed.
        paths = [self.path, *(self.path.with_name(f"{self.path.name}.{n}") for n in range(1, OLDER_FILES + 1))]
        files: list[_LogFile] = []
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

    def _read_file(self, stream: BinaryIO, number: int) -> _LogFile:
        status, head = os.fstat(stream.fileno()), stream.read(HEAD_BYTES)
        for file in self._files:
            same = file.inode == status.st_ino and head.startswith(file.head)
            if same and file.size <= status.st_size <= file.start + MAX_FILE_BYTES:
                break
        else:
            file = _LogFile(number, status.st_ino, start=max(0, status.st_size - MAX_FILE_BYTES))
        file.head = head
        if status.st_size > file.size:
            file.extend(stream)
        return file
