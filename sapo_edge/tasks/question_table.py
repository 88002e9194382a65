"""Own questions from a spreadsheet: a CSV file whose first line names the columns, as a JSON object names its keys."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterator, Set
from contextlib import suppress
from typing import Any, BinaryIO

from sapo_edge.errors import ManifestError
from sapo_edge.tasks.texts import require, tidy

DELIMITERS = ",;\t"
"""Where a comma separates decimals, spreadsheets write semicolons."""
MAX_LINE = 2 * 1024 * 1024
"""Longest line of a file of questions, in bytes or characters; JSON may write one byte of text as six."""
CHOICES = "|"
"""Separates choices, and texts to match, in a cell."""
_TRUTH = {"true": True, "false": False, "1": True, "0": False}


def read_rows(file: BinaryIO, where: str, needed: Set[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a table: each with its last line, from 1, and its cells by column; empty cells are left out.

    A ManifestError says that it is no table in UTF-8, lacks a `needed` column, has two columns of one name, or a row
    with more cells than the first.
    """
    text = io.TextIOWrapper(file, "utf-8-sig", newline="")
    begin = 1
    try:
        first = text.readline(MAX_LINE)
        delimiter = max(DELIMITERS, key=first.count)
        # What is longer comes in parts: it has a field that is too large for the library, or cells beyond the columns.
        lines = itertools.chain([first], iter(lambda: text.readline(MAX_LINE), ""))
        rows = csv.reader(lines, delimiter=delimiter, strict=True)
        columns = [name.strip().lower() for name in next(rows, [])]
        remedy = "name the columns in the first line: question, answer, and others if you need them"
        require(needed <= set(columns), f"{where} has no columns {' and '.join(sorted(needed, reverse=True))}", remedy)
        named = [name for name in columns if name]
        twice = f"{where} has two columns of one name"
        require(len(named) == len(set(named)), twice, "name each column once; a column without a name is left out")
        begin = rows.line_num + 1
        for row in rows:
            begin, place = rows.line_num + 1, f"{where}, line {rows.line_num}"
            cells = [tidy(cell) for cell in row]
            fits = not any(cells[len(columns) :])
            require(fits, f"{place} has more cells than the first line", 'put texts that have a delimiter in "quotes"')
            if any(cells):
                pairs = zip(columns, cells, strict=False)
                yield rows.line_num, {name: _value(name, cell) for name, cell in pairs if name and cell}
    except UnicodeDecodeError as error:
        raise ManifestError(f"{where} is not UTF-8", 'save it as "CSV UTF-8"') from error
    except csv.Error as error:
        # A quote that nothing ends takes in the lines behind it, so the place of the error says nothing.
        remedy = 'correct the row that begins there: end the "quotes" around a text, and double those inside of it'
        raise ManifestError(f"{where}, line {begin} is not valid CSV: {error}", remedy) from error


def _value(column: str, cell: str) -> Any:
    """A cell as JSON would have it; as it is where it means nothing, so that the question's own check says so."""
    if column in ("choices", "texts"):
        return [choice.strip() for choice in cell.split(CHOICES)]
    if column == "fold":
        return _TRUTH.get(cell.lower(), cell)
    if column == "tolerance":
        with suppress(ValueError):
            return float(cell)
    return cell
