"""Files of own questions, beside the manifest that names them: one JSON object a line, or a table as CSV or Parquet.

Errors name file and line, and never quote the file: it might be another than its owner meant.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgpack

from sapo_edge.errors import ManifestError
from sapo_edge.state.durable import replace_file
from sapo_edge.tasks.allowed import nearest, shorten
from sapo_edge.tasks.checks import CHECKS, Pattern, compile_pattern
from sapo_edge.tasks.columns import FORMS, KEYS, NAMES, OPTIONS, as_question, guess_columns
from sapo_edge.tasks.question_data import (
    MAX_DATA_BYTES,
    MAX_DATA_QUESTIONS,
    QuestionData,
    remove_unused,
    write_questions,
)
from sapo_edge.tasks.question_parquet import PARQUET, read_parquet
from sapo_edge.tasks.question_table import MAX_LINE, read_rows
from sapo_edge.tasks.questions import MAX_QUESTIONS, OwnQuestion, make_check
from sapo_edge.tasks.readings import CLOSE_TAG, OPEN_TAG, TAGS
from sapo_edge.tasks.texts import opened, require

MAX_MISTAKES = 100
BY_DIGEST = MAX_DATA_QUESTIONS, MAX_DATA_BYTES
"""Most questions and bytes of files whose questions the manifest names by digest."""
MAX_HELD = 1000
"""Most lines without an object before the first one."""
JSON_LINES = ".jsonl"
TABLE = ".csv"
SUFFIXES = (JSON_LINES, TABLE, PARQUET)
"""How the names of files of questions end."""
FORM = '{"question": "...", "answer": "..."}'
EXAMPLE = "example"
"""As `split`: the question is a worked example, and neither trained on nor held out."""


def resolve_questions(raw: dict[str, Any], where: str, directory: Path | None, store: Path | None = None) -> None:
    """Replace the own questions of a manifest's tables by what they stand for.

    A task's `questions` is the name of a file, or a list of tables; it becomes a list of `OwnQuestion`. Its worked
    examples go to those of the manifest: questions with the split `EXAMPLE`, and as many more as `examples` says.

    Args:
        directory: of the file; None: a manifest may name none.
        store: where to put the questions of files, which become `QuestionData`; None: they are a part of the manifest.

    Raises:
        TooManyError: if there are too many questions for the manifest.
    """
    tasks = raw.get("tasks")
    for task in tasks if isinstance(tasks, list) else ():
        if not isinstance(task, dict) or "questions" not in task:
            continue
        questions, wanted = task["questions"], task.pop("examples", 0)
        counted = isinstance(wanted, int) and not isinstance(wanted, bool) and wanted >= 0
        require(counted, f"{where}: examples of a task is not a number", "write how many of its questions to show")
        path = _named(where, questions, directory) if isinstance(questions, str) else None
        if path is not None and store is not None:
            task["questions"], examples = import_questions(path, store, wanted)
        else:
            pairs = [pair[:2] for pair in read_questions(path)] if path else read_listed(where, questions)
            kept = [question for question, is_example in pairs if not is_example]
            examples = [question for question, is_example in pairs if is_example] + _choose_examples(kept, wanted)
            texts = {question.question for question in examples}
            task["questions"] = [question for question in kept if question.question not in texts]
        if examples:
            given = raw.setdefault("examples", [])
            require(isinstance(given, list), f"{where}: examples is not a list", "write it as in the shipped manifests")
            tags = (OPEN_TAG, CLOSE_TAG) if task.get("reading") == TAGS else ("", "")
            shown = {question.question: question.answer for question in examples}
            given += [[question, f"{tags[0]}{answer}{tags[1]}"] for question, answer in shown.items()]


def import_questions(path: Path, store: Path, wanted: int) -> tuple[QuestionData, list[OwnQuestion]]:
    """Put the questions of a file into a directory of `QuestionData`, and choose its worked examples.

    What was read before is not read again: an entry named after the digest of the file says what it gave.

    As many worked examples are `wanted` beside those that the file names; they stay among the questions.
    """
    remove_unused(store, "*")
    before = _digest(path)
    entry = store / f"{before}-{wanted}{path.suffix.lower()}"
    with suppress(OSError, ValueError, TypeError, ManifestError):
        raw, examples = msgpack.unpackb(entry.read_bytes())
        data = QuestionData(**raw)
        if data.is_in(store):
            for used in (entry, data.path(store)):
                # Who reads the questions meanwhile knows by the time of the last change that they are the same.
                os.utime(used, ns=(time.time_ns(), used.stat().st_mtime_ns))
            return data, [OwnQuestion.from_list(example) for example in examples]
    shown: list[OwnQuestion] = []
    chosen: list[OwnQuestion] = []

    def others() -> Iterator[OwnQuestion]:
        for question, is_example, _ in read_questions(path, *BY_DIGEST):
            if is_example:
                shown.append(question)
            else:
                # More examples than a manifest may have are an error there, whatever their number.
                chosen[:] = _choose_examples([*chosen, question], min(wanted, 99))
                yield question

    data = write_questions(others(), store)
    shown += chosen
    if before == _digest(path):
        replace_file(entry, msgpack.packb([asdict(data), [question.as_list() for question in shown]]))
    return data, shown


def _digest(path: Path) -> str:
    with _opened(path, MAX_DATA_BYTES) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class TooManyError(ManifestError):
    """The questions are more than a limit; a larger one may permit them."""


def read_questions(
    path: Path, most: int = MAX_QUESTIONS, size: int = MAX_LINE
) -> Iterator[tuple[OwnQuestion, bool, int]]:
    """The questions of a file, one at a time: each with whether it is a worked example, and its line, from 1.

    Raises:
        TooManyError: if they are more than `most`, or the file has more than `size` bytes.
        ManifestError: if the file can't be read, or at a line that is not valid; naming file and line.
    """
    line = None
    for line in scan_questions(path, most, size):
        if isinstance(line, ManifestError):
            raise line
        yield line
    is_table = path.suffix.lower() in (TABLE, PARQUET)
    remedy = "write one a row below the names of the columns" if is_table else "write one JSON object a line"
    require(line is not None, f"{path} has no questions", remedy)


def find_mistakes_in(path: Path) -> list[ManifestError]:
    """The first `MAX_MISTAKES` mistakes in a file's lines."""
    mistakes: list[ManifestError] = []
    try:
        lines = (line for line in scan_questions(path, *BY_DIGEST) if isinstance(line, ManifestError))
        mistakes += itertools.islice(lines, MAX_MISTAKES)
    except ManifestError as error:
        mistakes.append(error)
    return mistakes


