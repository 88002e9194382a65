"""Own questions that a manifest names by digest: the same tasks as if they were in it, from a file that is checked."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sapo_edge.errors import ManifestError, StateError
from sapo_edge.swarm.joining.membership import Membership
from sapo_edge.tasks import question_data, question_file
from sapo_edge.tasks.checks import Choice, Exact, Number
from sapo_edge.tasks.manifest import Manifest, TaskEntry, load_manifest
from sapo_edge.tasks.question_data import MAX_DATA_BYTES, QuestionData, open_questions, write_questions
from sapo_edge.tasks.question_file import find_mistakes_in, import_questions
from sapo_edge.tasks.questions import MAX_QUESTIONS, SPLITS, OwnQuestion, split_questions
from sapo_edge.tasks.review import Placed, Room, read_own, remarks
from sapo_edge.tasks.source import TaskSource
from tests.allocated import memory_below
from tests.defences.defence import fails_without
from tests.fakes import find_the_disk_full

MAX_DATA_QUESTIONS = question_data.MAX_DATA_QUESTIONS
COUNT = MAX_QUESTIONS + 4
MANIFEST = 'name = "big"\n[[tasks]]\nname = "mine"\nquestions = "tasks.jsonl"\nexamples = 2\n'

questions = st.builds(
    OwnQuestion, st.integers(0, 40).map(lambda number: f"{number}?"), st.integers().map(str),
    st.sampled_from([Exact(), Exact(True), Number(0.5)]), st.sampled_from(SPLITS),
)  # fmt: skip


def lines(count: int = COUNT, **last: object) -> str:
    records = [{"question": f"{number} + 1?", "answer": number + 1, "check": "number"} for number in range(count)]
    return "".join(json.dumps(record) + "\n" for record in [*records, *([last] if last else [])])


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """A manifest whose questions are too many for it; the last one is a worked example."""
    (tmp_path / "tasks.jsonl").write_text(lines(question="Say hi.", answer="hi", split="example"))
    path = tmp_path / "manifest.toml"
    path.write_text(MANIFEST)
    return path


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(questions, min_size=1, max_size=60))
def test_questions_in_a_file_are_divided_as_those_in_a_manifest(store: Path, own: list[OwnQuestion]) -> None:
    data, inside = write_questions(own, store), split_questions(own)
    data.verify(data.path(store))
    if inside.train:
        assert tuple(map(tuple, open_questions(data, store, set()))) == inside
    else:
        with pytest.raises(ManifestError, match="no question to train on"):
            open_questions(data, store, set())


def test_what_does_not_fit_into_a_manifest_is_named_by_digest(manifest: Path, tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="too many questions"):
        load_manifest(manifest)
    big = load_manifest(manifest, tmp_path / "store")
    encoded = big.to_bytes()
    assert len(encoded) < 1000 and Manifest.from_bytes(encoded) == big and big.own_questions == COUNT
    (data,) = big.data
    source = TaskSource(big)
    tasks, cursor = source.training_tasks(7, 0, COUNT - 402)
    trained = {task.question for task in tasks}
    shown = {question for question, _ in big.examples}
    held_out = {task.question for split in ("validation", "test") for task in source.held_out(split, 999)}
    assert len(trained) == cursor == COUNT - 402 and len(held_out) == 400 and len(shown) == 3 and "Say hi." in shown
    assert trained.isdisjoint(held_out) and (trained | held_out).isdisjoint(shown), "each pass asks each once"
    assert source.score(tasks[0], tasks[0].ground_truth) == 1.0 and source.regenerate(tasks[0].ref) == tasks[0]
    assert [task.question for task in TaskSource(big).own_training(2)] == ["0 + 1?", "1 + 1?"]
    assert data.path(tmp_path / "store").stat().st_mode & 0o77 == 0


def test_a_file_is_read_once_until_it_changes(manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []

    def count(own: Iterable[OwnQuestion], store: Path) -> QuestionData:
        read.append(store)
        return write_questions(own, store)

    monkeypatch.setattr(question_file, "write_questions", count)
    big = load_manifest(manifest, tmp_path / "store")
    asked = TaskSource(big)
    os.rename(tmp_path / "tasks.jsonl", tmp_path / "other.jsonl")
    manifest.write_text(MANIFEST.replace("tasks", "other").replace("[[other]]", "[[tasks]]"))
    assert load_manifest(manifest, tmp_path / "store") == big and len(read) == 1
    assert asked.training_tasks(1, 0, 1), "whoever reads them goes on while another program begins to"
    with (tmp_path / "other.jsonl").open("a") as file:
        file.write('{"question": "new?", "answer": "1"}\n')
    assert load_manifest(manifest, tmp_path / "store").digest != big.digest and len(read) == 2
    big.data[0].path(tmp_path / "store").unlink()
    os.utime(next((tmp_path / "store").iterdir()), (0, 0))
    (tmp_path / "other.jsonl").write_text(lines(question="Say hi.", answer="hi", split="example"))
    assert load_manifest(manifest, tmp_path / "store") == big and len(read) == 3, "what is missing is read again"
    for path in (tmp_path / "store").iterdir():
        os.utime(path, (1, path.stat().st_mtime - question_data.KEEP_SECONDS - 1))
    load_manifest(manifest, tmp_path / "store")
    assert len(read) == 4 and len(list((tmp_path / "store").iterdir())) == 2, "what nobody uses is removed"


@pytest.mark.parametrize(("end", "message"), [
    ('{"question": "a", "answer": "b"}', f"too many questions; keep at most {COUNT}"),
    ("{" + " " * 300_000, "too large; keep it below 400000 bytes"),
    ('{"question": "a", "answer": "' + "b" * 4097 + '"}', "line 4101: answer has 4097 bytes"),
], ids=["too many", "too large", "a long answer"])  # fmt: skip
def test_bad_files_are_refused_with_their_lines(
    tmp_path: Path, end: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(question_file, "BY_DIGEST", (COUNT, 400_000))
    monkeypatch.setattr(question_file, "MAX_DATA_BYTES", 400_000)
    (tmp_path / "mine.jsonl").write_text(lines() + end)
    with pytest.raises(ManifestError) as caught:
        load_manifest(tmp_path / "mine.jsonl", tmp_path / "store")
    assert message in str(caught.value)
    assert message in str(find_mistakes_in(tmp_path / "mine.jsonl")[-1])
    assert not list(tmp_path.glob("store/*")), "nothing half-written stays"


@fails_without("tasks/question_file.py", "if os.fstat(file.fileno()).st_size > size:")
def test_the_limits_are_those_that_are_promised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (MAX_DATA_QUESTIONS, MAX_DATA_BYTES) == question_file.BY_DIGEST == (200_000, 64_000_000)
    with (tmp_path / "mine.csv").open("wb") as file:
        file.truncate(65_000_000)
    with pytest.raises(ManifestError, match="is too large"):
        load_manifest(tmp_path / "mine.csv", tmp_path / "store")
    monkeypatch.setattr(question_data, "MAX_DATA_BYTES", 50)
    with pytest.raises(ManifestError, match="more than 50 bytes"):
        write_questions((OwnQuestion("a", "b") for _ in range(9)), tmp_path)


@pytest.mark.parametrize(("reading", "doubted"), [("fit", []), ("line", []), ("tags", []), ("number", [2, 3])])
def test_doubts_follow_the_reading_and_count_questions_as_the_manifest_does(
    tmp_path: Path, reading: str, doubted: list[int]
) -> None:
    answers = ("7", "3 km", "2.50", "8")
    tables = ", ".join(f'{{ question = "{answer}?", answer = "{answer}" }}' for answer in answers)
    task = f'[[tasks]]\nname = "own"\nexamples = 1\nquestions = [{tables}]\n'
    (tmp_path / "manifest.toml").write_text(f'name = "own"\nreading = "{reading}"\n{task}')
    manifest, placed = read_own(tmp_path / "manifest.toml", tmp_path / "store")
    found = [where for where, _ in remarks(manifest, placed, None)]
    assert found == [f"task own, question {number}" for number in doubted]


def test_tags_lengthen_an_answer_where_it_is_read_in_them() -> None:
    question = OwnQuestion("Say so.", "so it is")
    manifest, room = Manifest("own", (TaskEntry("mine", questions=(question,)),)), Room(len, len, 99, 8)
    assert not list(remarks(manifest, [Placed("here", question, "fit")], room))
    ((_, remark),) = remarks(manifest, [Placed("here", question, "tags")], room)
    assert remark == "its answer has 25 tokens with its tags, more than max_tokens, 8"


def test_a_damaged_file_is_never_mixed_with_another(tmp_path: Path) -> None:
    data = write_questions((OwnQuestion(f"{number}?", "1") for number in range(9)), tmp_path)
    train = open_questions(data, tmp_path, set()).train
    assert train[0].question == "0?"
    path, content = data.path(tmp_path), data.path(tmp_path).read_bytes()
    path.write_bytes(content.replace(b"0?", b"9?"))
    os.utime(path, (1, 1))
    with pytest.raises(StateError, match="changed while it was used"):
        train[0]
    for damaged in (content[:-1], content.replace(b"0?", b"9?"), content + content, b"", b"\xdd\xff\xff\xff\xff"):
        path.write_bytes(damaged)
        with pytest.raises(StateError, match=r"is damaged.*; .*remove it"):
            open_questions(data, tmp_path, set())
    path.unlink()
    with pytest.raises(ManifestError, match="9 questions that the manifest names are not here"):
        open_questions(data, tmp_path, set())


def _named(*records: object) -> tuple[bytes, QuestionData]:
    content = b"".join(map(msgpack.packb, records))
    return content, QuestionData(len(records), hashlib.sha256(content).digest(), len(content))


@fails_without(
    "tasks/question_data.py",
    "is_named = (count, digest.digest(), end) == (self.count, self.sha256, self.size)",
    "is_named = True",
)
@fails_without(
    "tasks/question_data.py",
    "is_judged = isinstance(OwnQuestion.from_list(record).check, Code)\n                require(",
    "is_judged = False\n                require(",
)
def test_a_strangers_file_is_valid_to_its_last_question(tmp_path: Path) -> None:
    good = OwnQuestion("?", "B", Choice(("A", "B"))).as_list()
    for bad in ([*good[:4], ["A"] * 65], [*good[:4], ["A"]], good[:4], {"a": 1}, ["?", "x" * 4097, *good[2:]], 7):
        content, data = _named(good, bad)
        (tmp_path / "file").write_bytes(content)
        with pytest.raises(ManifestError):
            data.verify(tmp_path / "file")
    content, data = _named(good, good)
    (tmp_path / "file").write_bytes(content)
    data.verify(tmp_path / "file")
    (tmp_path / "cut").write_bytes(longer := content + content[:9])
    with pytest.raises(ManifestError, match="not those that the manifest names"):
        QuestionData(2, hashlib.sha256(longer).digest(), len(longer)).verify(tmp_path / "cut")
    for other in (replace(data, count=1), replace(data, count=3), replace(data, sha256=bytes(32))):
        with pytest.raises(ManifestError, match="not those that the manifest names"):
            other.verify(tmp_path / "file")


@fails_without("tasks/question_data.py", "if file.tell() - end > _BLOCK:")
def test_a_strangers_question_without_end_takes_little_memory(tmp_path: Path) -> None:
    arrays = b"\x90"
    for _ in range(3):
        arrays = b"\xdc\x00\x40" + arrays * 64
    content = b"\xdc\x00\x40" + arrays * 4  # 1 MB; decoded, 70 MB
    (tmp_path / "file").write_bytes(content)
    data = QuestionData(1, hashlib.sha256(content).digest(), len(content))
    with memory_below(16_000_000), pytest.raises(ManifestError, match="not those that the manifest names"):
        data.verify(tmp_path / "file")


@fails_without("tasks/question_file.py", "file.readline(MAX_LINE + 1)", "file.readline()")
@fails_without("tasks/question_table.py", "first = text.readline(MAX_LINE)", "first = text.readline()")
@fails_without(
    "tasks/question_table.py", 'iter(lambda: text.readline(MAX_LINE), "")', 'iter(lambda: text.readline(), "")'
)
@pytest.mark.parametrize(("name", "head", "message"), [
    ("a.jsonl", b"", "has no JSON objects"),
    ("a.jsonl", b"{", "line 1 is too long"),
    ("a.jsonl", b"[{", "is one JSON list"),
    ("a.csv", b"", "field larger than field limit"),
    ("a.csv", b"question,answer\n", "field larger than field limit"),
])  # fmt: skip
def test_a_line_without_end_takes_little_memory(tmp_path: Path, name: str, head: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(head + b"x" * 30_000_000)
    with memory_below(16_000_000):
        assert message in str(find_mistakes_in(tmp_path / name)[-1])


@fails_without("tasks/question_data.py", "require(named and counted,", "require(named,")
@pytest.mark.parametrize("change", [
    *({"count": value} for value in (0, MAX_DATA_QUESTIONS + 1, True, 1.0, "1")),
    *({"size": value} for value in (0, MAX_DATA_BYTES + 1, -1)),
    *({"sha256": value} for value in (bytes(31), "0" * 32)),
    {"path": "/etc/passwd"},
])  # fmt: skip
def test_what_a_stranger_says_of_questions_is_bounded(change: dict[str, Any]) -> None:
    entry = {"name": "a", "partial_credit": False, "questions": {"count": 1, "sha256": bytes(32), "size": 1}}
    body = {"examples": [], "max_tokens": 8, "name": "big", "protocol": 1, "system": "", "tasks": [entry]}
    entry["weight"] = 1.0
    assert Manifest.from_bytes(msgpack.packb(body)).data == (QuestionData(1, bytes(32), 1),)
    entry["questions"] |= change  # type: ignore[operator]
    with pytest.raises(ManifestError):
        Manifest.from_bytes(msgpack.packb(body))


@fails_without(
    "tasks/manifest.py", "fits = total[0] <= MAX_DATA_BYTES and total[1] <= MAX_DATA_QUESTIONS", "fits = True"
)
def test_all_questions_of_a_manifest_together_have_the_bounds_of_one_file() -> None:
    half = QuestionData(MAX_DATA_QUESTIONS // 2, bytes(32), MAX_DATA_BYTES // 2)
    tasks = tuple(TaskEntry(name, questions=half) for name in ("a", "b"))
    assert Manifest.from_bytes(Manifest("big", tasks).to_bytes()).own_questions == MAX_DATA_QUESTIONS
    for more in (QuestionData(1, bytes(32), MAX_DATA_BYTES), QuestionData(MAX_DATA_QUESTIONS, bytes(32), 1)):
        with pytest.raises(ManifestError, match="keep all files together"):
            Manifest("big", (tasks[0], TaskEntry("b", questions=more)))


def test_kept_questions_outlive_the_cache(manifest: Path, tmp_path: Path) -> None:
    big, membership = load_manifest(manifest, tmp_path / "store"), Membership(tmp_path / "state")
    membership.keep_manifest(big.to_bytes(), bytes.fromhex(big.digest), big.store)
    first = TaskSource(big).training_tasks(1, 0, 3)
    shutil.rmtree(tmp_path / "store")
    kept = membership.manifest(bytes.fromhex(big.digest))
    assert kept is not None and TaskSource(kept).training_tasks(1, 0, 3) == first


def test_what_cannot_be_removed_of_a_cache_keeps_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (".new-1", ".new-2"):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (1, 1))
    monkeypatch.setattr(shutil, "rmtree", remove := Mock(side_effect=PermissionError))
    question_data.remove_unused(tmp_path, ".new-*")
    assert remove.call_count == 2


def test_worked_examples_of_a_file_have_the_lowest_hashes_and_a_full_disk_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.jsonl").write_text(lines(50))
    own = [OwnQuestion(f"{number} + 1?", str(number + 1), Number()) for number in range(50)]
    lowest = sorted(own, key=lambda question: hashlib.sha256(question.question.encode()).digest())
    assert import_questions(tmp_path / "mine.jsonl", tmp_path / "store", 3)[1] == lowest[:3]
    monkeypatch.setattr("sapo_edge.state.durable.write_atomically", find_the_disk_full)
    with pytest.raises(StateError, match="No space left"):
        import_questions(tmp_path / "mine.jsonl", tmp_path / "store", 0)
