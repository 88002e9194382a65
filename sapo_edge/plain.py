"""Plain text for people: escaped text of others, wrapped lines, sizes, durations, counts and "did you mean"."""

from __future__ import annotations

import difflib
import os
import sys
import textwrap
import time
import unicodedata
from collections.abc import Container, Iterable, Mapping, Sequence

WIDTH = 80
"""Columns of plain output."""
NAME_WIDTH = 12
"""Columns of the names at the left."""
_INVISIBLE = {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"}


def narrate(text: str) -> None:
    """Print lines for the user on stderr, escaped: they may quote what others wrote."""
    print(printable(text, lines=True), file=sys.stderr, flush=True)


def printable(text: object, *, lines: bool = False) -> str:
    """Untrusted text with each control, invisible or unassigned character escaped; `lines` keeps line ends and tabs."""
    plain = str(text)
    # Almost every text, and fifty times as fast: Python counts all that is escaped here as not printable.
    if plain.isprintable():
        return plain
    return "".join(
        character if unicodedata.category(character) not in _INVISIBLE or (lines and character in "\n\t")
        # Escaped as in a program.
        else character.encode("unicode_escape").decode("ascii")
        for character in plain
    )  # fmt: skip


def line(name: str, text: object) -> str:
    """A name and its text beside it, wrapped."""
    indent = " " * NAME_WIDTH
    # Digests and addresses are not broken, so that they can be copied.
    return textwrap.fill(
        printable(text), WIDTH, initial_indent=f"{name:{NAME_WIDTH}}", subsequent_indent=indent,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def table(rows: Iterable[Sequence[object]], right: Container[int] = ()) -> list[str]:
    """Rows as lines, the first one the heads, in columns as wide as their longest cell, some aligned on the right."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    lines = []
    for row in texts:
        columns = enumerate(zip(row, widths, strict=True))
        cells = [cell.rjust(width) if number in right else cell.ljust(width) for number, (cell, width) in columns]
        lines.append("  ".join(cells).rstrip())
    return lines


def size(count: float) -> str:
    """Bytes as text: 999 B, 1.2 kB, 3.4 MB; at most 9999 TB, since the number may be a peer's."""
    if count < 999.5:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB"):
        count /= 1000
        # A number that rounds to 1000 takes the next unit.
        if count < 999.95:
            return f"{count:.1f} {unit}"
    return f"{min(count / 1000, 9999):.0f} TB"


def energy(watt_hours: float) -> str:
    """Watt-hours as text: 0.4 Wh, 85 Wh, 1.2 kWh."""
    if watt_hours < 9.95:
        return f"{watt_hours:.1f} Wh"
    return f"{watt_hours:.0f} Wh" if watt_hours < 999.5 else f"{watt_hours / 1000:.1f} kWh"


def duration(seconds: float) -> str:
    """Seconds as text: 45 s, 3 min 20 s, 2 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def rough_duration(seconds: float) -> str:
    """An estimate in seconds as text, as exact as one is: 40 s, 3 min, 2 h 5 min, 3 days."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{round(seconds)} s"
    if minutes < 60:
        return f"{minutes} min"
    return duration(60 * minutes) if minutes < 48 * 60 else f"{round(minutes / 1440)} days"


def format_time(seconds: float) -> str:
    """Date and time of day in this machine's time zone; "unknown" if others sent an impossible number."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):
        return "unknown"


def counted(number: int, singular: str, plural: str = "") -> str:
    """A number with its noun: 1 peer, 2 peers."""
    return f"{number} {singular if number == 1 else plural or singular + 's'}"


def reasons(counts: Mapping[str, int], limit: int | None = None) -> str:
    """Counts by name, largest first, without those of 0: "forged 2, rate 1"; beyond a limit they are only counted."""
    ordered = sorted((item for item in counts.items() if item[1]), key=lambda item: (-item[1], item[0]))
    text = ", ".join(f"{printable(name)[:40]} {number}" for name, number in ordered[:limit])
    hidden = len(ordered[limit:]) if limit is not None else 0
    return f"{text} and {counted(hidden, 'more reason')}" if hidden else text


def did_you_mean(name: object, options: Iterable[str], otherwise: str) -> str:
    """A remedy for a mistyped name: the option nearest to it, or `otherwise` if none resembles it.

    Case does not count, nor does "-" for "_".
    """
    folded = {option.lower().replace("-", "_"): option for option in options}
    # The comparison is quadratic and the name may be a peer's.
    nearest = difflib.get_close_matches(str(name)[:64].lower().replace("-", "_"), folded, n=1)
    return f"did you mean {folded[nearest[0]]}?" if nearest else otherwise


def shared_ends(texts: Iterable[str]) -> tuple[str, str]:
    """The whole words that all texts begin with, and those that all end with; they never overlap.

    Fewer than two different texts share nothing.
    """
    different = sorted(set(texts))
    if len(different) < 2:
        return "", ""
    begin = os.path.commonprefix(different)  # noqa: RUF071 - of characters, not of paths
    begin = begin[: max((index + 1 for index, character in enumerate(begin) if character.isspace()), default=0)]
    end = os.path.commonprefix([text[len(begin) :][::-1] for text in different])[::-1]  # noqa: RUF071
    end = end[next((index for index, character in enumerate(end) if character.isspace()), len(end)) :]
    return begin, end


def without_ends(text: str, ends: tuple[str, str]) -> str:
    """A text without the ends that it shares with others (see `shared_ends`); "…" stands for each."""
    begin, end = ends
    if not text.startswith(begin) or not text[len(begin) :].endswith(end):
        return text
    return f"{'…' if begin else ''}{text[len(begin) : len(text) - len(end)]}{'…' if end else ''}"
