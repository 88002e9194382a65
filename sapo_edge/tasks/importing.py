"""Makes a manifest and a file of questions of another data set's rows.

Rows are read and written one at a time, within the limits of a manifest's questions. What can't be a question is left
out and counted by its reason.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tomlkit

from sapo_edge.errors import ConfigError, DataError, ManifestError
from sapo_edge.plain import did_you_mean, printable
from sapo_edge.tasks.allowed import nearest
from sapo_edge.tasks.checks import CHECKS, folded
from sapo_edge.tasks.columns import Columns, Row, guess_columns, own_keys, read_row
from sapo_edge.tasks.question_data import MAX_DATA_BYTES, MAX_DATA_QUESTIONS
from sapo_edge.tasks.question_file import parse_question
from sapo_edge.tasks.questions import SPLITS, OwnQuestion
from sapo_edge.tasks.texts import MAX_TEXT_BYTES, check_text, tidy

FILES = ("manifest.toml", "tasks.jsonl")
"""What an import writes, as `sapo tasks new` does."""
PLAIN_CHECKS = tuple(name for name, kind in CHECKS.items() if not kind.needs_option())
"""Checks that a flag can name: they need no option of each question."""
LONG_ANSWER = 200
"""Characters from which an answer is hardly ever the same text."""
FIRST = 3
"""Questions that are shown."""
MAX_TRIED = 100
"""Rows in which the columns are looked for."""


class Importer:
    """Reads rows, keeps those that are questions, and tells what it has found.

    Args:
        question, answer: names of columns; None: guessed.
        check: of all questions; None: what a row says, or what fits its answer.
        code: name of the function that judges all answers; None: checks do.

    Attributes:
        names: of the columns that the arguments name.
        columns: of question and answer; None before the first row.
        kept, rows: numbers of questions, and of rows that were read.
        left_out: rows by the reason.
        checks: questions by the name of their check.
        system: text of the system turn of all conversations; "" without one.
        said: what its owner should know besides.
    """

    def __init__(
        self, question: str | None = None, answer: str | None = None, check: str | None = None, code: str | None = None
    ) -> None:
        if check is not None and check not in PLAIN_CHECKS:
            others = f"choose of {', '.join(PLAIN_CHECKS)}; others need an option in each line of tasks.jsonl"
            remedy = others if check in CHECKS else nearest(check, PLAIN_CHECKS)
            raise ConfigError(f"an import has no check {check}", remedy)
        self.names = tuple(name for name in (question, answer) if name is not None)
        self.columns: Columns | None = None
        self.kept = self.rows = 0
        self.left_out, self.checks = Counter[str](), Counter[str]()
        self.first: list[OwnQuestion] = []
        self.system = ""
        self.said: list[str] = []
        self._question, self._answer, self._check, self._code = question, answer, check, code
        self._seen: set[bytes] = set()
        self._system: str | None = None
        self._differ = False
        self._earlier = self._long = self._bytes = 0
        self._unknown: ConfigError | DataError | None = None

    def questions(self, records: Iterable[object], source: str) -> Iterator[OwnQuestion]:
        """The questions of rows, at most `MAX_DATA_QUESTIONS` of them, and `MAX_DATA_BYTES` as lines of a file."""
        for record in records:
            if self.kept == MAX_DATA_QUESTIONS:
                self.said.append(f"it ends after {MAX_DATA_QUESTIONS} questions: a manifest has no more")
                break
            self.rows += 1
            if not isinstance(record, dict) or not record:
                self.left_out["it is empty, too long, or no object"] += 1
            elif self._knows_columns(record, source) and (question := self._new_question(record)) is not None:
                self._bytes += len(as_line(question))
                if self._bytes > MAX_DATA_BYTES:
                    self.said.append(f"it ends after {MAX_DATA_BYTES // 10**6} MB of questions: a manifest has no more")
                    break
                self._count(question)
                yield question
        if self._unknown is not None and self.columns is None:
            raise self._unknown
        self._conclude()

    def _knows_columns(self, record: Mapping[str, Any], source: str) -> bool:
        """Find the columns in the first rows that have them: empty values of a row are left out."""
        try:
            self.columns = self.columns or self._find_columns(record, source)
        except (ConfigError, DataError) as error:
            if self.rows >= MAX_TRIED:
                raise
            self._unknown = self._unknown or error
            self.left_out["it lacks a column"] += 1
        return self.columns is not None

    def _new_question(self, record: Mapping[str, Any]) -> OwnQuestion | None:
        """The question of a row; None if it is left out, which is counted."""
        assert self.columns is not None
        try:
            row = read_row(record, self.columns)
            question = self._read(record, row, self.columns)
        except ManifestError as error:
            self.left_out[_reason(error)] += 1
            return None
        mark = hashlib.sha256(folded(question.question).encode()).digest()
        if mark in self._seen:
            self.left_out["an earlier one asks the same"] += 1
            return None
        self._seen.add(mark)
        if self._system is None:
            self._system = row.system
        self._differ |= row.system != self._system
        self._earlier += bool(row.earlier)
        return question

    def _find_columns(self, record: Mapping[str, Any], source: str) -> Columns:
        guessed = guess_columns(record)
        there = printable(", ".join(list(record)[:20])[:200])
        for name in self.names:
            if name not in record:
                remedy = did_you_mean(name, record, "name one of them")
                raise ConfigError(f"{source} has no column {name}", f"{remedy} (it has: {there})")
        question = self._question or (guessed.question if guessed else None)
        answer = self._answer or (guessed.answer if guessed else None)
        if question is None or answer is None:
            remedy = f"name them with --question and --answer; it has: {there}"
            raise DataError(f"which columns of {source} are question and answer can't be guessed", remedy)
        return Columns(question, answer)

    def _read(self, record: Mapping[str, Any], row: Row, columns: Columns) -> OwnQuestion:
        if self._code is not None:
            own = {"question": row.question, "answer": record[columns.answer], "check": "code", "code": self._code}
        else:
            own = own_keys(record, row, self._check)
            if own["check"] == "code":
                # Rows are others', and whoever made them chooses no code.
                own = own_keys({}, row)
            if own.get("split") not in SPLITS:
                # Of other data sets it may say anything.
                own.pop("split", None)
        return parse_question({**own, "question": tidy(own["question"]), "answer": tidy(own["answer"])})[0]

    def _count(self, question: OwnQuestion) -> None:
        self.kept += 1
        self.checks[question.check_name] += 1
        self._long += question.check_name == "exact" and len(question.answer) > LONG_ANSWER
        if len(self.first) < FIRST:
            self.first.append(question)

    def _conclude(self) -> None:
        if self._differ:
            self.said.append(
                "system turns differ between rows: none is used; write one into manifest.toml if the questions need it"
            )
        elif self._system:
            try:
                self.system = check_text("the system turn", tidy(self._system))
            except ManifestError as error:
                self.said.append(f"the system turn is left out: {error.message}")
        if self._earlier:
            many = f"of {self._earlier} conversations only the last question is asked"
            self.said.append(f"{many}, without what precedes it")
        if self._long:
            self.said.append(
                f"{self._long} answers have more than {LONG_ANSWER} characters: hardly any other text is the same, so "
                "name another column or check, or judge them by a function"
            )


def write_import(directory: Path, name: str, questions: Iterable[OwnQuestion], importer: Importer) -> tuple[Path, Path]:
    """Write a manifest and its questions into a directory, both or neither, and over no file that is there."""
    manifest, lines = (directory / file for file in FILES)
    new = directory / ".new-tasks"
    try:
        for path in (manifest, lines):
            if path.exists():
                raise ConfigError(f"{path} is there already", "give another directory; nothing was written")
        directory.mkdir(parents=True, exist_ok=True)
        try:
            with new.open("wb") as file:
                file.writelines(map(as_line, questions))
            if not importer.kept:
                raise DataError("no row is a question", _why_none(importer.left_out))
            manifest.write_text(_manifest(name, importer.system), "utf-8")
            os.replace(new, lines)
        finally:
            new.unlink(missing_ok=True)
            if not lines.exists():
                manifest.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{directory} can't be written: {error.strerror}", "give another directory") from error
    return manifest, lines


def as_line(question: OwnQuestion) -> bytes:
    """A question as a file has it, with the end of its line."""
    return json.dumps(as_record(question), ensure_ascii=False).encode() + b"\n"


def as_record(question: OwnQuestion) -> dict[str, Any]:
    """A question as a line of a file has it."""
    record: dict[str, Any] = {"question": question.question, "answer": question.answer, "check": question.check_name}
    if question.check.option and question.check.value:
        record[question.check.option] = question.check.value
    return record | ({"split": question.split} if question.split else {})


def _manifest(name: str, system: str) -> str:
    turn = {"system": system} if system else {}
    return tomlkit.dumps({"name": name, "max_tokens": 256, **turn, "tasks": [{"name": "mine", "questions": FILES[1]}]})


def _reason(error: ManifestError) -> str:
    """Why a row is left out, without what differs from row to row."""
    match = re.fullmatch(r"(question|answer) has (\d+) bytes", error.message)
    if match:
        return f"its {match[1]} has more than {MAX_TEXT_BYTES} bytes"
    return re.sub(r"\d+", "N", error.message)[:80]


def _why_none(left_out: Mapping[str, int]) -> str:
    reason, count = max(left_out.items(), key=lambda item: item[1], default=("there are no rows", 0))
    return f"of {count} rows: {reason}; name other columns or another check" if count else "give another file or split"
