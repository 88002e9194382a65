"""Data sets of the hub, from a small hub here: which files are a split, and what is said where there are none."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub.constants
import pytest

from sapo_edge.backends.hub.data import MAX_FILE_BYTES, fetch_files, find_split
from sapo_edge.errors import DataError, ModelError
from tests.hub import Hub


@pytest.fixture
def data(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub with data sets: one that the hub converted, and one with files of its owner's."""
    hub.directory = tmp_path / "data"
    files = (
        "sums/refs/convert/parquet/main/train/0000.parquet", "sums/refs/convert/parquet/main/train/0001.parquet",
        "sums/refs/convert/parquet/main/test/0000.parquet", "sums/refs/convert/parquet/socratic/train/0000.parquet",
        "sums/main/sums.py", "own/main/data/train-00000-of-00001.parquet", "own/main/README.md",
        "two/refs/convert/parquet/first/a/0000.parquet", "two/refs/convert/parquet/first/b/0000.parquet",
        "two/refs/convert/parquet/second/partial-train/0000.parquet", "text/main/rows.txt",
    )  # fmt: skip
    for number, name in enumerate(files):
        path = hub.directory / "datasets" / "someone" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"rows %d" % number)
    return hub.directory


@pytest.mark.parametrize(
    ("name", "configuration", "split", "files"),
    [
        ("sums", None, None, ["main/train/0000.parquet", "main/train/0001.parquet"]),
        ("sums", None, "test", ["main/test/0000.parquet"]),
        ("sums", "socratic", None, ["socratic/train/0000.parquet"]),
        ("own", None, None, ["data/train-00000-of-00001.parquet"]),
        ("own", "default", "train", ["data/train-00000-of-00001.parquet"]),
        ("two", "second", None, ["second/partial-train/0000.parquet"]),
    ],
)
def test_a_split_is_found_in_the_conversion_or_in_files_of_its_owner(
    data: Path, name: str, configuration: str | None, split: str | None, files: list[str]
) -> None:
    found = find_split(f"hf:someone/{name}", configuration, split)
    assert [file.rfilename for file in found.files] == files
    (branch,) = (data / "datasets/someone" / name).rglob(files[0])
    assert next(fetch_files(found, lambda *_: None)).read_bytes() == branch.read_bytes()


def test_a_file_arrives_when_it_is_wanted_and_no_code_ever(hub: Hub, data: Path) -> None:
    files = fetch_files(find_split("hf:someone/sums", None, None), lambda *_: None)
    next(files)
    del files
    fetched = {path for _, path, _ in hub.requests if "resolve" in path}
    assert fetched and all(path.endswith("main/train/0000.parquet") for path in fetched)


@pytest.mark.parametrize(
    ("name", "configuration", "split", "message"),
    [
        ("hf:someone/sums", None, "tets", r"has no split tets; did you mean test\? \(there are: test, train\)"),
        ("hf:someone/sums", "all", None, r"has no configuration all; .*\(there are: main, socratic\)"),
        ("hf:someone/two", None, None, "has 2 configurations; name one with --configuration: first, second"),
        ("hf:someone/two", "first", None, "has 2 splits; name one with --split: a, b"),
        ("hf:someone/text", None, None, "has no Parquet files; download a file of it"),
        ("hf:someone/none", None, None, "is private or not on the hub; check the name"),
        ("hf:../else", None, None, "is no name of a data set on the hub; give hf:OWNER/NAME"),
    ],
)
def test_what_is_missing_is_told_with_what_there_is(
    data: Path, name: str, configuration: str | None, split: str | None, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        find_split(name, configuration, split)


def test_gated_data_damaged_files_and_no_network_name_their_remedies(
    hub: Hub, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.gated.add("someone/sums")
    with pytest.raises(DataError, match="is gated; accept its terms"):
        find_split("hf:someone/sums", None, None)
    hub.gated.clear()
    split = find_split("hf:someone/sums", None, "test")
    hub.damaged.add("0000.parquet")
    with pytest.raises(ModelError, match="arrived damaged"):
        list(fetch_files(split, lambda *_: None))
    split.files[0].size = MAX_FILE_BYTES + 1
    with pytest.raises(DataError, match="has 512 MB; give a smaller split"):
        list(fetch_files(split, lambda *_: None))
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DataError, match=r"can't be downloaded .*; check the network"):
        find_split("hf:someone/sums", None, None)
