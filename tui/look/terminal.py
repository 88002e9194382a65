"""What terminals can do: ASCII in place of Unicode, no control characters, a smallest size, notices on the desktop."""

from __future__ import annotations

import locale
import sys
from collections.abc import Mapping
from typing import Any

from rich.segment import Segment
from textual.color import Color
from textual.events import Event, Resize
from textual.filter import LineFilter
from textual.geometry import Size
from textual.screen import Screen

from sapo_edge.plain import printable

_SIMILAR = {
    "─━═╌┄┈╍┅╴╶╸╺▔▁⎯": "-",
    "│┃║╎┆┊╷╵╹╻▏▕▎▍▌▐": "|",
    "┌┐└┘├┤┬┴┼╭╮╯╰┏┓┗┛┣┫┳┻╋╔╗╚╝╠╣╦╩╬╞╡╪┡┢": "+",
    "█▇▆▅▄▃▂▀▉▊▋▓▰■●◉": "#",
    "▒░▱□○◌": ".",
    "·•…∙": ".",
    "°": " ",
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
"""The ASCII character for each of several similar ones."""
ASCII: Mapping[int, str] = {
    **{ord(character): ascii for characters, ascii in _SIMILAR.items() for character in characters},
    **dict.fromkeys(range(0x2801, 0x2900), "*"),
    0x2800: " ",
}
"""For `str.translate`, from the characters that the app draws to ASCII; braille dots become stars."""
_CONTROLS = dict.fromkeys((*range(0x20), *range(0x7F, 0xA0)))
MAX_NOTICE = 200
"""Most characters of a notice on the desktop."""
SMALLEST = Size(20, 5)
"""Smallest size in columns and lines that the app draws for."""


def lacks_unicode(environ: Mapping[str, str]) -> bool:
    """Whether this terminal may not show more than ASCII."""
    encoding = getattr(sys.__stderr__, "encoding", None) or locale.getpreferredencoding(False)
    language = environ.get("LC_ALL") or environ.get("LC_CTYPE") or environ.get("LANG") or ""
    old = environ.get("TERM") in ("vt100", "vt220", "dumb")
    return "utf" not in encoding.lower() or language in ("C", "POSIX") or old


class AsciiFilter(LineFilter):
    """Draws only ASCII. A wide character becomes two question marks, so that columns stay aligned."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            segment if segment.text.isascii() else segment._replace(text=self._ascii(segment)) for segment in segments
        ]

    def _ascii(self, segment: Segment) -> str:
        text = segment.text.translate(ASCII)
        if text.isascii():
            return text
        # Measured as the terminal does: combining characters have no column of their own.
        return "".join(character if character.isascii() else "?" * Segment(character).cell_length for character in text)


class ControlFilter(LineFilter):
    """Leaves out control characters, which a terminal would obey: files that are edited and pasted text may have some.

    They have no column, so nothing moves.
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            segment if segment.text.isprintable() else segment._replace(text=segment.text.translate(_CONTROLS))
            for segment in segments
        ]


def at_least_smallest(event: Event) -> Event:
    """Enlarge a `Resize` event to `SMALLEST`: Textual fails to wrap lines in a widget without columns."""
    if not isinstance(event, Resize) or (event.size.width >= SMALLEST.width and event.size.height >= SMALLEST.height):
        return event
    size = Size(max(event.size.width, SMALLEST.width), max(event.size.height, SMALLEST.height))
    return Resize(size, size)


def screen_text(screen: Screen[Any]) -> str:
    """What a screen shows, as lines without spaces at their ends."""
    return "\n".join(strip.text.rstrip() for strip in screen._compositor.render_strips()) + "\n"


def desktop_notice(text: str, environ: Mapping[str, str]) -> str:
    """The control sequence (OSC 9) for a notice of one line, escaped and cut off, on the desktop; "" on a console."""
    if environ.get("TERM", "dumb") in ("linux", "dumb", "vt100", "vt220"):
        return ""
    return f"\x1b]9;{printable(text)[:MAX_NOTICE]}\x07"
