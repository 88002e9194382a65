"""Reads the node's log files for `sapo logs`, whether or not a node runs."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sapo_edge.errors import ConfigError
from sapo_edge.events import VERSION
from sapo_edge.state.log_reader import LogReader
from sapo_edge.state.logs import LEVELS
from sapo_edge.state.paths import Paths

if TYPE_CHECKING:
    from sapo_edge.tui.node.records import Record

_FOLLOW_SECONDS = 0.5
_UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86_400}


def parse_since(text: str, now: float) -> float:
    """Unix seconds of a past moment: a duration such as 30min, 2h or 3d before `now`, or a local date or time."""
    match = re.fullmatch(r"(\d{1,9})\s*(s|min|h|d)", text.strip())
    if match is not None:
        return now - int(match[1]) * _UNITS[match[2]]
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError, OSError):
        remedy = "give one such as 30min, 2h, 3d, 2026-11-22 or 2026-11-22T08:30"
        raise ConfigError(f"{text!r} is no time", remedy) from None


def records(paths: Paths, *, lines: int | None, since: float, level: str, follow: bool) -> Iterator[Record]:
    """Records of the log since a moment (Unix seconds), oldest first: the newest `lines` past ones, or all.

    To follow it is to wait for new ones, of this node and its successors, without end.
    """
    from sapo_edge.tui.node.records import parse_record

    reader = LogReader(paths.log, parse_record)
    last = (-1, -1)
    while True:
        reader.read()
        new = [record for record in reader.records if record.place > last]
        last = new[-1].place if new else last
        shown = [record for record in new if _is_shown(record, since, level)]
        yield from shown if lines is None else shown[len(shown) - min(lines, len(shown)) :]
        if not follow:
            return
        lines = None
        time.sleep(_FOLLOW_SECONDS)


def as_object(record: Record) -> dict[str, Any]:
    """A record as one JSON object: an event as in `docs/interface.md`, or a line of the program."""
    return record.event or {
        "v": VERSION, "event": "log", "time": record.time, "level": record.level, "source": record.source,
        "text": record.text,
    }  # fmt: skip


def as_line(record: Record) -> str:
    """A record as one line for people, as `sapo logs` prints events."""
    mark = f"{record.level}: " if record.level in ("warning", "error") else ""
    return f"{record.local_time('%Y-%m-%d %H:%M:%S') or ' ' * 19}  {mark}{record.line}"


def _is_shown(record: Record, since: float, level: str) -> bool:
    if record.time is not None and record.time < since:
        return False
    # One without a level may be the rest of an error.
    return not record.level or LEVELS.index(record.level) >= LEVELS.index(level)