def scan_questions(path: Path, most: int, size: int) -> Iterator[tuple[OwnQuestion, bool, int] | ManifestError]:
    """What `read_questions` gives, and in its place the errors of lines that are not valid.

    Raises:
        TooManyError: if the file has too many bytes. Too many questions are the last of the errors.
        ManifestError: if it can't be read, or is of another form as a whole.
    """
    count = 0
    with _opened(path, size) as file:
        for number, content in _contents(file, path, None):
            where = f"{path}, {place_name(path)} {number}"
            try:
                record = _parse(content, where) if isinstance(content, bytes) else content
                question, is_example = _read_record(record, where)
            except ManifestError as error:
                yield error
                continue
            if count == most:
                yield TooManyError(f"{path} has too many questions", f"keep at most {most}")
                return
            yield question, is_example, number
            count += 1


def scan_records(path: Path, size: int, names: Sequence[str]) -> Iterator[object]:
    """The lines or rows of a file as they are; None for a line that is no JSON.

    Of a Parquet file, the columns with these names are read.
    """
    with _opened(path, size) as file:
        for _, content in _contents(file, path, names):
            try:
                yield _parse(content, str(path)) if isinstance(content, bytes) else content
            except ManifestError:
                yield None


def _contents(
    file: io.BufferedReader, path: Path, names: Sequence[str] | None
) -> Iterator[tuple[int, bytes | dict[str, Any]]]:
    """The lines or rows of a file. Of Parquet the named columns; None: those that say a question."""
    if path.suffix.lower() == TABLE:
        yield from read_rows(file, str(path), {"question", "answer"} if names is None else set())
    elif path.suffix.lower() != PARQUET:
        yield from _lines(file, str(path))
    else:
        for number, row in read_parquet(path, names or (*KEYS, *NAMES)):
            # A table has columns for other uses as well, which are no mistake as a mistyped key is.
            own = KEYS if guess_columns(row) == FORMS[0] else (*KEYS, *NAMES)
            yield number, {key: value for key, value in row.items() if key in own} if names is None else row


def place_name(path: Path) -> str:
    """What a number of its lines is called."""
    return "row" if path.suffix.lower() == PARQUET else "line"


@contextmanager
def _opened(path: Path, size: int) -> Iterator[io.BufferedReader]:
    with opened(path) as file:
        if os.fstat(file.fileno()).st_size > size:
            raise TooManyError(f"{path} is too large", f"keep it below {size} bytes")
        yield file


