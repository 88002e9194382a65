"""The part of the log that is in memory: some hundred records around the place that is looked at."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import StrEnum
from functools import partial

from sapo_edge.errors import StateError
from sapo_edge.plain import printable
from sapo_edge.tui.screens.logs.reader import Line, LogReader, LostPlaceError, Page, Place, Wanted
from sapo_edge.tui.screens.logs.words import Record, level_of, record_of

PAGE = 150
"""Records that are read at once."""
MAX_RECORDS = 450
"""Records that are kept in memory."""
MAX_CHARACTERS = 300_000
"""Characters of them, all together."""


class Level(StrEnum):
    """Which records are shown."""

    ALL = "all"
    WARNINGS = "warnings and errors"
    ERRORS = "errors"

    @property
    def following(self) -> Level:
        """The one that the key goes on to."""
        levels = list(Level)
        return levels[(levels.index(self) + 1) % len(levels)]

    def wants(self, line: Line) -> bool:
        """Whether a record is shown. One without a level always is: it may be the rest of an error."""
        if self is Level.ALL:
            return True
        return level_of(line) in (("", "warning", "error") if self is Level.WARNINGS else ("", "error"))


class LogWindow:
    """Reads pages in a thread, and holds what came of them. Its methods may be awaited from several tasks.

    Args:
        reader: of the log.

    Attributes:
        records: oldest first.
        at_start, at_end: whether nothing older or newer is left in the log.
        level: which records are wanted; `reload` makes a change good.
        exists: whether there is a log at all.
    """

    def __init__(self, reader: LogReader) -> None:
        self.reader = reader
        self.records: list[Record] = []
        self.at_start = self.at_end = True
        self.level = Level.ALL
        self.exists = False
        self._top = self._bottom = Place(0, 0)
        self._stamp: tuple[tuple[int, int], ...] | None = None
        self._lock = asyncio.Lock()

    async def to_end(self) -> None:
        """Show the newest records.

        Raises:
            StateError: if the log can't be read; so with all methods.
        """
        async with self._lock:
            await asyncio.to_thread(self._to_end)

    async def to_start(self) -> None:
        """Show the oldest records."""
        async with self._lock:
            await asyncio.to_thread(self._to_start)

    async def around(self, place: Place) -> None:
        """Show the records around a place; the newest if it is gone."""
        async with self._lock:
            await asyncio.to_thread(self._around, place)

    async def older(self) -> None:
        """Read one page further up."""
        async with self._lock:
            await asyncio.to_thread(self._older)

    async def newer(self) -> None:
        """Read one page further down."""
        async with self._lock:
            await asyncio.to_thread(self._newer)

    async def poll(self, *, follow: bool) -> bool:
        """Look for something new.

        Args:
            follow: whether to show it, whatever of the older records has to go; else only as many as there is room for.

        Returns:
            Whether anything changed.
        """
        if self._lock.locked():
            return False
        async with self._lock:
            try:
                return await asyncio.to_thread(self._poll, follow)
            except StateError:
                # Begin anew as soon as it can be read again.
                self.records, self.exists, self._stamp = [], False, None
                raise

    async def find(self, query: str, place: Place, *, up: bool) -> Record | None:
        """The nearest wanted record that matches, above or below a place; it ends early if its task is cancelled.

        Args:
            query: as `Record.matches` wants it.
            place: where to begin, itself left out.
        """
        while True:
            async with self._lock:
                page = await asyncio.to_thread(self._look, query, place, up)
            if page is None or page.edge or page.lines:
                return record_of(page.lines[0]) if page is not None and page.lines else None
            place = page.start if up else page.end

    def nothing(self, *, startable: bool) -> str:
        """Why there is nothing to show, and what to do."""
        if self.exists and self.level is not Level.ALL:
            return f"The log has no {self.level.replace(' and ', ' or ')}.\n\nl shows the rest."
        what = "The log is empty." if self.exists else "There is no log yet: a node writes it while it runs."
        remedy = "\n\nPress s to start one." if startable else ""
        return f"{what}{remedy}\n\n{printable(self.reader.path)}"

    def _look(self, query: str, place: Place, up: bool) -> Page | None:
        def wanted(line: Line) -> bool:
            return line.place != place and self.level.wants(line) and record_of(line).matches(query)

        try:
            return self.reader.older(place, wanted, 1) if up else self.reader.newer(place, wanted, 1)
        except LostPlaceError:
            return None

    def _to_end(self) -> None:
        self._stamp = self.reader.stamp()
        page = self._gather(self.reader.last, up=True)
        self._fill(page, at_start=page is None or page.edge, at_end=True)

    def _to_start(self) -> None:
        page = self._gather(self.reader.first, up=False)
        self._fill(page, at_start=True, at_end=page is None or page.edge)

    def _around(self, place: Place) -> None:
        try:
            below = self._gather(partial(self.reader.newer, place), up=False)
            above = self._gather(partial(self.reader.older, place), up=True)
        except LostPlaceError:
            self._to_end()
            return
        assert below is not None and above is not None
        self._fill(below, at_start=False, at_end=below.edge)
        self._put_above(above)

    def _older(self) -> None:
        if self.at_start or not self.exists:
            return
        try:
            page = self._gather(partial(self.reader.older, self._top), up=True)
        except LostPlaceError:
            # What was above is not kept any more.
            self.at_start = True
            return
        assert page is not None
        self._put_above(page)

    def _newer(self) -> None:
        if self.at_end or not self.exists:
            return
        try:
            page = self._gather(partial(self.reader.newer, self._bottom), up=False)
        except LostPlaceError:
            self._to_end()
            return
        assert page is not None
        self._put_below(page)

    def _poll(self, follow: bool) -> bool:
        stamp = self.reader.stamp()
        if stamp == self._stamp:
            return False
        if not self.exists:
            self._to_end()
            return True
        full = len(self.records) + PAGE > MAX_RECORDS
        if not self.at_end or (full and not follow):
            self._stamp, self.at_end = stamp, False
            return True
        self.at_end = False
        self._newer()
        if self.at_end or not follow:
            self._stamp = stamp
        else:
            # More than a page came at once.
            self._to_end()
        return True

    def _gather(self, read: Callable[[Wanted, int], Page | None], *, up: bool) -> Page | None:
        """A page with as much as is wanted of it, however far one has to look."""
        page = read(self.level.wants, PAGE)
        while page is not None and len(page.lines) < PAGE and not page.edge:
            left = PAGE - len(page.lines)
            if up:
                more = self.reader.older(page.start, self.level.wants, left)
                page = Page((*more.lines, *page.lines), more.start, page.end, more.edge)
            else:
                more = self.reader.newer(page.end, self._wanted_behind(page.end), left)
                page = Page((*page.lines, *more.lines), page.start, more.end, more.edge)
        return page

    def _wanted_behind(self, place: Place) -> Wanted:
        return lambda line: line.place != place and self.level.wants(line)

    def _fill(self, page: Page | None, *, at_start: bool, at_end: bool) -> None:
        self.exists = page is not None
        self.records = [] if page is None else [record_of(line) for line in page.lines]
        self.at_start, self.at_end = at_start, at_end
        if page is not None:
            self._top, self._bottom = page.start, page.end
        self._trim(keep_end=at_end)

    def _put_above(self, page: Page) -> None:
        self.records[:0] = [record_of(line) for line in page.lines]
        self._top, self.at_start = page.start, page.edge
        self._trim(keep_end=False)

    def _put_below(self, page: Page) -> None:
        new = [record_of(line) for line in page.lines]
        if self.records and new and self.records[-1].place == new[0].place:
            # It has grown, or is there once more because it might have.
            self.records.pop()
        self.records += new
        self._bottom, self.at_end = page.end, page.edge
        self._trim(keep_end=True)

    def _trim(self, *, keep_end: bool) -> None:
        """Forget what is furthest from where one looks."""
        characters = sum(len(record.raw) + len(record.text) for record in self.records)
        while len(self.records) > MAX_RECORDS or (characters > MAX_CHARACTERS and len(self.records) > 1):
            gone = self.records.pop(0 if keep_end else -1)
            characters -= len(gone.raw) + len(gone.text)
            if keep_end:
                self._top, self.at_start = self.records[0].place, False
            else:
                self._bottom, self.at_end = self.records[-1].place, False
