"""The program's input and output, and questions to its user."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper
from typing import TextIO


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
    """Ask a question on stderr, and read whether the answer is yes."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline(16).strip().lower() in ("y", "yes")


def accept_any_text() -> None:
    """Read and print what is no text in the locale's encoding, as a name of a file may be, without an error."""
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    if isinstance(sys.stdout, TextIOWrapper):
        is_utf8 = sys.stdout.encoding.lower() == "utf-8"
        sys.stdout.reconfigure(errors="surrogateescape" if is_utf8 else "backslashreplace")