def _lines(file: io.BufferedReader, where: str) -> Iterator[tuple[int, bytes]]:
    """The lines that are not empty, each with its number."""
    # Until the first object, the lines may be those of a file of another form.
    held: list[tuple[int, bytes]] | None = []
    require(file.peek(2)[:2] not in (b"\xff\xfe", b"\xfe\xff"), f"{where} is UTF-16", "save it as UTF-8")
    if file.peek(3)[:3] == b"\xef\xbb\xbf":
        file.read(3)
    for number, line in enumerate(_beginnings(file), start=1):
        if held is None or not line.strip():
            yield from [(number, line)] if line.strip() else []
            continue
        remedy = "write each object on a line of its own, without the brackets and the commas between"
        require(bool(held) or not line.lstrip().startswith(b"["), f"{where} is one JSON list", remedy)
        held.append((number, line))
        if line.lstrip().startswith(b"{"):
            yield from held
            held = None
        elif len(held) == MAX_HELD:
            break
    remedy = f"write one object a line: {FORM}; a table of a spreadsheet needs a name that ends in {TABLE}"
    require(not held, f"{where} has no JSON objects", remedy)


def _beginnings(file: io.BufferedReader) -> Iterator[bytes]:
    """The lines; of one that is too long its first `MAX_LINE` bytes and one more."""
    before = b"\n"
    while part := file.readline(MAX_LINE + 1):
        if before.endswith(b"\n"):
            yield part
        before = part


def _parse(line: bytes, where: str) -> object:
    require(len(line) <= MAX_LINE, f"{where} is too long", "shorten its texts")
    try:
        text = line.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise ManifestError(f"{where} is not UTF-8", "save the file as UTF-8") from error
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"{where} is not valid JSON", _json_remedy(text)) from error


def _json_remedy(text: str) -> str:
    """What is most likely wrong with a line."""
    if text.endswith(","):
        return "leave out the comma at its end"
    if "\r" in text:
        return "end lines with LF or CR LF"
    if text.startswith("{'") or "\u201c" in text:
        return 'write texts between plain double quotes: "'
    return f"write one JSON object a line: {FORM}"


def is_beside(name: str) -> bool:
    return bool(name) and name == Path(name).name and name not in (".", "..")


def _named(where: str, name: str, directory: Path | None) -> Path:
    require(directory is not None, f"{where} names a file of questions", "give the path of the manifest's file")
    assert directory is not None
    remedy = 'write questions = "tasks.jsonl"'
    require(is_beside(name), f"{where}: questions is not the name of a file beside it", remedy)
    return directory / name


def read_listed(where: str, tables: object) -> list[tuple[OwnQuestion, bool]]:
    listed = isinstance(tables, list) and 1 <= len(tables) <= MAX_QUESTIONS
    remedy = f'write questions = "tasks.jsonl", or 1 to {MAX_QUESTIONS} tables'
    require(listed, f"{where}: questions is neither a file nor a list of tables", remedy)
    assert isinstance(tables, list)
    return [_read_record(table, f"{where}, question {number}") for number, table in enumerate(tables, start=1)]


def _read_record(record: object, where: str) -> tuple[OwnQuestion, bool]:
    """The question of a line, and whether it is a worked example."""
    try:
        return parse_question(as_question(record))
    except ManifestError as error:
        raise ManifestError(f"{where}: {error.message}", error.remedy) from error


def parse_question(record: object) -> tuple[OwnQuestion, bool]:
    require(isinstance(record, dict), "it is not an object", f"write {FORM}")
    assert isinstance(record, dict)
    for key in record:
        if key not in KEYS:
            remedy = f"leave it out, as `sapo tasks import` does, or correct it: {nearest(str(key), KEYS)}"
            raise ManifestError(f"unknown key {shorten(key)}", remedy)
    for key in ("question", "answer"):
        require(key in record, f"it has no {key}", "each needs a question and its answer")
    name = record.get("check", "exact")
    if not isinstance(name, str) or name not in CHECKS:
        raise ManifestError(f"check {shorten(name)} is not known", nearest(str(name)[:64], CHECKS))
    own = CHECKS[name].option
    for option in OPTIONS:
        require(option not in record or option == own, f"{option} is not an option of check {name}", _remedy(option))
    check = make_check(name, record.get(own))
    if isinstance(check, Pattern):
        remedy = "write it in the syntax of RE2, without backreferences and looking around, and simpler"
        require(compile_pattern(check.pattern) is not None, "pattern is not valid, or needs too much memory", remedy)
    split = record.get("split", "")
    is_example = split == EXAMPLE
    answer = check.text_of(record["answer"])
    remedy = 'write it between quotes; a list needs "check": "set" or "lines", an object "json" or "calls"'
    require(isinstance(answer, str), "answer is not text", remedy)
    return OwnQuestion(record["question"], answer, check, "" if is_example else split), is_example


def _remedy(option: str) -> str:
    name = next(name for name, kind in CHECKS.items() if kind.option == option)
    return f'add "check": "{name}", or leave {option} out'


def _choose_examples(questions: list[OwnQuestion], count: int) -> list[OwnQuestion]:
    """The questions with the lowest hashes of those that no file holds out."""
    free = [question for question in questions if question.split in ("", "train")]
    return sorted(free, key=lambda question: hashlib.sha256(question.question.encode()).digest())[:count]
