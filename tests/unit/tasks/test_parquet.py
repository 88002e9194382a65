"""Questions from Parquet files that pyarrow wrote, and from files that are damaged or claim too much."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sapo_edge.errors import ManifestError, SapoError
from sapo_edge.tasks import question_parquet
from sapo_edge.tasks.importing import Importer
from sapo_edge.tasks.manifest import Manifest
from sapo_edge.tasks.question_file import find_mistakes_in, read_questions
from sapo_edge.tasks.question_parquet import MAX_NAME, MAX_OTHERS, MAX_ROW, read_parquet
from sapo_edge.tasks.questions import MAX_QUESTIONS, OwnQuestion
from tests.defences.defence import fails_without


def write(path: Path, table: dict[str, Any], **options: Any) -> Path:
    pq.write_table(pa.table(table), path, **options)
    return path


def questions(path: Path) -> list[OwnQuestion]:
    return [question for question, _, _ in read_questions(path)]


def test_a_table_of_our_keys_or_other_forms_says_what_a_line_of_json_says(tmp_path: Path) -> None:
    table = {
        "id": [7, 8, 9, 10], "question": ["Say hi.", "Pi?", "Which?", "Primes?"], "answer": ["hi", "3.14", "B", "2, 3"],
        "check": [None, "number", "choice", "set"], "tolerance": [None, 0.01, None, None],
        "choices": [None, None, ["A", "B"], None], "split": ["test", None, "train", None],
    }  # fmt: skip
    path = write(tmp_path / "own.parquet", table)
    assert [question.as_list() for question in questions(path)] == [
        ["Say hi.", "hi", "test", "exact", False], ["Pi?", "3.14", "", "number", 0.01],
        ["Which?", "B", "train", "choice", ["A", "B"]], ["Primes?", "2, 3", "", "set", None],
    ]  # fmt: skip
    manifest = tmp_path / "manifest.toml"
    manifest.write_text('name = "own"\n[[tasks]]\nname = "mine"\nquestions = "own.parquet"\n')
    assert Manifest.read(manifest).own_questions == 4
    numbers = write(tmp_path / "n.parquet", {"prompt": pa.array(["2 + 3?"]).dictionary_encode(), "answer": [5]})
    assert [question.as_list() for question in questions(numbers)] == [["2 + 3?", "5", "", "number", 0.0]]
    turns = [{"role": "user", "content": "Ho?"}, {"role": "assistant", "content": "Hm."}]
    chat = write(tmp_path / "c.parquet", {"messages": [turns]})
    assert [question.as_list() for question in questions(chat)] == [["Ho?", "Hm.", "", "exact", True]]
    count = MAX_QUESTIONS + 1
    table = {"question": [f"{n} + 1?" for n in range(count)], "answer": [*range(1, count + 1)]}
    big = Manifest.read(write(tmp_path / "many.parquet", table), tmp_path / "store")
    assert big.own_questions == count and big.data


@fails_without("tasks/question_parquet.py", "row if len(row) <= MAX_ROW else packer.pack({})", "row")
def test_a_mistake_is_told_with_its_row_and_a_long_row_is_not_passed_on(tmp_path: Path) -> None:
    path = write(tmp_path / "q.parquet", {"question": ["a?", "b?", "c?"], "answer": ["x", "", "y" * (MAX_ROW + 1)]})
    second, third = [mistake.message for mistake in find_mistakes_in(path)]
    assert (second, third) == (f"{path}, row 2: answer is empty", f"{path}, row 3: it has no question")
    nothing = pa.ListArray.from_arrays(pa.array([0, 300_000], pa.int32()), pa.nulls(300_000))
    path = write(tmp_path / "nothing.parquet", {"question": ["a?"], "answer": nothing})
    assert list(read_parquet(path, ("question", "answer"))) == [(1, {})]


def test_of_a_table_without_the_columns_those_that_it_has_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "q.parquet", {"ask": ["a?"], "say": ["x"]})
    with pytest.raises(ManifestError, match=r"has none of the columns question.*; name its columns; it has: ask, say"):
        questions(path)
    nested = write(tmp_path / "n.parquet", {"question": [{"te\x1bxt": "a?"}], "answer": ["x"]})
    with pytest.raises(ManifestError, match=r"has struct<te\\x1bxt: string> in column question; write texts"):
        questions(nested)
    # What is not read is named, too, in the first rows: an import's owner chooses of it.
    table = {"prompt": ["a?", None], "response": ["x", "y"], "\x1b" * (MAX_NAME + 1): [1, 2]}
    table |= {f"more{number}": [None, None] for number in range(MAX_OTHERS)}
    for importer, message in ((Importer(), "can't be guessed"), (Importer(answer="respons"), "mean response")):
        rows = read_parquet(write(tmp_path / "other.parquet", table), (*importer.names, "prompt", "answer"))
        with pytest.raises(SapoError, match=rf"{message}.*it has: prompt, response, more0, .*"):
            list(importer.questions((row for _, row in rows), "other.parquet"))
    # Others use an option's name for something else.
    table = {"question": ["a?"], "answer": ["x"], "choices": [{"text": ["x", "y"]}], "more": [1]}
    options = write(tmp_path / "options.parquet", table)
    assert [question.answer for question in questions(options)] == ["x"]
    # So do they with those of another form.
    table = {"question": ["a?"], "answer": ["x"], "messages": [[{"tools": [{"name": "f"}]}]], "prompt": [{"a": 1}]}
    assert [question.answer for question in questions(write(tmp_path / "forms.parquet", table))] == ["x"]
    path = write(tmp_path / "q.parquet", {"question": ["a?"], "answer": ["x"]})
    monkeypatch.setattr(question_parquet, "find_spec", lambda _name: None)
    with pytest.raises(ManifestError, match=r"need the package pyarrow; install .* with: "):
        questions(path)


GOOD = {"question": [f"{n}?" for n in range(300)], "answer": [str(n) for n in range(300)]}


def test_any_changed_bytes_give_questions_or_an_error_of_ours(tmp_path: Path) -> None:
    data, draw, outcomes = write(tmp_path / "good.parquet", GOOD).read_bytes(), random.Random(7), set[str]()
    path = tmp_path / "changed.parquet"
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    for number in range(12):
        changed = bytearray(data)
        # Half of them in the description at the end, which says how much there is of everything.
        places = range(footer, len(data) - 8) if number % 2 else range(4, footer)
        for place in draw.sample(places, 4):
            changed[place] = draw.randrange(256)
        path.write_bytes(changed)
        try:
            outcomes.add(f"{len(list(read_parquet(path, ('question', 'answer')))) == 300}")
        except ManifestError as error:
            assert str(path) in error.message and error.remedy
            outcomes.add("error")
    assert "error" in outcomes, "none of the changes was noticed"


def test_a_file_that_is_cut_or_claims_to_have_more_is_an_error(tmp_path: Path) -> None:
    data = write(tmp_path / "good.parquet", GOOD, compression="none").read_bytes()
    for kept in (0, 3, 4, 11, 12, 100, len(data) // 2, -1, -4, -8, -9):
        (tmp_path / "cut.parquet").write_bytes(data[:kept])
        with pytest.raises(ManifestError, match="fetch or write it again"):
            questions(tmp_path / "cut.parquet")
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    # Thrift's compact form: a number in zigzag, seven bits a byte. 300 rows are there as two bytes; the first time they
    # are those of the whole file.
    assert data.count(b"\xd8\x04", footer)
    billions = b"\xfe\xff\xff\xff\xff\x7f"
    described = data[footer:-8].replace(b"\xd8\x04", billions)
    path = tmp_path / "billions.parquet"
    path.write_bytes(data[:footer] + described + len(described).to_bytes(4, "little") + b"PAR1")
    with pytest.raises(ManifestError, match=r"says that it has [0-9]{10,} rows|is damaged"):
        questions(path)
    path = tmp_path / "claims.parquet"
    path.write_bytes(b"PAR1" + bytes(100) + (2**31).to_bytes(4, "little") + b"PAR1")
    with pytest.raises(ManifestError, match=f"has a description of {2**31} bytes at its end"):
        questions(path)


@pytest.mark.skipif(sys.platform != "linux", reason="macOS bounds no address space")
def test_a_bomb_ends_in_a_process_of_its_own(tmp_path: Path) -> None:
    # One text of 50 MB, 128 times: a dictionary and an index a row, which compress to almost nothing.
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 128, pa.int32()), pa.array(["x" * 50_000_000]))
    table = {"question": texts, "answer": ["1"] * 128}
    path = write(tmp_path / "bomb.parquet", table, compression="zstd", store_schema=False)
    assert path.stat().st_size < 1_000_000
    with pytest.raises(ManifestError, match="takes too much memory"):
        list(read_parquet(path, ("question", "answer")))


def test_many_columns_and_a_file_that_gives_nothing_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = write(tmp_path / "many.parquet", {f"c{number}": [1] for number in range(1001)})
    with pytest.raises(ManifestError, match="has 1001 columns"):
        questions(many)
    path = write(tmp_path / "good.parquet", GOOD)
    monkeypatch.setattr(question_parquet, "SILENT_SECONDS", 0.0)
    with pytest.raises(ManifestError, match="without giving a row"):
        questions(path)
