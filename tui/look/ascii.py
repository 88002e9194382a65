"""For terminals without Unicode: every character outside ASCII is drawn as one that resembles it."""

from __future__ import annotations

import locale
import os
import sys
from collections.abc import Mapping

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

_LIKE = {
    "─━═╌┄┈╍┅╴╶╸╺▔▁⎯": "-",
    "│┃║╎┆┊╷╵╹╻▏▕▎▍▌▐": "|",
    "┌┐└┘├┤┬┴┼╭╮╯╰┏┓┗┛┣┫┳┻╋╔╗╚╝╠╣╦╩╬╞╡╪┡┢": "+",
    "█▇▆▅▄▃▂▀▉▊▋▓▰■●◉": "#",
    "▒░▱□○◌": ".",
    "·•…∙": ".",
    "→▸▶►❯›": ">",
    "←◂◀◄‹⏎↵": "<",
    "↑▲△": "^",
    "↓▼▽": "v",
    "✓✔": "+",
    "✗✘×": "x",
    "–—‐‑": "-",
    "‘’": "'",
    "“”": '"',
}
"""Characters by what stands for them; braille, of which curves are made, is a star."""


def table() -> Mapping[int, str]:
    """For `str.translate`: a character of ASCII for each that the app draws."""
    found = {ord(character): like for characters, like in _LIKE.items() for character in characters}
    found.update(dict.fromkeys(range(10241, 10496), "*"))
    found[0x2800] = " "
    return found


def needed(environ: Mapping[str, str] | None = None) -> bool:
    """Whether this terminal can't be trusted with more than ASCII."""
    environ = os.environ if environ is None else environ
    encoding = getattr(sys.__stderr__, "encoding", None) or locale.getpreferredencoding(False)
    told = environ.get("LC_ALL") or environ.get("LC_CTYPE") or environ.get("LANG") or ""
    return "utf" not in encoding.lower() or told in ("C", "POSIX") or environ.get("TERM") in ("vt100", "vt220", "dumb")


class AsciiFilter(LineFilter):
    """Draws ASCII alone. A wide character becomes two question marks, so that columns stay where they are."""

    def __init__(self) -> None:
        super().__init__()
        self._table = table()

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Transform a line."""
        return [
            segment if segment.text.isascii() else Segment(self._ascii(segment), segment.style, segment.control)
            for segment in segments
        ]

    def _ascii(self, segment: Segment) -> str:
        text = segment.text.translate(self._table)
        if text.isascii():
            return text
        # Measured as the terminal does: combining characters have no column of their own.
        return "".join(character if character.isascii() else "?" * Segment(character).cell_length for character in text)
