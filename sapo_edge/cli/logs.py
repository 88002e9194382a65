"""`sapo logs`: the events of the running node; without one, or since some time, the files of its log."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sapo_edge.cli.options import Home, JsonEvents
from sapo_edge.cli.output import print_json
from sapo_edge.control.client import NotListeningError, connect, node_runs
from sapo_edge.control.event_words import describe_event
from sapo_edge.errors import ConfigError
from sapo_edge.events import VERSION, from_dict
from sapo_edge.plain import format_time, narrate, printable
from sapo_edge.state.log_reader import LogReader
from sapo_edge.state.logs import LEVELS, is_shown
from sapo_edge.state.paths import Paths

if TYPE_CHECKING:
    from sapo_edge.tui.node.records import Record

MAX_LINES = 1000
_FOLLOW_SECONDS = 0.5
_UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86_400}


def logs(
    follow: Annotated[bool, typer.Option("--follow", help="Keep printing events as they happen.")] = False,
    level: Annotated[str, typer.Option("--level", help="Lowest level: debug, info, warning or error.")] = "info",
    lines: Annotated[int, typer.Option("--lines", min=0, max=MAX_LINES, help="Past events to print.")] = 50,
    since: Annotated[
        str | None, typer.Option("--since", help="All since 30min, 2h, 3d or a date ago, from the log's files.")
    ] = None,
    home: Home = None,
    json: JsonEvents = False,
) -> None:
    """Show the events of the running node; without one, or with --since, the files of its log."""
    if level not in LEVELS:
        raise ConfigError(f"there is no level {level!r}", f"choose one of {', '.join(LEVELS)}")
    paths = Paths.default(home)
    begin = None if since is None else parse_since(since, time.time())
    entries: Iterator[Mapping[str, Any] | Record]
    if begin is None and node_runs(paths):
        entries = _events(paths, lines, level, follow=follow)
    else:
        if not paths.log.exists() and not follow:
            raise NotListeningError
        if begin is None:
            narrate(f"no node runs; from {paths.log}")
        entries = records(paths, lines=lines if begin is None else None, since=begin or 0.0, level=level, follow=follow)
    for entry in entries:
        if json:
            print_json(_as_object(entry))
        else:
            print(_as_line(entry), flush=True)


def _events(paths: Paths, lines: int, level: str, *, follow: bool) -> Iterator[Mapping[str, Any]]:
    """Events of the running node, oldest first: so many past ones, then new ones if they are to be followed."""
    with connect(paths) as client:
        # Those of lower levels don't count: the last ones of this level may be older than as many events.
        asked = MAX_LINES if lines and level in ("warning", "error") else lines
        count = client.subscribe(asked, progress=level == "debug")
        events = client.events() if count or follow else iter(())
        yield from deque((event for event in islice(events, count) if is_shown(_level(event), level)), maxlen=lines)
        if follow:
            yield from (event for event in events if is_shown(_level(event), level))


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
        late = (record for record in new if record.time is None or record.time >= since)
        shown = [record for record in late if is_shown(record.level, level)]
        yield from shown if lines is None else shown[len(shown) - min(lines, len(shown)) :]
        if not follow:
            return
        lines = None
        time.sleep(_FOLLOW_SECONDS)


def _level(event: Mapping[str, Any]) -> str:
    if event.get("event") == "progress":
        return "debug"
    level = str(event.get("level", "info"))
    return level if level in LEVELS else "info"


def _as_object(entry: Mapping[str, Any] | Record) -> Mapping[str, Any]:
    """As one JSON object: an event as in `docs/interface.md`, or a line of the program."""
    if isinstance(entry, Mapping):
        return entry
    return entry.event or {
        "v": VERSION, "event": "log", "time": entry.time, "level": entry.level, "source": entry.source,
        "text": entry.text,
    }  # fmt: skip


def _as_line(entry: Mapping[str, Any] | Record) -> str:
    """As one line: time, level (of warnings and errors), what happened."""
    moment: float | None
    if isinstance(entry, Mapping):
        moment, level = float(entry.get("time") or 0), _level(entry)
        try:
            text = printable(describe_event(from_dict(entry)))
        except ValueError:
            # An event of a newer version.
            text = printable(entry.get("event"))
    else:
        moment, level, text = entry.time, entry.level, entry.line
    mark = f"{level}: " if level in ("warning", "error") else ""
    return f"{' ' * 19 if moment is None else format_time(moment)}  {mark}{text}"
