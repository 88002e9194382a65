"""Manifests: what is accepted, what is rejected with which message, and the encoding."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapo_edge.errors import ExitCode, ManifestError
from sapo_edge.policy import Message
from sapo_edge.tasks.about import SKILL_WORDS
from sapo_edge.tasks.checks import CHECKS
from sapo_edge.tasks.manifest import MAX_MANIFEST_BYTES, Manifest, TaskEntry, load_manifest, shipped_manifests
from tests.allocated import memory_below
from tests.defences.defence import fails_without

TINY = Manifest("tiny", (TaskEntry("sums", "chain_sum", {"max_terms": 2, "min_terms": 2}),), max_tokens=16)
ENTRY = TINY.tasks[0].as_dict()
HEAD = 'name = "test"\n'
TASK = '[[tasks]]\nname = "sums"\ngenerator = "chain_sum"\n'


def configured(generator: str, config: str) -> str:
    return f'{HEAD}[[tasks]]\nname = "t"\ngenerator = "{generator}"\nconfig = {config}'


def refusal(text: str) -> ManifestError:
    with pytest.raises(ManifestError) as caught:
        Manifest.from_toml(text, "test.toml")
    assert caught.value.exit_code is ExitCode.USAGE and caught.value.remedy
    return caught.value


def test_a_manifest_survives_its_encoding_also_at_its_bounds_and_has_one_digest() -> None:
    for name in shipped_manifests():
        manifest = load_manifest(name)
        decoded = Manifest.from_bytes(manifest.to_bytes())
        assert decoded == manifest and decoded.digest == manifest.digest
    assert set(SKILL_WORDS) == {name for name in shipped_manifests() if load_manifest(name).name == name}
    other = TaskEntry("sums", "chain_sum", {"min_terms": 2, "max_terms": 2}, weight=1)
    assert Manifest("tiny", (other,), max_tokens=16).digest == TINY.digest
    whole, real = (TaskEntry("m", "binary_matrix", {"p_zero": value}) for value in (1, 1.0))
    assert Manifest("m", (whole,)).digest == Manifest("m", (real,)).digest
    entries = [TaskEntry(f"{number:064}", "gcd", weight=1000.0, reading="fit", form=0.5) for number in range(63)]
    smallest = TaskEntry("s", "gcd", weight=0.001, reading="fit")
    for tokens in (1, 2048):
        manifest = Manifest("n" * 64, (*entries, smallest), "s" * 4096, ((("q" * 4096, "a"),) * 8), tokens)
        assert Manifest.from_bytes(manifest.to_bytes()) == manifest


def test_a_prompt_is_the_system_text_the_worked_examples_and_the_question() -> None:
    manifest = Manifest("p", TINY.tasks, system="Be brief.", examples=(("1 + 1?", "<answer>2</answer>"),))
    assert manifest.prompt_for("2 + 2?") == (
        Message("system", "Be brief."), Message("user", "1 + 1?"), Message("assistant", "<answer>2</answer>"),
        Message("user", "2 + 2?"),
    )  # fmt: skip
    assert TINY.prompt_for("2 + 2?") == (Message("user", "2 + 2?"),)


def test_a_manifest_loads_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(HEAD + TASK, "utf-8")
    written = Manifest("test", (TaskEntry("sums", "chain_sum", reading="fit"),))
    assert load_manifest(file) == load_manifest(str(file)) == written
    file.write_text(HEAD + TASK, "utf-8-sig")
    assert load_manifest(file).name == "test", "Windows' editors write a byte order mark"
    with pytest.raises(ManifestError, match=r"; .*did you mean starter.*reasoning-gym-nine"):
        load_manifest("startr")


@fails_without("tasks/manifest.py", '{0,63}", re.ASCII)', '*", re.ASCII)')
@fails_without(
    "tasks/manifest.py",
    '        require(known, f"{where}: reading is not known", nearest(str(self.reading)[:64], READINGS))\n',
)
@fails_without("tasks/manifest.py", '_FORM.check(f"{where}: form", self.form)', "self.form")
@pytest.mark.parametrize(("text", "message", "remedy"), [
    ("name = ", "not valid TOML", "correct"),
    ("a = " + "[" * 5000, "not valid TOML", "correct"),
    ("a = " + "9" * 5000, "not valid TOML", "correct"),
    (HEAD, "tasks is missing", "add tasks"),
    (TASK, "name is missing", "add name"),
    (HEAD + "tasks = []", "0 tasks", "1 to 64"),
    (HEAD + "tasks = 3", "tasks is not a list", "shipped"),
    (HEAD + "tasks = [3]", "task 1 is not a table", "shipped"),
    (HEAD + TASK * 2, "two tasks have the name sums", "its own name"),
    (HEAD + TASK * 65, "65 entries", "64"),
    ('nam = "test"\n' + TASK, "unknown key nam", "did you mean name?"),
    (HEAD + "maxtokens = 3\n" + TASK, "unknown key maxtokens", "did you mean max_tokens?"),
    (HEAD + TASK + "wieght = 2", "unknown key wieght", "did you mean weight?"),
    (HEAD + TASK + "config = { max_term = 2 }", "no setting max_term", "max_terms"),
    (HEAD + TASK + "config = { seed = 2 }", "no setting seed", "choose one of"),
    (HEAD + TASK + "config = { size = 2 }", "no setting size", "choose one of"),
    (HEAD + TASK + "config = { max_terms = 13 }", "max_terms is out of bounds", "1 to 12"),
    (HEAD + TASK + "config = { max_terms = 2.0 }", "max_terms is not an integer", "integer from 1 to 12"),
    (HEAD + TASK + "config = { max_terms = true }", "max_terms is not an integer", "integer from 1 to 12"),
    (HEAD + TASK + "config = { max_terms = 1 }", "min_terms is 2 and max_terms is 1", "at most"),
    (HEAD + TASK + "config = { allow_negation = 1 }", "not a boolean", "true or false"),
    (HEAD + TASK + "config = 3", "config is not a table", "key = value"),
    (HEAD + TASK + "weight = 0", "weight is out of bounds", "0.001"),
    (HEAD + TASK + "weight = true", "weight is not a number", "0.001"),
    (HEAD + TASK + "weight = nan", "weight is out of bounds", "0.001"),
    (HEAD + TASK + "weight = inf", "weight is out of bounds", "0.001"),
    (HEAD + TASK + 'reading = "all"', "reading is not known", "choose one of"),
    (HEAD + TASK + "reading = [1]", "reading is not known", "choose one of"),
    (HEAD + TASK + "form = 0.6", "form is out of bounds", "from 0 to 0.5"),
    (HEAD + TASK + "form = -1", "form is out of bounds", "from 0 to 0.5"),
    (HEAD + TASK + 'partial_credit = "no"', "partial_credit is not a boolean", "true or false"),
    (HEAD + TASK.replace("sums", "Sums!"), "is not a name", "a-z"),
    (HEAD.replace("test", "t" * 65) + TASK, "is not a name", "a-z"),
    (HEAD.replace("test", "te\\u001bst") + TASK, "is not a name", "a-z"),
    (HEAD + "max_tokens = 0\n" + TASK, "max_tokens", "1 to 2048"),
    (HEAD + "max_tokens = true\n" + TASK, "max_tokens", "1 to 2048"),
    (HEAD + "protocol = 2\n" + TASK, "another protocol than 1", "update"),
    (HEAD + "protocol = true\n" + TASK, "another protocol than 1", "update"),
    (HEAD + "system = 3\n" + TASK, "system is not text", "quotes"),
    (HEAD + 'system = "\\u001b[2J"\n' + TASK, "control characters", "remove"),
    (HEAD + 'examples = [["1 + 1?", "\\u001b[2J"]]\n' + TASK, "control characters", "remove"),
    (HEAD + f'system = "{"x" * 4097}"\n' + TASK, "system has 4097 bytes", "4096"),
    (HEAD + 'reading = "tags"\nexamples = [["1+1?", "2"]]\n' + TASK, "has no answer tags", "<answer>...</answer>"),
    (HEAD + 'examples = [["1 + 1?"]]\n' + TASK, "example 1 is not a table", "shipped"),
    (HEAD + 'examples = [{ question = "1 + 1?" }]\n' + TASK, "answer is missing", "add answer"),
    (HEAD + 'examples = [{ question = 1, answer = "" }]\n' + TASK, "question of example 1 is not text", "quotes"),
    (HEAD + f"examples = {[['q', '<answer>a</answer>']] * 9}\n" + TASK, "9 entries", "8"),
    (HEAD + TASK.replace("chain_sum", "countdown"), "countdown evaluates text as code", "choose one of"),
    (HEAD + TASK.replace("chain_sum", "string_insertion"), "string_insertion evaluates text as code", "chain_sum"),
    (HEAD + TASK.replace("chain_sum", "ransom_note"), "ransom_note can't be verified by others: ", "chain_sum"),
    (HEAD + TASK.replace("chain_sum", "time_intervals"), "depend on the current day", "chain_sum"),
    (HEAD + TASK.replace("chain_sum", "chainsum"), "chainsum is not on the allow-list", "did you mean chain_sum"),
    (configured("base_conversion", "{ min_base = 7, max_base = 7 }"), "", "below"),
    (configured("base_conversion", "{ max_base = 37 }"), "", "2 to 36"),
    (configured("binary_matrix", "{ p_zero = 0 }"), "", "0.01 to 1"),
    (configured("binary_matrix", '{ p_zero = "1" }'), "", "0.01 to 1"),
    (configured("basic_arithmetic", '{ format_style = "rude" }'), "", "simple, natural"),
    (configured("basic_arithmetic", '{ operators = ["+", "+"] }'), "", "each once"),
    (configured("basic_arithmetic", '{ operators = ["**"] }'), "", "each once"),
    (configured("basic_arithmetic", "{ operators = [] }"), "", "each once"),
    (configured("basic_arithmetic", '{ operators = "+" }'), "", "each once"),
    (configured("basic_arithmetic", "{ allow_parentheses = false }"), "answers are wrong", 'or "*" alone'),
    (configured("basic_arithmetic", '{ allow_parentheses = false, operators = ["*", "+"] }'), "answers are wrong", ""),
    (configured("spell_backward", '{ data_file = "/etc/passwd" }'), "", "choose one of"),
    (configured("bf", "{ difficulty = 3 }"), "", "leave it out"),
    (configured("gcd", "{ min_value = 5, max_value = 5 }"), "", "below"),
    (configured("number_filtering", "{ max_value = nan }"), "", "number from"),
])  # fmt: skip
def test_an_invalid_manifest_is_rejected_with_a_remedy(text: str, message: str, remedy: str) -> None:
    error = refusal(text)
    assert message in error.message and remedy in error.remedy


@fails_without("tasks/allowed.py", "text if text.isprintable() and len", "text if len")
@fails_without("tasks/allowed.py", "and len(text) <= _SHOWN else", "else")
@pytest.mark.parametrize("key", ["\\u001b", "k" * 9000, "\\u001b" + "k" * 9000])
def test_messages_never_carry_a_long_or_unprintable_key(key: str) -> None:
    error = refusal(HEAD + TASK + f'"{key}" = 1')
    assert len(str(error)) < 400 and str(error).isprintable()


@pytest.mark.parametrize("text", ["a." * 30000 + "a=1", "[" + '"a" . ' * 9000 + "a]", "x = {" + "'a'." * 9000 + "a=1}"])
def test_a_key_of_many_parts_is_rejected_before_it_is_parsed(text: str) -> None:
    # tomllib allocated 3.6 GB for the first.
    with memory_below(1024 * 1024), pytest.raises(ManifestError, match="more than 32 parts"):
        Manifest.from_toml(text)


@fails_without("tasks/manifest.py", "file.read(MAX_FILE_BYTES + 1)", "file.read()")
def test_files_that_cannot_be_read_are_an_error(tmp_path: Path) -> None:
    large, latin = tmp_path / "large.toml", tmp_path / "latin.toml"
    with large.open("wb") as sparse:
        sparse.truncate(50_000_000)
    latin.write_bytes(b'name = "\xff"')
    for file, message in ((large, "too large"), (latin, "not UTF-8"), (tmp_path / "none.toml", "can't be read")):
        with memory_below(1024 * 1024), pytest.raises(ManifestError, match=message):
            Manifest.read(file)


@pytest.mark.parametrize(("name", "data"), [
    ("mine.json", b'[{"question": "?", "answer": "1"}]'), ("mine.tsv", b"question\tanswer\n?\t1\n"),
    ("mine.xlsx", b"PK\x03\x04\xff"), ("mine.txt", b"x" * 70_000),
], ids=("list", "table", "workbook", "large"))  # fmt: skip
def test_a_file_of_questions_with_another_name_is_told_how_names_end(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ManifestError) as caught:
        load_manifest(tmp_path / name)
    assert "that of a file of questions in .jsonl, .csv, .parquet" in caught.value.remedy


def packed(**changes: Any) -> bytes:
    return bytes(msgpack.packb({**msgpack.unpackb(TINY.to_bytes()), **changes}))


@pytest.mark.parametrize("data", [
    b"", b"\xc1", TINY.to_bytes() + b"\x00", TINY.to_bytes()[:-1], b"\x91" * 60_000, b"\xdd\xff\xff\xff\xff",
    b"\x00" * (MAX_MANIFEST_BYTES + 1), msgpack.packb([1, 2]), msgpack.packb({b"name": 1}), packed(name=b"tiny"),
    packed(unknown=1), packed(tasks=[[]]), packed(system=msgpack.Timestamp(0)),
    bytes(msgpack.packb(dict(reversed(msgpack.unpackb(TINY.to_bytes()).items())))),
])  # fmt: skip
def test_bytes_that_are_not_a_canonical_manifest_are_rejected(data: bytes) -> None:
    with pytest.raises(ManifestError):
        Manifest.from_bytes(data)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=8) | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([*msgpack.unpackb(TINY.to_bytes())]), st.sampled_from([*ENTRY, "reading", "form"]), VALUES)
def test_no_value_of_a_field_raises_anything_but_a_manifest_error(key: str, inner: str, value: object) -> None:
    for changes in ({key: value}, {"tasks": [{**ENTRY, inner: value}]}):
        with contextlib.suppress(ManifestError):
            Manifest.from_bytes(packed(**changes))


@fails_without("tasks/checks.py", "isinstance(self.choices, list | tuple) and ")
@fails_without("tasks/checks.py", "isinstance(self.texts, list | tuple) and ")
@fails_without("tasks/checks.py", 'isinstance(call.get("function"), dict)', 'call.get("function")')
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("value", [
    None, True, -7, 2**64 - 1, float("nan"), "ab", b"ab", [], ["a", 7], ["a", ["!b"]], {"a": 1}, "[" * 4000,
    '{"name": "f", "function": "g"}', '{"name": ["f"], "arguments": 7}',
])  # fmt: skip
def test_no_value_of_a_question_raises_anything_but_a_manifest_error(check: str, value: object) -> None:
    for question in (["?", "1", "", check, value], ["?", value, "", check, None], [value, "1", value, "exact", None]):
        entry = {"name": "mine", "questions": [question], "partial_credit": False, "weight": 1.0}
        with contextlib.suppress(ManifestError):
            Manifest.from_bytes(packed(tasks=[entry]))


IMPORTING = """
import sys
import sapo_edge.tasks.verifiers
from sapo_edge.tasks.manifest import Manifest, TaskEntry, load_manifest
from sapo_edge.tasks.source import TaskSource
TaskSource(load_manifest("home"))
late = "reasoning_gym", "numpy", "sympy", "torch", "sapo_edge.tasks.skills.home"
print([name for name in late if name in sys.modules])
TaskSource(Manifest("one", (TaskEntry("sums", "chain_sum"),))).draw(1, 0)
print("matplotlib" in sys.modules)
"""


def test_importing_manifests_and_tasks_loads_no_library_and_drawing_none_for_plots() -> None:
    pytest.importorskip("reasoning_gym")
    done = subprocess.run([sys.executable, "-c", IMPORTING], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "False"]
