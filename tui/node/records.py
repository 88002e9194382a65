"""A record of the log, read from its line and shown in words."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from sapo_edge import events
from sapo_edge.control.event_words import describe_event
from sapo_edge.plain import counted, printable
from sapo_edge.state.log_reader import Place
from sapo_edge.state.logs import as_text

MAX_TEXT = 1000
"""Characters of a record that are shown in the list."""
MAX_RAW = 8000
"""Characters of a record that are kept for its details."""

_LEVELS = {"debug": "debug", "warning": "warning", "error": "error", "critical": "error"}


@dataclass(frozen=True, slots=True)
class Record:
    """One record, safe to show.

    Attributes:
        time: Unix seconds; None if the line is none of the program's.
        level: "debug", "info", "warning" or "error"; "" for such a line.
        source: the part of the program that wrote it; "" for events.
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
        return f"{self.source}  {self.text}" if self.source else self.text

    @property
    def event(self) -> dict[str, Any] | None:
        """The event that it is, as in `docs/interface.md`; None for a line of the program."""
        _, brace, fields = self.raw.partition(": {")
        if not brace or self.source or self.cut:
            return None
        try:
            event = json.loads("{" + fields)
        except (ValueError, RecursionError):
            return None
        return event if isinstance(event.get("event"), str) else None

    def matches(self, query: str) -> bool:
        """Whether the words, the source or the lines after the first contain a case-folded text."""
        _, _, more = self.raw.partition("\n")
        return any(query in text.casefold() for text in (self.text, self.source, more))

    def local_time(self, form: str) -> str:
        """The time in this machine's time zone, as `time.strftime` formats it; "" if unknown."""
        return "" if self.time is None else time.strftime(form, time.localtime(self.time))


def parse_record(place: Place, data: bytes) -> Record:
    """Parse a line of the log. Any bytes are valid."""
    # Cut first: a line may be very long.
    line = data[: 4 * MAX_RAW].decode("utf-8", "backslashreplace").rstrip("\r\n")
    whole = as_text(line)
    # A line that is none of the program's is shown as it is.
    fields: dict[str, Any] = {"text": line} if whole == line else json.loads(line)
    source, text = str(fields.get("source", "")).removeprefix("sapo_edge."), str(fields.get("text"))
    level = _LEVELS.get(str(fields["level"]), "info") if "level" in fields else ""
    if fields.get("event") is not None:
        try:
            event = events.from_dict(fields["event"])
        except ValueError:
            # Of a newer version.
            text = json.dumps(fields["event"], separators=(",", ":"))
        else:
            source, text = "", describe_event(event)
            level = event.level if isinstance(event, events.Notice) else level
    first, _, more = text.partition("\n")
    text = printable(first[:MAX_TEXT])
    if more:
        lines = more.rstrip("\n").split("\n")
        # The last line of a traceback names the error.
        text = f"{text}  [+{counted(len(lines), 'line')}: {printable(lines[-1].strip()[:200])}]"
    raw = "\n".join(map(printable, whole[:MAX_RAW].split("\n")))
    cut = len(data) > 4 * MAX_RAW or len(whole) > MAX_RAW
    moment, thread = fields.get("time"), printable(str(fields.get("thread", "")))
    return Record(place, None if moment is None else float(moment), level, printable(source), thread, text, raw, cut)
