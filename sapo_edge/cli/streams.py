"""The program's input and output."""

from __future__ import annotations

import sys
from io import TextIOWrapper
from typing import TextIO


def has_terminal() -> bool:
    """Whether input and output are a terminal."""
    return _is_terminal(sys.stdin) and _is_terminal(sys.stdout)


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


def accept_any_text() -> None:
    """Read and print what is no text in the locale's encoding, as a name of a file may be, without an error."""
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    if isinstance(sys.stdout, TextIOWrapper):
        is_utf8 = sys.stdout.encoding.lower() == "utf-8"
        sys.stdout.reconfigure(errors="surrogateescape" if is_utf8 else "backslashreplace")
