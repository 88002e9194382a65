"""Files of own questions, beside the manifest that names them: one JSON object a line, or a table as CSV.

Errors name file and line, and never quote the file: it might be another than its owner meant.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sapo_edge.errors import ManifestError
from sapo_edge.tasks.allowed import nearest, shorten
from sapo_edge.tasks.answers import CLOSE_TAG, OPEN_TAG
from sapo_edge.tasks.checks import CHECKS, Pattern, compile_pattern
from sapo_edge.tasks.question_table import read_rows
from sapo_edge.tasks.questions import MAX_QUESTIONS, OwnQuestion, make_check
from sapo_edge.tasks.readings import TAGS
from sapo_edge.tasks.texts import require

MAX_FILE_BYTES = 2 * 1024 * 1024
"""Largest file; JSON may write one byte of text as six."""
MAX_MISTAKES = 100
"""Most mistakes that are collected."""
JSON_LINES = ".jsonl"
TABLE = ".csv"
SUFFIXES = (JSON_LINES, TABLE)
"""How the names of files of questions end."""
FORM = '{"question": "...", "answer": "..."}'
EXAMPLE = "example"
"""As `split`: the question is a worked example, and neither trained on nor held out."""

_OPTIONS = tuple(dict.fromkeys(kind.option for kind in CHECKS.values() if kind.option))
_KEYS = ("question", "answer", "check", "split", *_OPTIONS)


def resolve_questions(raw: dict[str, Any], where: str, directory: Path | None) -> None:
    """Replace the own questions of a manifest's tables by what they stand for.

    A task's `questions` is the name of a file, or a list of tables; it becomes a list of `OwnQuestion`. Its worked
    examples go to those of the manifest: questions with the split `EXAMPLE`, and as many more as `examples` says.

    Args:
        raw: what TOML gave; may be anything.
        where: the manifest's name in messages.
        directory: of the file; None: a manifest may name none.

    Raises:
        ManifestError: if a file can't be read, or a question is not valid.
    """
    tasks = raw.get("tasks")
    for task in tasks if isinstance(tasks, list) else ():
        if not isinstance(task, dict) or "questions" not in task:
            continue
        questions = task["questions"]
        if isinstance(questions, str):
            pairs = _read_named(where, questions, directory)
        else:
            pairs = _read_tables(where, questions)
        wanted = task.pop("examples", 0)
        counted = isinstance(wanted, int) and not isinstance(wanted, bool) and wanted >= 0
        require(counted, f"{where}: examples of a task is not a number", "write how many of its questions to show")
        examples = [question for question, is_example in pairs if is_example]
        kept = [question for question, is_example in pairs if not is_example]
        chosen = _choose_examples(kept, wanted)
        shown = {question.question: question.answer for question in (*examples, *chosen)}
        task["questions"] = [question for question in kept if question.question not in shown]
        if shown:
            given = raw.setdefault("examples", [])
            require(isinstance(given, list), f"{where}: examples is not a list", "write it as in the shipped manifests")
            tags = (OPEN_TAG, CLOSE_TAG) if task.get("reading") == TAGS else ("", "")
            given += [[question, f"{tags[0]}{answer}{tags[1]}"] for question, answer in shown.items()]


def read_questions(path: Path) -> list[tuple[OwnQuestion, bool, int]]:
    """The questions of a file: each with whether it is a worked example, and its line, from 1.

    Raises:
        ManifestError: if the file can't be read, or a line is not valid; naming file and line.
    """
    questions, mistakes = read_lines(path)
    if mistakes:
        raise mistakes[0]
    remedy = "write one a line below the names of the columns" if _is_table(path) else "write one JSON object a line"
    require(bool(questions), f"{path} has no questions", remedy)
    return questions


def _is_table(path: Path) -> bool:
    return path.suffix.lower() == TABLE


def read_lines(path: Path) -> tuple[list[tuple[OwnQuestion, bool, int]], list[ManifestError]]:
    """The questions of a file as `read_questions` gives them, and the first `MAX_MISTAKES` mistakes in other lines.

    Raises:
        ManifestError: if the file can't be read.
    """
    questions: list[tuple[OwnQuestion, bool, int]] = []
    mistakes: list[ManifestError] = []
    data = _read_file(path)
    for number, content in read_rows(data, str(path)) if _is_table(path) else _lines(data, str(path)):
        where = f"{path}, line {number}"
        try:
            require(len(questions) < MAX_QUESTIONS, f"{path} has too many questions", f"keep at most {MAX_QUESTIONS}")
            record = _parse(content, where) if isinstance(content, bytes) else content
            questions.append((*_read_record(record, where), number))
        except ManifestError as error:
            mistakes.append(error)
            if len(mistakes) == MAX_MISTAKES or len(questions) == MAX_QUESTIONS:
                break
    return questions, mistakes


def _read_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no path"
        raise ManifestError(f"{path} can't be read: {reason}", "check its name and permissions") from error
    require(len(data) <= MAX_FILE_BYTES, f"{path} is too large", f"keep it below {MAX_FILE_BYTES} bytes")
    return data


def _lines(data: bytes, where: str) -> Iterator[tuple[int, bytes]]:
    """The lines that are not empty, each with its number.

    Raises:
        ManifestError: if the whole file is of another form.
    """
    require(not data.startswith((b"\xff\xfe", b"\xfe\xff")), f"{where} is UTF-16", "save it as UTF-8")
    data = data.removeprefix(b"\xef\xbb\xbf")
    remedy = "write each object on a line of its own, without the brackets and the commas between"
    require(not data.lstrip().startswith(b"["), f"{where} is one JSON list", remedy)
    lines = [(number, line) for number, line in enumerate(data.split(b"\n"), start=1) if line.strip()]
    plain = lines and not any(line.lstrip().startswith(b"{") for _, line in lines)
    remedy = f"write one object a line: {FORM}; a table of a spreadsheet needs a name that ends in {TABLE}"
    require(not plain, f"{where} has no JSON objects", remedy)
    yield from lines


def _parse(line: bytes, where: str) -> object:
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
    """Whether a text is the name of a file in the same directory."""
    return bool(name) and name == Path(name).name and name not in (".", "..")


def _read_named(where: str, name: str, directory: Path | None) -> list[tuple[OwnQuestion, bool]]:
    require(directory is not None, f"{where} names a file of questions", "give the path of the manifest's file")
    assert directory is not None
    require(
        is_beside(name), f"{where}: questions is not the name of a file beside it", 'write questions = "tasks.jsonl"'
    )
    return [(question, is_example) for question, is_example, _ in read_questions(directory / name)]


def _read_tables(where: str, tables: object) -> list[tuple[OwnQuestion, bool]]:
    listed = isinstance(tables, list) and 1 <= len(tables) <= MAX_QUESTIONS
    remedy = f'write questions = "tasks.jsonl", or 1 to {MAX_QUESTIONS} tables'
    require(listed, f"{where}: questions is neither a file nor a list of tables", remedy)
    assert isinstance(tables, list)
    return [_read_record(table, f"{where}, question {number}") for number, table in enumerate(tables, start=1)]


def _read_record(record: object, where: str) -> tuple[OwnQuestion, bool]:
    """The question of a line, and whether it is a worked example."""
    try:
        return _question(record)
    except ManifestError as error:
        raise ManifestError(f"{where}: {error.message}", error.remedy) from error


def _question(record: object) -> tuple[OwnQuestion, bool]:
    require(isinstance(record, dict), "it is not an object", 'write {"question": "...", "answer": "..."}')
    assert isinstance(record, dict)
    for key in record:
        if key not in _KEYS:
            raise ManifestError(f"unknown key {shorten(key)}", nearest(str(key), _KEYS))
    for key in ("question", "answer"):
        require(key in record, f"it has no {key}", "each needs a question and its answer")
    name = record.get("check", "exact")
    if not isinstance(name, str) or name not in CHECKS:
        raise ManifestError(f"check {shorten(name)} is not known", nearest(str(name)[:64], CHECKS))
    own = CHECKS[name].option
    for option in _OPTIONS:
        require(option not in record or option == own, f"{option} is not an option of check {name}", _remedy(option))
    check = make_check(name, record.get(own))
    if isinstance(check, Pattern):
        remedy = "write it in the syntax of RE2, without backreferences and looking around, and simpler"
        require(compile_pattern(check.pattern) is not None, "pattern is not valid, or needs too much memory", remedy)
    split = record.get("split", "")
    is_example = split == EXAMPLE
    question = OwnQuestion(record["question"], _answer(record["answer"], name), check, "" if is_example else split)
    return question, is_example


def _remedy(option: str) -> str:
    name = next(name for name, kind in CHECKS.items() if kind.option == option)
    return f'add "check": "{name}", or leave {option} out'


def _answer(answer: Any, check: object) -> Any:
    """The answer as text: JSON may have a number, and a list for a set."""
    if isinstance(answer, list) and check == "set":
        whole = all(isinstance(item, str | int | float) and "," not in str(item) for item in answer)
        require(whole, "an item of answer is not text, or has a comma", "write texts without commas")
        return ", ".join(str(_answer(item, check)) for item in answer)
    if isinstance(answer, dict) and check in ("json", "calls"):
        return json.dumps(answer, ensure_ascii=False, separators=(",", ":"))
    if isinstance(answer, list) and check == "lines":
        return "\n".join(map(str, answer))
    if isinstance(answer, int | float) and not isinstance(answer, bool):
        return repr(answer)
    return answer


def _choose_examples(questions: list[OwnQuestion], count: int) -> list[OwnQuestion]:
    """The questions with the lowest hashes of those that no file holds out."""
    free = [question for question in questions if question.split in ("", "train")]
    return sorted(free, key=lambda question: hashlib.sha256(question.question.encode()).digest())[:count]
