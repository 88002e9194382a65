"""A command's output: results on stdout, narration on stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping

SCHEMA = 1
"""Version of the objects that `--json` prints."""


def narrate(text: str) -> None:
    """Print a line for the user on stderr."""
    print(text, file=sys.stderr, flush=True)


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


def print_json(record: Mapping[str, object]) -> None:
    """Print a result as one line of JSON on stdout, with the schema version unless the record has its own."""
    print(json.dumps({"v": SCHEMA, **record}), flush=True)


def discard_output() -> None:
    """Redirect stdout to nowhere, so that the interpreter doesn't complain about a closed pipe when it exits."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
