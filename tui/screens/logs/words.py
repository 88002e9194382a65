"""Records of the log as people read them: events in words, everything else as it is."""

from __future__ import annotations

import calendar
import json
import re
import time
from dataclasses import dataclass

from sapo_edge import events
from sapo_edge.event_words import describe_event
from sapo_edge.plain import counted, printable
from sapo_edge.tui.screens.logs.reader import Line, Place

MAX_TEXT = 1000
"""Characters of a record that are shown in the list."""
MAX_RAW = 8000
"""Characters of a record that are kept for its detail."""

_HEADER = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)Z ([A-Z]+) (\S+) (\S+): ")
_LEVELS = {"DEBUG": "debug", "INFO": "info", "WARNING": "warning", "ERROR": "error", "CRITICAL": "error"}
_PACKAGE = "sapo_edge."


@dataclass(frozen=True, slots=True)
class Record:
    """One record, harmless to show.

    Attributes:
        place: in the log.
        time: Unix seconds; None if its line does not begin like one of the log.
        level: "debug", "info", "warning" or "error"; of such a line "".
        source: the part of the program that wrote it; "" for events.
        thread: that wrote it.
        text: one line of words.
        raw: as it stands in the file.
        cut: whether `raw` was too long.
    """

    place: Place
    time: float | None
    level: str
    source: str
    thread: str
    text: str
    raw: str
    cut: bool

    def matches(self, query: str) -> bool:
        """Whether it is found by a search: in its words, or in lines that follow its first."""
        if query in self.text.casefold() or query in self.source.casefold():
            return True
        _, _, further = self.raw.partition("\n")
        return query in further.casefold()


def level_of(line: Line) -> str:
    """The level of a record, found at little cost; "" if it has none."""
    header = _HEADER.match(line.data[:200].decode("utf-8", "replace"))
    if header is None:
        return ""
    # A notice carries the level that counts.
    if b'"event":"notice"' in line.data[:400]:
        return record_of(line).level
    return _LEVELS.get(header[2], "info")


def record_of(line: Line) -> Record:
    """A record in words."""
    # Cut before anything is done with it: a line may be long.
    whole = line.data[: 4 * MAX_RAW].decode("utf-8", "backslashreplace").replace("\r\n", "\n")
    header = _HEADER.match(whole)
    body = whole if header is None else whole[header.end() :]
    first, _, further = body.partition("\n")
    level, source, thread, moment = "", "", "", None
    text = _harmless(first[:MAX_TEXT])
    if header is not None:
        level, thread = _LEVELS.get(header[2], "info"), _harmless(header[3])
        source = _harmless(header[4].removeprefix(_PACKAGE))
        moment = _seconds(header[1])
        if (event := _event(body)) is not None:
            source, text = "", _harmless(describe_event(event)[:MAX_TEXT])
            level = event.level if isinstance(event, events.Notice) else level
    if further:
        text = f"{text}  {_further(further)}"
    raw = "\n".join(_harmless(part) for part in whole[:MAX_RAW].split("\n"))
    cut = len(line.data) > 4 * MAX_RAW or len(whole) > MAX_RAW
    return Record(line.place, moment, level, source, thread, text, raw, cut)


def pretty(record: Record) -> str:
    """The raw record for its detail: an event's JSON with one field a line."""
    _, brace, rest = record.raw.partition(": {")
    if not brace or record.cut:
        return record.raw
    try:
        found = json.loads("{" + rest)
    except (ValueError, RecursionError):
        return record.raw
    return json.dumps(found, indent=2)


def moment(record: Record, form: str) -> str:
    """When it was written, by the clock of this machine; "" if unknown."""
    return "" if record.time is None else time.strftime(form, time.localtime(record.time))


def _event(body: str) -> events.Event | None:
    if not body.startswith('{"v":'):
        return None
    try:
        return events.from_json(body)
    except ValueError:
        # Of a newer version, or cut off: it is shown as it stands.
        return None


def _further(text: str) -> str:
    lines = text.rstrip("\n").split("\n")
    # The last line of a traceback says what went wrong.
    return f"[+{counted(len(lines), 'line')}: {_harmless(lines[-1].strip()[:200])}]"


def _seconds(text: str) -> float | None:
    try:
        return float(calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%S")))
    except ValueError:
        return None


def _harmless(text: str) -> str:
    # The quick test passes nothing that `printable` would write out.
    return text if text.isprintable() else printable(text)
