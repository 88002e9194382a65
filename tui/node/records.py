"""A record of the log, read from its line and shown in words."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from sapo_edge import events
from sapo_edge.control.event_words import describe_event
from sapo_edge.plain import counted, printable
from sapo_edge.state.logs import as_text

MAX_TEXT = 1000
"""Characters of a record that are shown in the list."""
MAX_RAW = 8000
"""Characters of a record that are kept for its details."""

_HEADER = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ) ([A-Z]+) (\S+) (\S+): ")
_LEVELS = {"DEBUG": "debug", "INFO": "info", "WARNING": "warning", "ERROR": "error", "CRITICAL": "error"}
_PACKAGE = "sapo_edge."

Place = tuple[int, int]
"""Where a record begins: the number of its file and the offset in bytes. A later record has a greater one."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record, safe to show.

    Attributes:
        time: Unix seconds; None if the line has no valid header.
        level: "debug", "info", "warning" or "error"; "" without a header.
        source: the part of the program that wrote it; "" for events.
        text: one line of words.
        raw: the record as text, with everything unprintable escaped.
        cut: whether `raw` is only the beginning.
    """

    place: Place
    time: float | None
    level: str
    source: str
    thread: str
    text: str
    raw: str
    cut: bool

    @property
    def line(self) -> str:
        """Source and words."""
        return f"{self.source}  {self.text}" if self.source else self.text

    def matches(self, query: str) -> bool:
        """Whether the words, the source or the lines after the first contain a case-folded text."""
        if query in self.text.casefold() or query in self.source.casefold():
            return True
        _, _, more = self.raw.partition("\n")
        return query in more.casefold()

    def local_time(self, form: str) -> str:
        """The time in this machine's time zone, as `time.strftime` formats it; "" if unknown."""
        return "" if self.time is None else time.strftime(form, time.localtime(self.time))


class Level(StrEnum):
    """Which records are shown."""

    ALL = "all"
    WARNINGS = "warnings and errors"
    ERRORS = "errors"

    @property
    def next(self) -> Level:
        """The level that follows; the first one after the last."""
        levels = list(Level)
        return levels[(levels.index(self) + 1) % len(levels)]

    def admits(self, record: Record) -> bool:
        """Whether a record is shown. One without a level always is: it may be the rest of an error."""
        return self is Level.ALL or record.level in ("", "error") or (self, record.level) == (Level.WARNINGS, "warning")


def parse_record(place: Place, data: bytes) -> Record:
    """Parse the bytes of one record: a line, and the lines up to the next record. Any bytes are valid."""
    # Cut first: a line may be very long.
    whole = data[: 4 * MAX_RAW].decode("utf-8", "backslashreplace").replace("\r\n", "\n").rstrip("\r\n")
    whole = as_text(whole)
    header = _HEADER.match(whole)
    body = whole if header is None else whole[header.end() :]
    first, _, more = body.partition("\n")
    moment, level, thread, source = None, "", "", ""
    text = first
    if header is not None:
        moment, thread = _parse_time(header[1]), _escape(header[3])
        level, source = _LEVELS.get(header[2], "info"), _escape(header[4].removeprefix(_PACKAGE))
        if (event := _parse_event(body)) is not None:
            source, text = "", describe_event(event)
            level = event.level if isinstance(event, events.Notice) else level
    text = _escape(text[:MAX_TEXT])
    if more:
        lines = more.rstrip("\n").split("\n")
        # The last line of a traceback names the error.
        text = f"{text}  [+{counted(len(lines), 'line')}: {_escape(lines[-1].strip()[:200])}]"
    raw = "\n".join(map(_escape, whole[:MAX_RAW].split("\n")))
    cut = len(data) > 4 * MAX_RAW or len(whole) > MAX_RAW
    return Record(place, moment, level, source, thread, text, raw, cut)


def format_raw(record: Record) -> str:
    """The raw record for its details: the JSON of an event with one field a line."""
    _, brace, fields = record.raw.partition(": {")
    if not brace or record.cut:
        return record.raw
    try:
        return json.dumps(json.loads("{" + fields), indent=2)
    except (ValueError, RecursionError):
        return record.raw


def _parse_event(body: str) -> events.Event | None:
    if not body.startswith('{"v":'):
        return None
    try:
        return events.from_json(body)
    except ValueError:
        # Of a newer version, or cut off: shown as it is.
        return None


def _parse_time(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def _escape(text: str) -> str:
    # `isprintable` is quick, and true of nothing that `printable` would escape.
    return text if text.isprintable() else printable(text)
