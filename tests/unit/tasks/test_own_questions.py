"""People's own questions: files, canonical bytes, checks, held-out sets, and drawing."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapo_edge.errors import ManifestError
from sapo_edge.rollout import TaskRef
from sapo_edge.tasks.checks import Calls, Choice, Exact, Json, Lines, Matches, Number, Pattern, Set, compile_pattern
from sapo_edge.tasks.library import library_version
from sapo_edge.tasks.manifest import MAX_MANIFEST_BYTES, Manifest, TaskEntry, load_manifest
from sapo_edge.tasks.question_data import QuestionData
from sapo_edge.tasks.question_file import MAX_HELD, MAX_MISTAKES, find_mistakes_in, read_questions, scan_questions
from sapo_edge.tasks.question_table import read_rows
from sapo_edge.tasks.questions import MAX_QUESTIONS, OwnQuestion, make_check, place, split_questions
from sapo_edge.tasks.source import TaskSource
from tests.defences.defence import fails_without

MANIFEST = 'name = "own"\n[[tasks]]\nname = "mine"\nquestions = "tasks.jsonl"\n'
ONE_OF_EACH: tuple[dict[str, Any], ...] = (
    {"question": "Say hi.", "answer": "hi"},
    {"question": "Say Hi there.", "answer": "hi there", "check": "exact", "fold": True},
    {"question": "Pi?", "answer": 3.14, "check": "number", "tolerance": 0.01},
    {"question": "Which?", "answer": "B", "check": "choice", "choices": ["A", "B"]},
    {"question": "Primes below 8?", "answer": [2, 3, 5, 7], "check": "set"},
    {"question": "Dim the hall.", "answer": {"room": "hall", "percent": 15}, "check": "json", "tolerance": 1},
    {"question": "Ring?", "answer": {"name": "ring", "arguments": {"times": 2}}, "check": "calls"},
    {"question": "Two lines?", "answer": ["one", "two"], "check": "lines"},
    {"question": "Four digits?", "answer": r"\d{4}", "check": "matches", "texts": ["2026", "!26", "!abcd"]},
    {"question": "A date?", "answer": "2026-01-31", "check": "regex", "pattern": r"\d{4}-\d\d-\d\d"},
)


def write(directory: Path, *records: object, manifest: str = MANIFEST) -> Path:
    """A manifest with a file of questions; text is written as it is."""
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    (directory / "tasks.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    path = directory / "manifest.toml"
    path.write_text(manifest)
    return path


def plain(count: int, split: str = "") -> tuple[OwnQuestion, ...]:
    return tuple(OwnQuestion(f"Question {split}{number}?", str(number), split=split) for number in range(count))


def test_questions_are_part_of_the_bytes_and_of_the_digest(tmp_path: Path) -> None:
    path = write(tmp_path, *ONE_OF_EACH)
    manifest = load_manifest(path)
    assert manifest.own_questions == len(ONE_OF_EACH) and Manifest.from_bytes(manifest.to_bytes()) == manifest
    kinds = [type(question.check) for question in inside(manifest)]
    assert kinds == [Exact, Exact, Number, Choice, Set, Json, Calls, Lines, Matches, Pattern]
    write(tmp_path, *ONE_OF_EACH[:-1], {**ONE_OF_EACH[-1], "pattern": ".*"})
    assert load_manifest(path).digest != manifest.digest
    body = msgpack.unpackb(manifest.to_bytes())
    body["tasks"][0]["questions"] = "tasks.jsonl"
    with pytest.raises(ManifestError, match="not a list"):
        Manifest.from_bytes(msgpack.packb(body))


@fails_without("tasks/checks.py", "    options.max_mem = PATTERN_MEMORY\n")
@fails_without(
    "tasks/checks.py",
    "return re2.compile(pattern, options)\n    except re2.error:",
    "return re.compile(pattern)  # type: ignore[return-value]\n    except re.error:",
)
@pytest.mark.parametrize(("line", "message"), [
    ("{", "is not valid JSON"),
    pytest.param("[" * 100_000, "is not valid JSON", id="deep"),
    ("\ud800".encode("utf-8", "surrogatepass").decode("latin-1"), "is not valid JSON"),
    ("3", "is not an object"),
    ({"question": "?"}, "it has no answer"),
    ({"question": " \n", "answer": "1"}, "question is empty"),
    ({"question": "?", "answer": " "}, "answer is empty"),
    ({"question": "?", "answer": True}, "answer is not text"),
    ({"question": "?", "answer": float("nan")}, "answer has the number nan"),
    ('{"question": "?", "answer": 1e999}', "answer has the number inf"),
    ({"question": "?", "answer": ["a", float("nan")], "check": "set"}, "answer has the number nan"),
    ({"question": "?", "answer": ["a", float("-inf")], "check": "lines"}, "answer has the number -inf"),
    ({"question": "\x1b[2J", "answer": "1"}, "control characters"),
    ({"question": "x" * 4097, "answer": "1"}, "question has 4097 bytes"),
    ({"question": "?", "answr": "1"}, "unknown key answr"),
    pytest.param({"k" * 9000: 1}, "unknown key 'kkk", id="a long key"),
    ({"question": "?", "answer": "1", "check": "\x1b[2J"}, "is not known"),
    ({"question": "?", "answer": "1", "check": "eval"}, "check eval is not known"),
    ({"question": "?", "answer": "1", "check": [1]}, "is not known"),
    ({"question": "?", "answer": "1", "split": "dev"}, "split is not known"),
    ({"question": "?", "answer": "1", "tolerance": 1}, "tolerance is not an option of check exact"),
    ({"question": "?", "answer": "one", "check": "number"}, "answer is not a number"),
    ({"question": "?", "answer": "1", "check": "number", "tolerance": -1}, "tolerance is out of bounds"),
    ({"question": "?", "answer": "C", "check": "choice", "choices": ["A", "B"]}, "not one of its choices"),
    ({"question": "?", "answer": "A", "check": "choice", "choices": ["A", "(a)"]}, "two choices are equal"),
    ({"question": "?", "answer": "A", "check": "choice"}, "choices is missing"),
    ({"question": "?", "answer": [], "check": "set"}, "answer has 0 items"),
    ({"question": "?", "answer": ["a,b"], "check": "set"}, "has a comma"),
    ({"question": "?", "answer": ["a", None], "check": "lines"}, "an item of answer is not text"),
    ({"question": "?", "answer": [["a"]], "check": "set"}, "is not text"),
    ({"question": "?", "answer": "", "check": "regex", "pattern": "("}, "pattern is not valid"),
    ({"question": "?", "answer": "", "check": "regex", "pattern": r"(a)\1"}, "pattern is not valid"),
    ({"question": "?", "answer": "", "check": "regex", "pattern": r"\pL{50}"}, "too much memory"),
])  # fmt: skip
def test_errors_name_file_and_line(tmp_path: Path, line: object, message: str) -> None:
    path = write(tmp_path, ONE_OF_EACH[0], "", line)
    with pytest.raises(ManifestError) as caught:
        load_manifest(path)
    assert f"{tmp_path / 'tasks.jsonl'}, line 3: " in str(caught.value).replace("line 3 is", "line 3: it is")
    assert message in caught.value.message and caught.value.message.isprintable()
    assert len(caught.value.message) < len(str(tmp_path)) + 200


COLUMNS = ("question", "answer", "check", "fold", "tolerance", "choices", "pattern", "texts", "split")


def inside(manifest: Manifest) -> tuple[OwnQuestion, ...]:
    """The questions that the first task of a manifest holds."""
    questions = manifest.tasks[0].questions
    assert not isinstance(questions, QuestionData)
    return questions


def table(path: Path, records: Sequence[Mapping[str, Any]], delimiter: str = ",", ending: str = "\r\n") -> Path:
    def cell(value: object) -> str:
        return "|".join(value) if isinstance(value, list) else str(value)

    with path.open("w", encoding="utf-8-sig", newline="") as file:
        rows = csv.writer(file, delimiter=delimiter, lineterminator=ending)
        rows.writerow(COLUMNS)
        rows.writerows([cell(record.get(name, "")) for name in COLUMNS] for record in records)
    return path


@pytest.mark.parametrize(("delimiter", "ending", "within"), [
    (",", "\r\n", "\n"), (";", "\r\n", "\r\n"), ("\t", "\n", "\n"), (",", "\r", "\r"),
])  # fmt: skip
def test_a_table_has_the_questions_that_lines_of_json_have(
    tmp_path: Path, delimiter: str, ending: str, within: str
) -> None:
    records: list[dict[str, Any]] = [
        {"question": 'Say "a, b; c"', "answer": "a,\nb", "fold": True, "split": "example"},
        {"question": "1 + 1 =?", "answer": "2", "check": "number", "tolerance": 0.5},
        {"question": "Grün?", "answer": "B", "check": "choice", "choices": ["A", "B"]},
        {"question": "a: z", "answer": "x, y", "check": "set"},
        {"question": "A year?", "answer": r"\d{4}", "check": "matches", "texts": ["2026", "!26"]},
        {"question": "A date", "answer": "2026-01-31", "check": "regex", "pattern": "2026-.*", "split": "test"},
    ]
    write(tmp_path, *records)
    expected = [pair[:2] for pair in read_questions(tmp_path / "tasks.jsonl")]
    records[0]["answer"] = f"a,{within}b"
    path = table(tmp_path / "Tasks.CSV", records, delimiter, ending)
    assert [pair[:2] for pair in read_questions(path)] == expected
    path = write(tmp_path, manifest=MANIFEST.replace("tasks.jsonl", "Tasks.CSV"))
    assert load_manifest(path).own_questions == 5


@pytest.mark.parametrize(("content", "message"), [
    (b"", "has no columns question and answer"),
    (b"How many?;3\r\n", "has no columns question and answer"),
    (b"question;answer\r\n", "has no questions"),
    (b"question;answer\r\n\r\nWhy?;\r\n", "line 3: it has no answer"),
    (b"question;answer\r\nWhy?;1;2\r\n", "line 2 has more cells"),
    (b'question;answer\r\nHow?;2\r\n"Why?;1\r\nWho?;3\r\n', "line 3 is not valid CSV: unexpected end"),
    pytest.param(b'question,answer\n"Why?,1\n' + b"Who?,3\n" * 20_000, "line 2 is not valid CSV: field", id="no end"),
    (b'"question,answer\nHow?,2\n', "line 1 is not valid CSV"),
    (b"question;answer\r\nWh\xff?;1\r\n", "is not UTF-8"),
    (b"question,answer,check,tolerance\nWhy?,1,number,much\n", "line 2: tolerance is not"),
    (b"question,answer,notes\nWhy?,1,mine\n", "line 2: unknown key notes; leave it out"),
    (b"question,answer,check,choices\nA or B?,A,choice,A;B\n", r"line 2: choices is not .*; .* with \| between them"),
    (b"question,answer,Question \nWhy?,1,How?\n", "has two columns of one name"),
    (b"question,answer\n" + b"a" * 200_000 + b",1\n", "is not valid CSV: field larger"),
])  # fmt: skip
def test_errors_of_a_table_name_its_lines_and_a_remedy(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "tasks.csv").write_bytes(content)
    with pytest.raises(ManifestError, match=message) as caught:
        list(read_questions(tmp_path / "tasks.csv"))
    mistakes = [] if message == "has no questions" else [str(caught.value)]
    assert caught.value.remedy and [str(mistake) for mistake in find_mistakes_in(tmp_path / "tasks.csv")] == mistakes


@settings(max_examples=60)
@given(st.binary(max_size=60), st.booleans())
def test_no_table_is_an_error_of_another_kind(data: bytes, named: bool) -> None:
    with suppress(ManifestError):
        names = {"question", "answer"}
        for _, record in read_rows(io.BytesIO((b"question,answer\n" if named else b"") + data), "tasks.csv", names):
            assert set(record) <= names


@pytest.mark.parametrize(("answer", "checks"), [([2, 3], ("set", "lines")), ({"room": "hall"}, ("json",))])
def test_a_list_or_an_object_is_told_which_checks_take_it(tmp_path: Path, answer: object, checks: list[str]) -> None:
    record = {"question": "?", "answer": answer}
    with pytest.raises(ManifestError, match="answer is not text") as caught:
        load_manifest(write(tmp_path, record))
    for check in checks:
        assert f'"{check}"' in caught.value.remedy
        load_manifest(write(tmp_path, {**record, "check": check}))


@fails_without("tasks/question_file.py", "        elif len(held) == MAX_HELD:\n            break\n")
@pytest.mark.parametrize(("content", "message", "remedy"), [
    ('{"question": "a", "answer": "b"}'.encode("utf-16"), "is UTF-16", "save it as UTF-8"),
    (b'[\n{"question": "a", "answer": "b"}\n]\n', "is one JSON list", "without the brackets"),
    (b"question;answer\na;b\n", "has no JSON objects", r"ends in \.csv"),
    (b"x\n" * MAX_HELD + b'{"question": "a", "answer": "b"}\n', "has no JSON objects", "one object a line"),
    (b'{"question": "a", "answer": "b"},\n', "line 1 is not valid JSON", "comma at its end"),
    (b"{'question': 'a', 'answer': 'b'}\n", "line 1 is not valid JSON", "double quotes"),
    ('{\u201cquestion\u201d: \u201ca\u201d}'.encode(), "line 1 is not valid JSON", "double quotes"),
    ('{"question": "\u00fc", "answer": "b"}'.encode("latin-1"), "line 1 is not UTF-8", "save the file as UTF-8"),
])  # fmt: skip
def test_a_file_of_another_form_is_recognised(tmp_path: Path, content: bytes, message: str, remedy: str) -> None:
    (tmp_path / "tasks.jsonl").write_bytes(content)
    with pytest.raises(ManifestError, match=message) as caught:
        list(read_questions(tmp_path / "tasks.jsonl"))
    assert re.search(remedy, caught.value.remedy)


@fails_without(
    "tasks/question_file.py",
    'return bool(name) and name == Path(name).name and name not in (".", "..")',
    "return bool(name)",
)
@pytest.mark.parametrize("name", ["../tasks.jsonl", "/etc/passwd", ".", "", "a/tasks.jsonl", "none.jsonl", "a\\u0000b"])
def test_only_a_file_beside_the_manifest_is_read(tmp_path: Path, name: str) -> None:
    inner = tmp_path / "inner"
    for directory in (tmp_path, inner, inner / "a"):
        directory.mkdir(exist_ok=True)
        write(directory, ONE_OF_EACH[0])
    path = write(inner, ONE_OF_EACH[0], manifest=MANIFEST.replace("tasks.jsonl", name))
    with pytest.raises(ManifestError):
        load_manifest(path)
    with pytest.raises(ManifestError, match="names a file of questions"):
        Manifest.from_toml(MANIFEST)


@pytest.mark.parametrize(("text", "message"), [
    *((MANIFEST + f"examples = {wanted}", "examples of a task is not a number") for wanted in ("true", "-1", '"2"')),
    ("examples = 3\n" + MANIFEST + "examples = 1", "examples is not a list"),
    (MANIFEST.replace('"tasks.jsonl"', "3"), "neither a file nor a list of tables"),
    (
        MANIFEST.replace('"tasks.jsonl"', '[{ question = "?", answer = { day = 2026-01-01 }, check = "json" }]'),
        "question 1: answer has a value that is no JSON; write dates between quotes",
    ),
])  # fmt: skip
def test_what_else_a_manifest_says_of_questions_is_checked(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        load_manifest(write(tmp_path, *ONE_OF_EACH, manifest=text))


@fails_without("tasks/checks.py", 'isinstance(call.get("function"), dict)', 'call.get("function")')
@pytest.mark.parametrize(("check", "value", "expected", "answer", "score"), [
    ("json", 0.0, '{"a": 1, "b": {"c": "Hall"}}', '{"b": {"c": " hall"}, "a": 1.0}', 1.0),
    ("json", 0.0, '{"a": 1, "b": 2}', '{"a": 1, "b": 3}', 0.5),
    ("json", 0.0, '{"a": 1, "b": 2}', '{"a": 1, "b": 2, "c": 3, "d": 4}', 0.5),
    ("json", 0.5, '{"a": 1}', '{"a": 1.5}', 1.0),
    ("json", 0.0, '{"a": 1}', '[{"a": 1}]', 0.0),
    ("json", 0.0, '{"a": 1}', "__import__('os').getcwd()", 0.0),
    ("calls", None, '{"name": "f", "arguments": {"x": 1}}', '{"name": "f", "parameters": {"x": 1}}', 1.0),
    ("calls", None, '{"name": "f", "arguments": {"x": 1}}',
     '{"function": {"name": "f", "arguments": "{\\"x\\":1}"}}', 1.0),
    ("calls", None, '{"name": "f", "arguments": {"x": 1, "y": 2}}', '{"name": "f", "arguments": {"x": 1}}', 0.5),
    ("calls", None, '{"name": "f", "arguments": {"x": 1}}', '{"name": "f", "function": "g"}', 0.0),
    ("calls", None, '{"name": "f", "arguments": {"x": 1}}', '{"name": "g", "arguments": {"x": 1}}', 0.0),
    ("set", None, "a, b, c", "a, b, d", 0.5),
    ("lines", None, "one\ntwo", "One\n\n two ", 1.0),
    ("lines", None, "one\ntwo", "two\none", 0.0),
    ("lines", None, "one\ntwo", "one\ntwo\nthree\nfour", 0.5),
    ("matches", ["2026", "!26"], r"\d{4}", r"[0-9][0-9][0-9][0-9]", 1.0),
    ("matches", ["2026", "!26"], r"\d{4}", r".*", 0.5),
    ("matches", ["2026", "!26"], r"\d{4}", "x" * 257, 0.0),
    ("matches", ["2026", "!26"], r"\d{4}", r"(\d)\1", 0.0),
])  # fmt: skip
def test_checks_compare_by_content(check: str, value: object, expected: str, answer: str, score: float) -> None:
    assert make_check(check, value).score(expected, answer) == score


@pytest.mark.parametrize(("check", "value", "expected"), [
    ("json", 0.0, "[1]"), ("json", 1e13, '{"a": 1}'), ("calls", None, '{"arguments": {}}'), ("lines", None, "\n"),
    ("lines", None, "x\n" * 65), ("matches", ["a", "b"], "a"), ("matches", ["a", "!b"], "."), ("matches", None, "a"),
    ("matches", ["a", "!" + "b" * 256], "a"),
])  # fmt: skip
def test_questions_that_no_answer_can_meet_are_refused(check: str, value: object, expected: str) -> None:
    with pytest.raises(ManifestError):
        OwnQuestion("?", expected, make_check(check, value))


@fails_without("tasks/question_file.py", "if os.fstat(file.fileno()).st_size > size:")
@fails_without("tasks/question_file.py", "if count == most:")
@fails_without("tasks/question_file.py", "mistakes += itertools.islice(lines, MAX_MISTAKES)", "mistakes += lines")
@fails_without(
    "tasks/manifest.py",
    '        require(count <= MAX_QUESTIONS, f"{where} has {count} questions", f"keep at most {MAX_QUESTIONS}")\n',
)
def test_a_manifest_and_a_file_have_an_end(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="has 4097 questions"):
        TaskEntry("mine", questions=plain(MAX_QUESTIONS + 1))
    path = tmp_path / "tasks.jsonl"
    line = b'{"question": "?", "answer": "1"}\n'
    path.write_bytes(line * (MAX_QUESTIONS + 5))
    *questions, mistake = scan_questions(path, MAX_QUESTIONS, 2**20)
    assert len(questions) == MAX_QUESTIONS and "has too many questions" in str(mistake)
    path.write_bytes(b"x\n" * (MAX_MISTAKES + 5) + line)
    assert len(find_mistakes_in(path)) == MAX_MISTAKES
    with pytest.raises(ManifestError, match="line 1 is not valid JSON"):
        list(read_questions(path))
    lines = [{"question": f"{number}" + "x" * 1000, "answer": "1"} for number in range(300)]
    with pytest.raises(ManifestError, match="bytes as it is sent") as caught:
        load_manifest(write(tmp_path, *lines))
    assert str(MAX_MANIFEST_BYTES) in caught.value.remedy
    (tmp_path / "tasks.jsonl").write_bytes(b" " * (2 * 1024 * 1024 + 1))
    with pytest.raises(ManifestError, match="too large"):
        load_manifest(tmp_path / "manifest.toml")
    with pytest.raises(ManifestError, match=f"has {MAX_MANIFEST_BYTES + 1} bytes"):
        Manifest.from_bytes(bytes(MAX_MANIFEST_BYTES + 1))


@fails_without(
    "tasks/checks.py", 'check_text("pattern", self.pattern, MAX_PATTERN_BYTES)', 'check_text("pattern", self.pattern)'
)
@fails_without("tasks/checks.py", "2 <= len(self.choices) <= MAX_CHOICES", "2 <= len(self.choices)")
@fails_without("tasks/checks.py", 'check_text("a choice", choice, MAX_CHOICE_BYTES)', 'check_text("a choice", choice)')
@fails_without("tasks/checks.py", "2 <= len(self.texts) <= MAX_ITEMS", "2 <= len(self.texts)")
@fails_without("tasks/checks.py", 'Flag(False).check("fold", self.fold)', "pass")
@fails_without("tasks/checks.py", "require(1 <= count <= MAX_ITEMS,", "require(1 <= count,")
@fails_without("tasks/checks.py", "Real(0.0, MAX_TOLERANCE, 0.0)", "Real(0.0, 1e300, 0.0)")
@fails_without("tasks/texts.py", "\\x9f\\ud800-\\udfff]", "\\x9f]")
@fails_without("tasks/texts.py", 'len(text.encode("utf-8"))', "len(text)")
@fails_without("tasks/questions.py", "shaped = isinstance(raw, list) and len(raw) == 5", "shaped = True")
@pytest.mark.parametrize(("answer", "check", "value"), [
    ("1", "regex", "x" * 257), ("1", "choice", [str(number) for number in range(27)]),
    ("1", "choice", ["1", "2" * 257]), (", ".join(str(number) for number in range(65)), "set", None),
    ("1", "number", 1e13), ("1" * 4097, "exact", False), ("\u00e9" * 2049, "exact", False), ("\ud800", "exact", False),
    ("\x1b[2J", "exact", False), ("1", "exact", 1), ("a", "matches", ["!b", *"a" * 64]), ("1" * 41, "number", None),
    ("1e9999", "number", None),
])  # fmt: skip
def test_a_strangers_questions_are_bounded(answer: str, check: str, value: object) -> None:
    whole = ["?", "1", "", "exact", False]
    assert OwnQuestion.from_list(whole) == OwnQuestion("?", "1")
    with pytest.raises(ManifestError):
        OwnQuestion.from_list(["?", answer, "", check, value])
    for raw in (None, "abcde", dict[str, str](), list[str](), whole[:4], [*whole, 1]):
        with pytest.raises(ManifestError, match="5 fields"):
            OwnQuestion.from_list(raw)


@fails_without("tasks/checks.py", "@lru_cache(maxsize=256)", "@lru_cache(maxsize=None)")
@fails_without("tasks/checks.py", "    options.log_errors = False\n")
def test_expressions_that_others_write_are_not_kept_without_end_nor_shown(capfd: pytest.CaptureFixture[str]) -> None:
    """Answers to such a question are expressions, of which RE2 would write invalid ones on the terminal."""
    check = Matches(("a", "!b"))
    for number in range(300):
        assert check.score("a", f"a|c{number}") == 1.0
    assert compile_pattern.cache_info().currsize <= 256
    assert check.score("a", "(\x1b[2J") == 0.0
    assert capfd.readouterr() == ("", "")


def test_worked_examples_are_neither_trained_on_nor_held_out_wherever_they_stand(tmp_path: Path) -> None:
    records = [{"question": f"{number}?", "answer": str(number)} for number in range(20)]
    examples = "".join(f'[[examples]]\nquestion = "{number}?"\nanswer = "{number}"\n' for number in range(8))
    split = TaskSource(load_manifest(write(tmp_path, *records, manifest=MANIFEST + examples))).own["mine"]
    assert {question.question for part in split for question in part} == {f"{number}?" for number in range(8, 20)}
    with pytest.raises(ManifestError, match="no question to train on"):
        TaskSource(load_manifest(write(tmp_path, *records[:8], manifest=MANIFEST + examples)))
    records[3]["split"], records[4]["split"] = "example", "test"
    manifest = load_manifest(write(tmp_path, *records, manifest=MANIFEST + "examples = 2\n"))
    shown = {question for question, _ in manifest.examples}
    assert len(shown) == 3 and ("3?", "3") in manifest.examples and "4?" not in shown and manifest.own_questions == 17
    assert shown.isdisjoint(question.question for question in inside(manifest))


@pytest.mark.parametrize(("check", "expected", "right", "wrong"), [
    (Exact(), "Paris", ["Paris"], ["paris", "Paris.", ""]),
    (Exact(fold=True), "New  York", ["new york", "NEW\nYORK"], ["newyork", ""]),
    (Number(), "1000", ["1000", "1,000", "1000.0", "1e3", "+1000"], ["1001", "1,00", "1000 km", "", "nan", "inf"]),
    (Number(0.3), "1", ["1.3", "0.7"], ["1.30001", "1e400", "9" * 5000]),
    (Number(), "12345678901234567890", ["12345678901234567890"], ["12345678901234567891"]),
    (Choice(("A", "B")), "B", ["B", "b", "(B)", "B.", "**B**"], ["A", "A B", "Banana", ""]),
    (Set(), "a, b c", ["b  c,A", "a,b c,a"], ["a", "a,b c,d", ""]),
    (Pattern(r"\d{4}"), "2026", ["1999"], ["199", "19999", "1999\n", ""]),
    (Pattern("("), "x", [], ["x", "("]),
])  # fmt: skip
def test_a_check_accepts_what_is_right_and_nothing_else(
    check: Any, expected: str, right: list[str], wrong: list[str]
) -> None:
    assert [check.score(expected, answer) == 1.0 for answer in right] == [True] * len(right)
    assert [check.score(expected, answer) == 1.0 for answer in wrong] == [False] * len(wrong)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.sampled_from(["", "train", "validation", "test"])), max_size=60))
def test_the_sets_are_disjoint_and_cover_all_questions(drawn: list[tuple[int, str]]) -> None:
    questions = [OwnQuestion(f"{number}?", "1", split=split) for number, split in drawn]
    split = split_questions(questions)
    texts = [{question.question for question in part} for part in split]
    assert set.union(*texts) == {question.question for question in questions}
    assert sum(map(len, texts)) == len(set.union(*texts)) == sum(map(len, split))
    assert {question.question for question in questions if question.split == "test"} <= texts[2]
    assert split_questions(questions[::-1]).test == split.test or len({q.question for q in questions}) < len(questions)


@pytest.mark.parametrize(
    ("count", "sizes"), [(1, (1, 0, 0)), (2, (2, 0, 0)), (3, (2, 1, 0)), (6, (4, 1, 1)), (20, (14, 3, 3))]
)
def test_few_questions_are_split_sensibly_and_a_set_that_the_file_fills_gets_no_others(
    count: int, sizes: tuple[int, int, int]
) -> None:
    assert tuple(map(len, split_questions(plain(count)))) == sizes
    split = split_questions((*plain(count), *plain(5, "test")))
    assert {question.split for question in split.test} == {"test"}
    assert (len(split.train), len(split.validation), len(split.test)) == (sizes[0] + sizes[2], sizes[1], 5)


def test_held_out_questions_are_never_drawn_and_the_same_everywhere() -> None:
    manifest = Manifest("own", (TaskEntry("mine", questions=plain(30)), TaskEntry("sums", "chain_sum")))
    source, other = TaskSource(manifest), TaskSource(Manifest.from_bytes(manifest.to_bytes()))
    held_out = {split: source.held_out(split, 200) for split in ("validation", "test")}
    assert held_out == {split: other.held_out(split, 200) for split in ("validation", "test")}
    own = {split: {task.question for task in tasks if task.ref.entry == "mine"} for split, tasks in held_out.items()}
    assert len(own["validation"]) == len(own["test"]) == 5 and own["validation"].isdisjoint(own["test"])
    drawn = {other.regenerate(TaskRef("mine", library_version(), 5, index)).question for index in range(200)}
    assert len(drawn) == 20 and drawn.isdisjoint(own["validation"] | own["test"])
    assert all(source.is_held_out(question) for question in own["validation"] | own["test"])
    task = held_out["test"][0]
    assert source.score(task, f"<answer>{task.ground_truth}</answer>") == 1.0
    with pytest.raises(ManifestError, match="no question to train on"):
        TaskEntry("mine", questions=plain(3, "test"))
    with pytest.raises(ManifestError, match="a generator"):
        TaskEntry("mine", "chain_sum", questions=plain(3))


def test_each_question_is_drawn_once_in_a_pass_and_passes_differ() -> None:
    source = TaskSource(Manifest("own", (TaskEntry("mine", questions=plain(30)),)))
    passes = [[task.question for task in source.training_tasks(3, 20 * number, 20)[0]] for number in range(3)]
    assert all(len(set(questions)) == 20 for questions in passes) and passes[0] != passes[1]
    references = [source.draw(3, index) for index in range(20)]
    assert [source.regenerate(task.ref) for task in references] == references


@given(st.integers(1, 5000), st.integers(0, 2**63), st.integers(0, 2**63))
@settings(max_examples=20, deadline=None)
def test_an_order_has_each_place_once(count: int, offset: int, step: int) -> None:
    assert {place(position, count, offset, step) for position in range(count)} == set(range(count))
