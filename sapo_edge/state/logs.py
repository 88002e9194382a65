"""Logging: short lines on stderr, full ones in a rotating file. A command's messages to its user are not logged."""

from __future__ import annotations

import logging
import sys
import time
from logging.handlers import RotatingFileHandler
from pathlib import Path

from sapo_edge.errors import ConfigError
from sapo_edge.state.durable import reported

LEVELS = ("debug", "info", "warning", "error")
"""Levels of `configure`, most verbose first."""
MAX_BYTES = 1024 * 1024
"""Size at which the file is rotated."""
OLDER_FILES = 2
"""Number of rotated files kept."""


class _LogFile(RotatingFileHandler):
    """A rotating file that reports a write error once, not with a traceback per line."""

    failed = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name is logging's
        if not self.failed:
            self.failed = True
            sys.stderr.write(f"can't write to the log {self.baseFilename}: {sys.exc_info()[1]}\n")


def configure(level: str = "warning", file: Path | None = None, *, stderr: bool = True) -> None:
    """Set up logging; a second call replaces the first.

    Args:
        level: one of `LEVELS`, for stderr. The file gets "info" and above, or everything if `level` is "debug".
        file: the rotating file; only for the node, because two processes can't rotate the same file.
        stderr: False if something else owns the terminal.

    Raises:
        ConfigError: if the level is unknown.
        StateError: if the file can't be opened.
    """
    if level not in LEVELS:
        raise ConfigError(f"there is no log level {level!r}", f"choose one of {', '.join(LEVELS)}")
    number = getattr(logging, level.upper())
    handlers: list[logging.Handler] = []
    if file is not None:
        with reported("write the log", file):
            log_file = _LogFile(
                file, maxBytes=MAX_BYTES, backupCount=OLDER_FILES, encoding="utf-8", errors="backslashreplace"
            )
        formatter = logging.Formatter(
            "%(asctime)sZ %(levelname)s %(threadName)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S"
        )
        formatter.converter = time.gmtime
        log_file.setFormatter(formatter)
        log_file.setLevel(min(number, logging.INFO))
        handlers.append(log_file)
    if stderr:
        stream = logging.StreamHandler()
        stream.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        stream.setLevel(number)
        handlers.append(stream)
    # Without a handler, Python's handler of last resort would write to the terminal.
    logging.basicConfig(level=logging.WARNING, handlers=handlers or [logging.NullHandler()], force=True)
    logging.getLogger("sapo_edge").setLevel(min(number, logging.INFO))
