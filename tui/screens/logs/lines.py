"""A record of the log as rows of text: time, level, source, words, with the matches of a search marked."""

from __future__ import annotations

from collections.abc import Callable

from rich.cells import cell_len
from rich.console import Console
from rich.style import Style
from rich.text import Text

from sapo_edge.tui.screens.logs.words import Record, moment

MAX_ROWS = 8
"""Rows that one record takes when lines are wrapped; its detail has the rest."""
WIDE = 90
"""Columns from which levels are written out."""


class LogLines:
    """How records are drawn.

    Args:
        width: columns that there are.
        wrap: whether what does not fit goes on in another row.
        query: what is marked, in lower case; "" marks nothing.
        style: the style of "time", "source", "debug", "warning", "error" and "match".
    """

    def __init__(self, width: int, wrap: bool, query: str, style: Callable[[str], Style]) -> None:
        self._width, self._wrap, self._query, self._style = width, wrap, query, style

    @property
    def margin(self) -> int:
        """Columns before the words: cursor, time, level."""
        return 1 + 9 + (8 if self._width >= WIDE else 2)

    def fits(self, record: Record) -> bool:
        """Whether a record certainly takes one row, found without drawing it."""
        return not self._wrap or cell_len(record.text) + cell_len(record.source) + self.margin + 2 <= self._width

    def draw(self, record: Record, console: Console) -> list[Text]:
        """Its rows, the first column of each left for the cursor."""
        head, body = self._head(record), self._body(record)
        if not self._wrap:
            return [Text.assemble(head, body)]
        width = max(8, self._width - self.margin)
        rows = list(body.wrap(console, width)) or [Text()]
        if len(rows) > MAX_ROWS:
            rows = rows[:MAX_ROWS]
            rows[-1].truncate(width - 2)
            rows[-1].append(" …")
        indent = Text(" " * self.margin)
        return [Text.assemble(head if number == 0 else indent, row) for number, row in enumerate(rows)]

    def _head(self, record: Record) -> Text:
        # Those of no interest stay empty, so that the others are seen.
        level = "" if record.level == "info" else record.level
        level = f"{level:8}" if self._width >= WIDE else f"{level[:1].upper():2}"
        style = self._style(record.level) if record.level in ("warning", "error", "debug") else Style()
        return Text.assemble(" ", (f"{moment(record, '%H:%M:%S'):9}", self._style("time")), (level, style), end="")

    def _body(self, record: Record) -> Text:
        body = Text(end="", overflow="fold")
        if record.source:
            body.append(f"{record.source}  ", self._style("source"))
        body.append(record.text, self._style("debug") if record.level == "debug" else Style())
        plain = body.plain.casefold()
        # Where folding the case changes the length, columns would not fit.
        if self._query and len(plain) == len(body.plain):
            start = plain.find(self._query)
            while start >= 0:
                body.stylize(self._style("match"), start, start + len(self._query))
                start = plain.find(self._query, start + len(self._query))
        return body
