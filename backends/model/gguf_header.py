"""The header of a GGUF file, read and checked without loading the model.

`gguf.GGUFReader` takes seconds for a vocabulary of 49,152 tokens. It also accepts a truncated download, which must be
detected before native code maps the file. So every length is checked here against the file's size before it is read.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import hashlib
import math
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from sapo_edge.errors import ModelError

MAGIC = b"GGUF"
MAX_ENTRIES = 1 << 16
MAX_STRING = 1 << 20
KEPT_ARRAY = 64
MAX_NUMBER = 1 << 31
MAX_TOKENS = 1 << 20
"""Elements of an array that is read on request: vocabularies have up to half as many."""
MAX_ELEMENTS = 3 << 20
"""Elements of arrays that are read one by one, in all: a vocabulary's tokens, merges, scores and types. An empty text
takes a microsecond and, in a sparse file, no room on the disk."""
MAX_HEADER_BYTES = 1 << 26
"""Of a header. Those of vocabularies of a quarter million tokens have a tenth of it."""
MAX_BLOCKS = 1 << 10
"""Of a model; large ones have 130."""

F32 = 0
"""float32, as in `gguf.GGMLQuantizationType`."""
REMEDY = "use a complete GGUF conversion of the model"

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING = 8
_ARRAY = 9


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: `shape` in row-major order (outputs first), `type` as in `gguf.GGMLQuantizationType`."""

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int
    bytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Header of a GGUF file.

    Attributes:
        metadata: values by key; an array of more than `KEPT_ARRAY` elements is replaced by its length.
        tensors: by name; offsets count from the start of the file.
    """

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]

    @property
    def architecture(self) -> str:
        """By llama.cpp's name."""
        return str(self.metadata["general.architecture"])

    @property
    def model_name(self) -> str:
        return self.path.stem

    @property
    def digest(self) -> str:
        return file_digest(self.path)

    def value(self, key: str, default: Any = None) -> Any:
        """A value of the architecture, such as `embedding_length`."""
        return self.metadata.get(f"{self.architecture}.{key}", default)

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number of the architecture, such as `rope.freq_base`; without a default it has to be there."""
        value = self.value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < MAX_NUMBER:
            raise ModelError(f"{self.path} has no usable {self.architecture}.{key}", REMEDY)
        return value

    def count(self, key: str, default: int | None = None) -> int:
        """Like `number`, for a whole number."""
        value = self.number(key, default)
        if not isinstance(value, int):
            raise ModelError(f"{self.path} has a {self.architecture}.{key} that is no whole number", REMEDY)
        return value


class _Reader:
    """Little-endian reads from a file, bounded by its size."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self.file = file
        self.size = os.fstat(file.fileno()).st_size
        self.path = path
        self.kept = KEPT_ARRAY
        self.elements = MAX_ELEMENTS

    def take(self, count: int) -> bytes:
        self.check(count)
        return self.file.read(count)

    def check(self, count: int) -> None:
        end = self.file.tell() + count
        if end > self.size:
            raise self.broken("ends in the middle of its header")
        if end > MAX_HEADER_BYTES:
            raise self.broken(f"has a header of more than {MAX_HEADER_BYTES:,} bytes")

    def scalar(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def text(self) -> str:
        length = self.scalar("<Q")
        if length > MAX_STRING:
            raise self.broken(f"has a string of {length} bytes in its header")
        return self.take(length).decode("utf-8", errors="replace")

    def skip_texts(self, count: int) -> None:
        """Skip strings without asking for the position at each: a vocabulary has up to half a million."""
        read, seek = self.file.read, self.file.seek
        for _ in range(count):
            prefix = read(8)
            length = int.from_bytes(prefix, "little")
            # After a seek beyond the end, the next read returns nothing.
            if len(prefix) < 8 or length > MAX_STRING:
                raise self.broken("ends in the middle of its header")
            seek(length, 1)
        self.check(0)

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            return self.array()
        if kind not in _SCALARS:
            raise self.broken(f"has a value of unknown type {kind}")
        return self.scalar(_SCALARS[kind])

    def array(self) -> Any:
        kind, count = self.scalar("<I"), self.scalar("<Q")
        if kind == _ARRAY:
            raise self.broken("has an array of arrays in its header")
        if count <= self.kept or kind == _STRING:
            self.elements -= count
            if self.elements < 0:
                raise self.broken(f"has arrays of more than {MAX_ELEMENTS:,} elements in its header")
        if count <= self.kept:
            return [self.value(kind) for _ in range(count)]
        if kind == _STRING:
            self.skip_texts(count)
        elif kind in _SCALARS:
            length = count * struct.calcsize(_SCALARS[kind])
            self.check(length)
            self.file.seek(length, 1)
        else:
            raise self.broken(f"has a value of unknown type {kind}")
        return count

    def count(self, unit: str) -> int:
        number = int(self.scalar("<Q"))
        if number > MAX_ENTRIES:
            raise self.broken(f"claims {number} {unit}")
        return number

    def broken(self, problem: str) -> ModelError:
        remedy = "download or copy it again: it is truncated or damaged"
        return ModelError(f"the model file {self.path} {problem}", remedy)


def read_header(path: Path) -> GgufHeader:
    """The checked header of a GGUF file, which is read once in a process unless the file changes.

    A start asks for it several times, and each reading skips every text of the vocabulary. Errors: see `parse_header`.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise _unreadable(path, error) from error
    return _read_version(path, status.st_ino, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=8)
def _read_version(path: Path, _file: int, _size: int, _changed: int) -> GgufHeader:
    return parse_header(path)


def parse_header(path: Path) -> GgufHeader:
    """Read and check the header of a GGUF file.

    Raises:
        ModelError: if the file can't be read, is not GGUF, or is too short for its tensors.
    """
    if path.is_dir():
        remedy = "use --backend torch or mlx, which read directories, or a GGUF file of the model"
        raise ModelError(f"{path} is a directory, but a GGUF file is needed", remedy)
    try:
        with path.open("rb") as file:
            return _read(_Reader(file, path))
    except OSError as error:
        raise _unreadable(path, error) from error


def read_arrays(path: Path, keys: Sequence[str]) -> dict[str, list[Any]]:
    """Arrays that `parse_header` leaves out of a file that it accepts, of at most `MAX_TOKENS` elements each."""
    arrays: dict[str, list[Any]] = {}
    try:
        with path.open("rb") as file:
            reader = _Reader(file, path)
            reader.take(8)
            reader.count("tensors")
            for _ in range(reader.count("values")):
                key = reader.text()
                reader.kept = MAX_TOKENS if key in keys else KEPT_ARRAY
                value = reader.value(reader.scalar("<I"))
                if key in keys and isinstance(value, list):
                    arrays[key] = value
    except OSError as error:
        raise _unreadable(path, error) from error
    if missing := next((key for key in keys if key not in arrays), None):
        raise ModelError(f"{path} has no usable {missing}", REMEDY)
    return arrays


def raw_values(path: Path, without: Sequence[str]) -> list[bytes]:
    """The metadata of a file that `parse_header` accepts, as bytes: each value with its key, apart from some keys."""
    with path.open("rb") as file:
        reader = _Reader(file, path)
        reader.kept = 0
        reader.take(8)
        reader.count("tensors")
        values = []
        for _ in range(reader.count("values")):
            start = file.tell()
            key = reader.text()
            reader.value(reader.scalar("<I"))
            end = file.tell()
            file.seek(start)
            if (value := file.read(end - start)) and key not in without:
                values.append(value)
    return values


def _unreadable(path: Path, error: OSError) -> ModelError:
    return ModelError(f"can't read the model file {path}: {error.strerror}", "check the path given as --model")


def _read(reader: _Reader) -> GgufHeader:
    from gguf.constants import GGML_QUANT_SIZES

    path = reader.path
    if reader.size < 4 or reader.take(4) != MAGIC:
        raise ModelError(f"{path} is not a GGUF file", "give a .gguf file of a small language model as --model")
    version = reader.scalar("<I")
    if version not in (2, 3):
        remedy = "convert the model again with a current llama.cpp"
        raise ModelError(f"{path} has GGUF version {version}, not 2 or 3", remedy)
    tensor_count, value_count = reader.count("tensors"), reader.count("values")
    metadata = {reader.text(): reader.value(reader.scalar("<I")) for _ in range(value_count)}
    infos: list[tuple[str, tuple[int, ...], int, int]] = []
    for _ in range(tensor_count):
        name = reader.text()
        dimensions = reader.scalar("<I")
        if not 1 <= dimensions <= 4:
            raise reader.broken(f"has a tensor of {dimensions} dimensions")
        shape = tuple(int(reader.scalar("<Q")) for _ in range(dimensions))[::-1]
        infos.append((name, shape, reader.scalar("<I"), reader.scalar("<Q")))
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 16:
        raise reader.broken("has an impossible alignment")
    start = -(-reader.file.tell() // alignment) * alignment
    sizes = {int(kind): value for kind, value in GGML_QUANT_SIZES.items()}
    tensors: dict[str, TensorInfo] = {}
    for name, shape, kind, offset in infos:
        if kind not in sizes:
            raise reader.broken(f"has a tensor of unknown type {kind}")
        block, block_bytes = sizes[kind]
        if shape[-1] % block:
            raise reader.broken("has a tensor whose rows are no whole blocks")
        tensors[name] = TensorInfo(name, shape, kind, start + offset, math.prod(shape) // block * block_bytes)
    needed = max((info.offset + info.bytes for info in tensors.values()), default=0)
    if needed > reader.size:
        raise reader.broken(f"has {reader.size:,} bytes and needs {needed:,}")
    if not isinstance(metadata.get("general.architecture"), str) or "token_embd.weight" not in tensors:
        raise ModelError(f"{path} holds no language model", "give a .gguf file of a small language model as --model")
    blocks = metadata.get(f"{metadata['general.architecture']}.block_count")
    if isinstance(blocks, int) and blocks > MAX_BLOCKS:
        # Lists of all blocks' layers are made before a missing one is noticed.
        raise reader.broken(f"claims {blocks} blocks")
    return GgufHeader(path, metadata, tensors)


def file_digest(path: Path) -> str:
    """SHA-256 (hex) of a file: the identity of a base model."""
    status = path.stat()
    return _digest(path, status.st_ino, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=64)
def _digest(path: Path, *_version: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
