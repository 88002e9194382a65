"""Own questions that are too many for a manifest, which names them by SHA-256, number and size.

They are a file: one after the other, each the msgpack array of `OwnQuestion.as_list`. It is named after its digest and
never changes. Of an open file only the places of the questions are in memory.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from array import array
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgpack

from sapo_edge.errors import ManifestError, StateError
from sapo_edge.state.durable import make_private_directory, reported
from sapo_edge.tasks.checks import Code
from sapo_edge.tasks.questions import SPLITS, OwnQuestion, SplitQuestions, mark_of, require_training, split_places
from sapo_edge.tasks.texts import MAX_TEXT_BYTES, require

MAX_DATA_QUESTIONS = 200_000
"""Most questions of a manifest with those that it names by digest."""
MAX_DATA_BYTES = 64_000_000
"""Most bytes of such questions, in the file of their owner and as they are kept."""
KEEP_SECONDS = 7 * 24 * 3600.0
"""Time for which unused files stay in a cache."""
_BLOCK = 64 * 1024
"""Bytes that are read at once, more than any question has (25 KB)."""
# A check's option has at most 64 texts, and no text is longer.
_RECORD = {"max_ext_len": 0, "max_bin_len": 0, "max_map_len": 0, "max_array_len": 64, "max_str_len": MAX_TEXT_BYTES}


@dataclass(frozen=True, slots=True)
class QuestionData:
    """What a manifest says of such questions. Its length is their number.

    Attributes:
        count: number of questions, at least 1; a manifest has an upper bound for all of its files.
        sha256: of the file, 32 bytes.
        size: bytes of the file, at least 1.
    """

    count: int
    sha256: bytes
    size: int

    def __post_init__(self) -> None:
        named = isinstance(self.sha256, bytes) and len(self.sha256) == 32
        counted = all(type(value) is int and value > 0 for value in (self.count, self.size))
        require(named and counted, "its questions have no digest, number or size", "fetch the manifest again")

    def __len__(self) -> int:
        return self.count

    def path(self, store: Path) -> Path:
        """The file in a directory of such files."""
        return store / f"{self.sha256.hex()}.questions"

    def is_in(self, store: Path | None) -> bool:
        """Whether the file is there; `verify` and `open_questions` look at its content."""
        return store is not None and self.path(store).is_file()

    def scan(self, file: BinaryIO) -> Iterator[tuple[Any, int]]:
        """Decode the questions of a file one at a time: each with the place of its end.

        A ManifestError says that the file is not the one that is named; perhaps after its last question.
        """
        digest, count, end = hashlib.sha256(), 0, 0
        unpacker = msgpack.Unpacker(max_buffer_size=4 * _BLOCK, **_RECORD)
        try:
            while block := file.read(_BLOCK):
                digest.update(block)
                unpacker.feed(block)
                for record in unpacker:
                    count, end = count + 1, unpacker.tell()
                    yield record, end
                # Decoded, nested arrays take seventy times their bytes.
                if file.tell() - end > _BLOCK:
                    raise ValueError("a question is too long")
        except (ValueError, RecursionError, msgpack.UnpackException):
            count = 0
        is_named = (count, digest.digest(), end) == (self.count, self.sha256, self.size)
        require(is_named, "the questions are not those that the manifest names", "fetch them from another peer")

    def verify(self, path: Path) -> None:
        """A ManifestError unless a stranger's file is the one that is named, and each of its questions is valid.

        A question that a function judges is not: whoever sends one can't choose code.
        """
        with path.open("rb") as file:
            for record, _ in self.scan(file):
                is_judged = isinstance(OwnQuestion.from_list(record).check, Code)
                require(not is_judged, "a question is judged by a function of whoever made it", "train on others")


class StoredQuestions(Sequence[OwnQuestion]):
    """Some questions of a file, each read when it is used; `places` says which of its spans."""

    def __init__(self, path: Path, spans: array[int], places: Iterable[int]) -> None:
        self._path, self._spans, self._places = path, spans, array("I", places)
        self._changed = path.stat().st_mtime_ns

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> OwnQuestion:  # type: ignore[override] # nobody takes slices
        begin, end = self._spans[2 * (place := self._places[index])], self._spans[2 * place + 1]
        with reported("read", self._path), self._path.open("rb") as file:
            if os.fstat(file.fileno()).st_mtime_ns != self._changed:
                raise StateError(f"{self._path} changed while it was used", "start again: it is checked then")
            file.seek(begin)
            return OwnQuestion.from_list(msgpack.unpackb(file.read(end - begin)))


def write_questions(questions: Iterable[OwnQuestion], store: Path) -> QuestionData:
    """Write questions into a directory of such files; equal ones give the same file."""
    digest, count, size = hashlib.sha256(), 0, 0
    with new_file(store) as file:
        for question in questions:
            record = msgpack.packb(question.as_list())
            digest.update(record)
            count, size = count + 1, size + len(record)
            require(size <= MAX_DATA_BYTES, f"the questions take more than {MAX_DATA_BYTES} bytes", "leave some out")
            file.write(record)
        require(count > 0, "there are only worked examples", "add questions to train on")
        data = QuestionData(count, digest.digest(), size)
        complete(file, data.path(store))
    return data


def open_questions(data: QuestionData, store: Path | None, shown: Set[str]) -> SplitQuestions:
    """The questions by their use, as `split_questions` divides them. Reads and checks the file once.

    The `shown` ones are worked examples, and neither trained on nor held out.
    """
    if store is None or not data.is_in(store):
        remedy = "`sapo run` in its swarm fetches them from a member; alone, name the manifest's file with --manifest"
        raise ManifestError(f"the {data.count} questions that the manifest names are not here", remedy)
    path, spans = data.path(store), array("Q")

    def marks(file: BinaryIO) -> Iterator[tuple[bytes, str]]:
        begin = 0
        for record, end in data.scan(file):
            if record[0] not in shown:
                spans.extend((begin, end))
                yield mark_of(record[0]), SPLITS[SPLITS.index(record[2])]
            begin = end

    try:
        with reported("read", path), path.open("rb") as file:
            parts = split_places(marks(file))
    except (ManifestError, ValueError, LookupError, TypeError) as error:
        raise StateError(f"{path} is damaged: {error}", "remove it; it is fetched or made again") from error
    return require_training(SplitQuestions(*(StoredQuestions(path, spans, places) for places in parts)))


def remove_unused(store: Path, pattern: str) -> None:
    """Remove what fits a pattern and was not used for `KEEP_SECONDS`."""
    with suppress(OSError):
        for path in store.glob(pattern):
            # What can't be removed keeps nothing else.
            with suppress(OSError):
                state = path.stat()
                if max(state.st_atime, state.st_mtime) < time.time() - KEEP_SECONDS:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()


def complete(file: BinaryIO, path: Path) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()
    os.chmod(file.name, 0o600)
    os.replace(file.name, path)


@contextmanager
def new_file(store: Path) -> Iterator[BinaryIO]:
    """A file in a new directory inside of `store`; it is gone afterwards unless it was moved."""
    make_private_directory(store)
    # A killed process leaves its own.
    remove_unused(store, ".new-*")
    with (
        reported("write", store),
        tempfile.TemporaryDirectory(dir=store, prefix=".new-") as directory,
        (Path(directory) / "questions").open("wb") as file,
    ):
        yield file
