"""Logging: JSON lines in a rotating file, nothing on stderr. A command's messages to its user are not logged.

A line of the file has `time` (Unix seconds), `level`, `thread`, `source`, and `text` or, of an event, `event`.
`as_text` gives a line in words, for a record that is shown whole.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from sapo_edge.state.durable import reported

LEVELS = ("debug", "info", "warning", "error")
"""Levels of records, most verbose first."""
MAX_BYTES = 1024 * 1024
"""Size at which the file is rotated."""
OLDER_FILES = 2
"""Number of rotated files kept."""
LINE_START = '{"time":'
"""How every JSON line begins."""
_EVENT = '{"v":'


class _JsonLines(logging.Formatter):
    """A record as one JSON object; an event's own JSON is a part of it."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": round(record.created, 3), "level": record.levelname.lower(), "thread": record.threadName,
            "source": record.name,
        }  # fmt: skip
        text = super().format(record)
        event = _loads(text) if text.startswith(_EVENT) else None
        fields |= {"text": text} if event is None else {"event": event}
        return json.dumps(fields, separators=(",", ":"))


def as_text(line: str) -> str:
    """A line of the file as text: `2027-01-15T08:00:00Z INFO thread source: text`; any other line as it is."""
    fields = _loads(line) if line.startswith(LINE_START) else None
    try:
        if fields is None:
            return line
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(float(fields["time"])))
        event = fields.get("event")
        text = str(fields["text"]) if event is None else json.dumps(event, separators=(",", ":"))
        return f"{moment} {str(fields['level']).upper()} {fields['thread']} {fields['source']}: {text}"
    except (KeyError, TypeError, ValueError, OverflowError, OSError):
        return line


def _loads(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


class _LogFile(RotatingFileHandler):
    """A rotating file that reports a write error once, not with a traceback per line."""

    failed = False

    def _open(self) -> TextIOWrapper:
        stream = super()._open()
        # A power cut tears the last line: what follows must not become a part of it.
        with open(self.baseFilename, "rb") as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                stream.write("" if file.read() == b"\n" else "\n")
        return stream

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name is logging's
        if not self.failed:
            self.failed = True
            sys.stderr.write(f"can't write to the log {self.baseFilename}: {sys.exc_info()[1]}\n")


def is_shown(level: str, lowest: str) -> bool:
    """Whether a record has at least a level. One without a level always does: it may be the rest of an error."""
    return not level or LEVELS.index(level) >= LEVELS.index(lowest)


def configure(file: Path | None = None) -> None:
    """Set up logging; a second call replaces the first.

    Args:
        file: the rotating file; only for the node, because two processes can't rotate the same file.
    """
    # Without a handler, Python's handler of last resort would write to the terminal.
    handler = logging.NullHandler() if file is None else _log_file(file)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("sapo_edge").setLevel(logging.INFO)


def priority(level: str) -> str:
    """The prefix that makes a line on stderr an error or a warning in systemd's journal; empty for another stderr."""
    mark = {"error": "<3>", "warning": "<4>"}.get(level, "")
    return mark if mark and _is_journal() else ""


def _is_journal() -> bool:
    try:
        status = os.fstat(2)
    except OSError:
        return False
    # Inherited by programs that redirect stderr: see systemd.exec(5).
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


@contextmanager
def written(file: Path) -> Iterator[None]:
    """Write this program's records to a file until the block ends, and leave all other logging as it is."""
    logger, handler = logging.getLogger("sapo_edge"), _log_file(file)
    level, propagates = logger.level, logger.propagate
    # A handler of the root takes what any logger lets pass. It gets what it would get without the file.
    onwards = _Onwards(logger.getEffectiveLevel())
    logger.handlers += [handler, onwards]
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.propagate = propagates
        logger.setLevel(level)
        logger.removeHandler(handler)
        logger.removeHandler(onwards)
        handler.close()


class _Onwards(logging.Handler):
    """Passes records on to the root's handlers."""

    def emit(self, record: logging.LogRecord) -> None:
        root = logging.getLogger()
        if root.handlers:
            root.callHandlers(record)


def _log_file(file: Path) -> logging.Handler:
    with reported("write the log", file):
        handler = _LogFile(
            file, maxBytes=MAX_BYTES, backupCount=OLDER_FILES, encoding="utf-8", errors="backslashreplace"
        )
    handler.setFormatter(_JsonLines())
    handler.setLevel(logging.INFO)
    return handler
