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


def print_json(record: Mapping[str, object]) -> None:
    """Print a result as one line of JSON on stdout, with the schema version unless the record has its own."""
    print(json.dumps({"v": SCHEMA, **record}), flush=True)


def discard_output() -> None:
    """Redirect stdout to nowhere, so that the interpreter doesn't complain about a closed pipe when it exits."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
