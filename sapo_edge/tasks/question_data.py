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
from sapo_edge.tasks.questions import SPLITS, OwnQuestion, SplitQuestions, mark_of, split_places
from sapo_edge.tasks.texts import MAX_TEXT_BYTES, require

MAX_DATA_QUESTIONS = 200_000
"""Most questions of a manifest with those that it names by digest."""
MAX_DATA_BYTES = 64_000_000
"""Most bytes of such questions, in the file of their owner and as they are kept."""
KEEP_SECONDS = 7 * 24 * 3600.0
"""Time for which unused files stay in a cache."""
_BLOCK = 1024 * 1024
# A check's option has at most 64 texts, and no text is longer.
_RECORD = {"max_ext_len": 0, "max_bin_len": 0, "max_map_len": 0, "max_array_len": 64, "max_str_len": MAX_TEXT_BYTES}


@dataclass(frozen=True, slots=True)
class QuestionData:
    """What a manifest says of such questions. Its length is their number.

    Attributes:
        sha256: of the file, 32 bytes.
        count: number of questions, 1 to `MAX_DATA_QUESTIONS`.
        size: bytes of the file, 1 to `MAX_DATA_BYTES`.

    Raises:
        ManifestError: if a field is outside its bounds.
    """

    sha256: bytes
    count: int
    size: int

    def __post_init__(self) -> None:
        remedy = f"keep them to {MAX_DATA_QUESTIONS} questions and {MAX_DATA_BYTES} bytes"
        require(isinstance(self.sha256, bytes) and len(self.sha256) == 32, "no digest of its questions", remedy)
        for name, value, most in (("number", self.count, MAX_DATA_QUESTIONS), ("size", self.size, MAX_DATA_BYTES)):
            require(type(value) is int and 1 <= value <= most, f"{name} of its questions is {value!r:.20}", remedy)

    def __len__(self) -> int:
        return self.count

    def as_dict(self) -> dict[str, Any]:
        """As it is encoded in a manifest."""
        return {"bytes": self.size, "count": self.count, "sha256": self.sha256}

    @classmethod
    def from_raw(cls, raw: object) -> QuestionData:
        """Read what `as_dict` gave.

        Raises:
            ManifestError: if it is anything else.
        """
        shaped = isinstance(raw, dict) and set(raw) == {"bytes", "count", "sha256"}
        require(shaped, "its questions are neither a list nor a digest", "fetch the manifest again")
        assert isinstance(raw, dict)
        return cls(raw["sha256"], raw["count"], raw["bytes"])

    def path(self, store: Path) -> Path:
        """The file in a directory of such files."""
        return store / f"{self.sha256.hex()}.questions"

    def is_in(self, store: Path | None) -> bool:
        """Whether the file is there, complete; `verify` and `open_questions` look at its content."""
        try:
            return store is not None and self.path(store).stat().st_size == self.size
        except OSError:
            return False

    def piece(self, store: Path, offset: int, size: int) -> bytes:
        """At most `size` bytes of the file, from `offset`.

        Raises:
            OSError: if it can't be read.
        """
        with self.path(store).open("rb") as file:
            file.seek(offset)
            return file.read(size)

    def scan(self, file: BinaryIO) -> Iterator[tuple[Any, int]]:
        """Decode the questions of a file one at a time: each with the place of its end.

        Raises:
            ManifestError: if the file is not the one that is named; perhaps after its last question.
        """
        digest, count = hashlib.sha256(), 0
        unpacker = msgpack.Unpacker(max_buffer_size=4 * _BLOCK, **_RECORD)
        with _refused("they are not those that the manifest names"):
            while block := file.read(_BLOCK):
                digest.update(block)
                unpacker.feed(block)
                for record in unpacker:
                    count += 1
                    if count > self.count:
                        raise ValueError
                    yield record, unpacker.tell()
            if (digest.digest(), count, unpacker.tell()) != (self.sha256, self.count, self.size):
                raise ValueError

    def verify(self, path: Path) -> None:
        """Make sure that a stranger's file is the one that is named, and that each of its questions is valid.

        Raises:
            ManifestError: if it is not.
        """
        with path.open("rb") as file:
            for record, _ in self.scan(file):
                OwnQuestion.from_list(record)


