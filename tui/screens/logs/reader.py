"""The node's log, read from its files in pages: the end first, what is older on demand.

The node need not run. Its log is a file and two older ones beside it (`sapo_edge/state/logs.py`), which change places
when the newest is full, and which somebody may remove or cut off at any time. Nothing is kept open between two pages,
and a page never takes more memory than some blocks of `BLOCK_BYTES`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from sapo_edge.errors import StateError
from sapo_edge.state.logs import OLDER_FILES

BLOCK_BYTES = 64 * 1024
"""Read at once."""
MAX_RECORD_BYTES = 256 * 1024
"""A record that is longer is taken apart."""
LOOK_BYTES = 1024 * 1024
"""A page ends after so many bytes even if little of them was wanted, so that whoever waits can say so or give up."""
HEAD_BYTES = 256
"""First bytes of a file, by which it is known again after it was renamed."""

_BEGIN = re.compile(rb"\n(?=\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ [A-Z]+ )")


class Place(NamedTuple):
    """Where a record begins; a later one compares greater.

    Attributes:
        file: a number that the file keeps when it is renamed.
        offset: in bytes.
    """

    file: int
    offset: int


class Line(NamedTuple):
    """One record as it stands in the file: a line, and those after it that begin no record of their own.

    Attributes:
        place: where it begins.
        end: offset behind it.
        data: without the last line end.
    """

    place: Place
    end: int
    data: bytes


Wanted = Callable[[Line], bool]


@dataclass(frozen=True, slots=True)
class Page:
    """What was found, and how far was looked.

    Attributes:
        lines: the wanted ones, oldest first.
        start: where the first record begins that was looked at; nothing between it and the place asked for is missing.
        end: where the last such record begins. It may still grow, so `newer` begins with it once more.
        edge: whether there is nothing further in the direction of the search.
    """

    lines: tuple[Line, ...]
    start: Place
    end: Place
    edge: bool


class LostPlaceError(Exception):
    """The file that a place is in does not exist any more, or was cut off."""


@dataclass(slots=True)
class _File:
    number: int
    size: int
    stream: BinaryIO

    def read(self, start: int, end: int) -> bytes:
        self.stream.seek(start)
        return self.stream.read(end - start)


@dataclass(slots=True)
class _Known:
    inode: int
    head: bytes


class LogReader:
    """Reads one log. Its methods block, and are called by one thread at a time.

    Args:
        path: of the newest file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[int, _Known] = {}
        self._numbers = itertools.count()

    def stamp(self) -> tuple[tuple[int, int], ...]:
        """Changes whenever there is something new.

        Raises:
            StateError: if the log can't be looked at.
        """
        found = []
        for path in self._paths():
            try:
                now = path.stat()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise _unreadable(path, error) from error
            found.append((now.st_ino, now.st_size))
        return tuple(found)

    def last(self, wanted: Wanted, count: int) -> Page | None:
        """The newest records; None if there is no log.

        Raises:
            StateError: if it can't be read.
        """
        with self._files() as files:
            return self._backward(files, len(files) - 1, files[-1].size, wanted, count) if files else None

    def first(self, wanted: Wanted, count: int) -> Page | None:
        """The oldest records that are kept; None if there is no log.

        Raises:
            StateError: if it can't be read.
        """
        with self._files() as files:
            return self._forward(files, 0, 0, wanted, count) if files else None

    def older(self, before: Place, wanted: Wanted, count: int) -> Page:
        """The records before a place, at most `count`, the nearest ones.

        Raises:
            LostPlaceError: if the place is not kept any more.
            StateError: if the log can't be read.
        """
        with self._files() as files:
            return self._backward(files, _index(files, before), before.offset, wanted, count)

    def newer(self, after: Place, wanted: Wanted, count: int) -> Page:
        """The record that begins at a place, and those behind it, at most `count`.

        Raises:
            LostPlaceError: if the place is not kept any more.
            StateError: if the log can't be read.
        """
        with self._files() as files:
            return self._forward(files, _index(files, after), after.offset, wanted, count)

    def _backward(self, files: list[_File], index: int, end: int, wanted: Wanted, count: int) -> Page:
        found: list[Line] = []
        start = Place(files[index].number, end)
        newest: Place | None = None
        looked = 0
        while len(found) < count and looked < LOOK_BYTES:
            if end == 0:
                if index == 0:
                    break
                index -= 1
                end = files[index].size
                continue
            for line in reversed(_before(files[index], end)):
                newest = newest or line.place
                looked += line.end - line.place.offset
                start, end = line.place, line.place.offset
                if wanted(line):
                    found.append(line)
                if len(found) == count:
                    break
        return Page(tuple(reversed(found)), start, newest or start, index == 0 and end == 0)

    def _forward(self, files: list[_File], index: int, begin: int, wanted: Wanted, count: int) -> Page:
        found: list[Line] = []
        start = newest = Place(files[index].number, begin)
        looked = 0
        while len(found) < count and looked < LOOK_BYTES:
            if begin >= files[index].size:
                if index == len(files) - 1:
                    break
                index, begin = index + 1, 0
                continue
            for line in _behind(files[index], begin):
                looked += line.end - line.place.offset
                newest, begin = line.place, line.end
                if wanted(line):
                    found.append(line)
                if len(found) == count:
                    break
        return Page(tuple(found), start, newest, index == len(files) - 1 and begin >= files[index].size)

    def _paths(self) -> list[Path]:
        """The files, newest first: one that is renamed meanwhile is met twice rather than missed."""
        older = (self.path.with_name(f"{self.path.name}.{number}") for number in range(1, OLDER_FILES + 1))
        return [self.path, *older]

    @contextlib.contextmanager
    def _files(self) -> Iterator[list[_File]]:
        """All files that exist, oldest first, open for as long as the page takes."""
        with contextlib.ExitStack() as opened:
            found: list[tuple[_Known, int, BinaryIO]] = []
            for path in self._paths():
                try:
                    stream = opened.enter_context(path.open("rb"))
                    about, head = os.fstat(stream.fileno()), stream.read(HEAD_BYTES)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    raise _unreadable(path, error) from error
                known = _Known(about.st_ino, head)
                if all(known.inode != other.inode for other, _, _ in found):
                    found.append((known, about.st_size, stream))
            files = [_File(self._number(known), size, stream) for known, size, stream in reversed(found)]
            alive = {file.number for file in files}
            self._known = {number: known for number, known in self._known.items() if number in alive}
            try:
                yield files
            except OSError as error:
                raise _unreadable(self.path, error) from error

    def _number(self, seen: _Known) -> int:
        """The number of a file. An inode alone would not do: a new file often gets that of one just removed."""
        for number, known in self._known.items():
            if known.inode == seen.inode and seen.head.startswith(known.head):
                known.head = seen.head
                return number
        number = next(self._numbers)
        self._known[number] = seen
        return number


