"""A command's output and input: results on stdout, narration and questions on stderr."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO

from sapo_edge.plain import narrate

SCHEMA = 1
"""Version of the objects that `--json` prints."""


def print_json(record: Mapping[str, object]) -> None:
    """Print a result as one line of JSON on stdout, with the schema version unless the record has its own."""
    print(json.dumps({"v": SCHEMA, **record}), flush=True)


def emit(record: Mapping[str, object], lines: Iterable[str], as_json: bool) -> None:
    """Print a result on stdout: as one line of JSON, or its lines for people, which are made only then."""
    if as_json:
        print_json(record)
    else:
        for line in lines:
            print(line)


def report(record: Mapping[str, object], text: str, as_json: bool) -> None:
    """Say what a command did: as JSON on stdout, or to the user on stderr."""
    if as_json:
        print_json(record)
    else:
        narrate(text)


def as_typed(command: str, home: Path | None) -> str:
    """A quoted command of `sapo` as the user can type it: a virtual environment's program need not be on the path."""
    program = sys.argv[0] if os.path.basename(sys.argv[0]) in ("sapo", "sapo-edge") else "sapo"
    name = "sapo" if shutil.which("sapo") == os.path.abspath(program) else shlex.quote(program)
    return command.replace("sapo", name, 1) + ("" if home is None else f" --home {shlex.quote(str(home))}")


def discard_output() -> None:
    """Redirect stdout to nowhere, so that the interpreter doesn't complain about a closed pipe when it exits."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def has_terminal() -> bool:
    """Whether input and output are a terminal."""
    return _is_terminal(sys.stdin) and _is_terminal(sys.stdout)


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


def can_ask() -> bool:
    """Whether somebody sees a question on stderr and can answer it."""
    if not (_is_terminal(sys.stdin) and _is_terminal(sys.stderr)):
        return False
    try:
        # The system suspends a job in the background that reads from its terminal.
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, AttributeError):
        return True


def ask_yes(question: str) -> bool:
    """Ask a question on stderr, and read whether the answer is yes; without an input it is not."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin is not None and sys.stdin.readline(16).strip().lower() in ("y", "yes")


def accept_any_text() -> None:
    """Read and print what is no text in the locale's encoding, as a name of a file may be, without an error."""
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    if isinstance(sys.stdout, TextIOWrapper):
        is_utf8 = sys.stdout.encoding.lower() == "utf-8"
        sys.stdout.reconfigure(errors="surrogateescape" if is_utf8 else "backslashreplace")


def say_next(manifest: Path) -> None:
    """Say what to do with a new manifest."""
    for command in ("tasks check", "tasks preview", "run --manifest"):
        narrate(f"  sapo {command} {shlex.quote(str(manifest))}")


def read_line(prompt: str, most: int) -> str:
    """A line of stdin; "" at its end. One of more than `most` characters ends behind them, and the rest is left out.

    Where somebody types, the prompt stands before it on stderr.
    """
    if sys.stdin.isatty():
        print(prompt, end="", file=sys.stderr, flush=True)
    text = rest = sys.stdin.readline(most + 2)
    while len(text) > most and rest and not rest.endswith("\n"):
        # The end of a line that is too long is not another one.
        rest = sys.stdin.readline(most)
    return text