class StoredQuestions(Sequence[OwnQuestion]):
    """Some questions of a file, each read when it is used.

    Args:
        path: the file.
        ends: places of the ends of all its questions.
        chosen: which of them these are.
    """

    def __init__(self, path: Path, ends: array[int], chosen: array[int]) -> None:
        self._path, self._ends, self._chosen = path, ends, chosen
        self._changed = path.stat().st_mtime_ns

    def __len__(self) -> int:
        return len(self._chosen)

    def __getitem__(self, index: int) -> OwnQuestion:  # type: ignore[override] # nobody takes slices
        number = self._chosen[index]
        begin = self._ends[number - 1] if number else 0
        with reported("read", self._path), self._path.open("rb") as file:
            is_same = os.fstat(file.fileno()).st_mtime_ns == self._changed
            file.seek(begin)
            record = file.read(self._ends[number] - begin)
        if not is_same:
            raise StateError(f"{self._path} changed while it was used", "start again: it is checked then")
        return OwnQuestion.from_list(msgpack.unpackb(record))


def write_questions(questions: Iterable[OwnQuestion], store: Path) -> QuestionData:
    """Write questions into a directory of such files; equal ones give the same file.

    Raises:
        ManifestError: if they are too many bytes.
        StateError: if they can't be written.
    """
    digest, count, size = hashlib.sha256(), 0, 0
    with new_file(store) as file:
        for question in questions:
            record = msgpack.packb(question.as_list())
            digest.update(record)
            count, size = count + 1, size + len(record)
            require(size <= MAX_DATA_BYTES, f"the questions take more than {MAX_DATA_BYTES} bytes", "leave some out")
            file.write(record)
        data = QuestionData(digest.digest(), count, size)
        complete(file, data.path(store))
    return data


def keep_questions(data: QuestionData, source: Path | None, store: Path) -> None:
    """Copy the file from one directory of such files to another, unless it is in both or in none.

    Raises:
        StateError: if it can't be written.
    """
    if source is None or data.is_in(store) or not data.is_in(source):
        return
    with new_file(store) as file, data.path(source).open("rb") as original:
        shutil.copyfileobj(original, file, _BLOCK)
        complete(file, data.path(store))


def open_questions(data: QuestionData, store: Path | None, shown: Set[str]) -> SplitQuestions:
    """The questions by their use, as `split_questions` divides them. Reads and checks the file once.

    Args:
        data: what the manifest says of them.
        store: the directory of such files.
        shown: questions that are worked examples, and neither trained on nor held out.

    Raises:
        ManifestError: if they are not here, or all are held out.
        StateError: if the file is damaged.
    """
    if store is None or not data.path(store).is_file():
        remedy = "`sapo run` in its swarm fetches them from a member; alone, name the manifest's file with --manifest"
        raise ManifestError(f"the {data.count} questions that the manifest names are not here", remedy)
    path, ends, marks, numbers = data.path(store), array("Q"), list[tuple[bytes, str]](), array("I")
    try:
        with reported("read", path), path.open("rb") as file:
            for record, end in data.scan(file):
                if record[0] not in shown:
                    numbers.append(len(ends))
                    marks.append((mark_of(record[0]), SPLITS[SPLITS.index(record[2])]))
                ends.append(end)
    except (ManifestError, ValueError, LookupError, TypeError) as error:
        raise StateError(f"{path} is damaged: {error}", "remove it; it is fetched or made again") from error
    parts = ((numbers[place] for place in places) for places in split_places(marks))
    split = SplitQuestions(*(StoredQuestions(path, ends, array("I", part)) for part in parts))
    require(bool(split.train), "the manifest has no question to train on", "add questions that are not held out")
    return split


def clear_cache(store: Path) -> None:
    """Remove what nobody used for `KEEP_SECONDS`."""
    oldest = time.time() - KEEP_SECONDS
    with suppress(OSError):
        for path in store.iterdir():
            if path.stat().st_mtime < oldest:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def complete(file: BinaryIO, path: Path) -> None:
    """Move a new file to its place."""
    file.flush()
    os.fsync(file.fileno())
    os.chmod(file.name, 0o600)
    os.replace(file.name, path)


@contextmanager
def new_file(store: Path) -> Iterator[BinaryIO]:
    """A file in a new directory inside of `store`; it is gone afterwards unless it was moved."""
    make_private_directory(store)
    with (
        reported("write", store),
        tempfile.TemporaryDirectory(dir=store, prefix=".new-") as directory,
        (Path(directory) / "questions").open("wb") as file,
    ):
        yield file


@contextmanager
def _refused(message: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, RecursionError, msgpack.UnpackException) as error:
        raise ManifestError(f"the questions can't be used: {message}", "fetch them from another peer") from error