def _index(files: list[_File], place: Place) -> int:
    for index, file in enumerate(files):
        if file.number == place.file and place.offset <= file.size:
            return index
    raise LostPlaceError


def _before(file: _File, end: int) -> list[Line]:
    """The last records before an offset, at least one."""
    size = BLOCK_BYTES
    while True:
        start = max(0, end - size)
        data = file.read(start, end)
        if start == 0:
            return _split(file, 0, data)
        first = _BEGIN.search(data)
        if first is None and size >= MAX_RECORD_BYTES:
            return [_line(file, start, data)]
        if first is not None:
            return _split(file, start + first.end(), data[first.end() :])
        size *= 4


def _behind(file: _File, begin: int) -> list[Line]:
    """The records from an offset on, at least one; each of them whole."""
    size = BLOCK_BYTES
    while True:
        end = min(file.size, begin + size)
        lines = _split(file, begin, file.read(begin, end))
        if end == file.size or (len(lines) == 1 and size >= MAX_RECORD_BYTES):
            return lines
        if len(lines) > 1:
            return lines[:-1]
        size *= 4


def _split(file: _File, start: int, data: bytes) -> list[Line]:
    """The records of a block that begins with one."""
    begins = [0, *(match.end() for match in _BEGIN.finditer(data))]
    return [_line(file, start + begin, data[begin:end]) for begin, end in itertools.pairwise([*begins, len(data)])]


def _line(file: _File, start: int, data: bytes) -> Line:
    return Line(Place(file.number, start), start + len(data), data.rstrip(b"\r\n"))


def _unreadable(path: Path, error: OSError) -> StateError:
    return StateError(f"can't read {path}: {error.strerror or error}", "check that it is a file that you may read")
