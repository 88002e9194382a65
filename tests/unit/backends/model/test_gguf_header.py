"""The header of a GGUF file: read correctly, or refused with a remedy."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

import pytest

from sapo_edge.backends.model import gguf_header
from sapo_edge.backends.model.gguf_header import MAX_ENTRIES, GgufHeader, parse_header, read_arrays, read_header
from sapo_edge.errors import ModelError
from tests.allocated import memory_below
from tests.defences.defence import fails_without
from tests.fuzzing.targets.files import entry, text
from tests.models import CHAT_TEMPLATE, SHAPES, VOCABULARY, Headers, Models

HUGE = (1 << 64) - 1


def tensor(name: str, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def gguf(entries: list[bytes], tensors: list[bytes], data: bytes = b"", version: int = 3) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(entries)) + b"".join(entries) + b"".join(tensors)
    return head + b"\0" * (-len(head) % 32) + data


ARCHITECTURE = entry("general.architecture", 8, text("llama"))
EMBEDDING = tensor("token_embd.weight", (4, 2), 0, 0)


def refused(path: Path, content: bytes) -> ModelError:
    path.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        parse_header(path)
    assert caught.value.message and caught.value.remedy
    return caught.value


@pytest.mark.parametrize("name", list(SHAPES))
def test_a_header_is_read(headers: Headers, name: str) -> None:
    header, shape = headers[name], SHAPES[name]
    assert (header.architecture, header.model_name) == (shape.gguf, name)
    assert header.count("embedding_length") == shape.width and header.value("no such thing", 7) == 7
    assert header.metadata["tokenizer.chat_template"] == CHAT_TEMPLATE
    assert header.metadata["tokenizer.ggml.tokens"] == VOCABULARY
    with pytest.raises(ModelError, match="no such thing"):
        header.count("no such thing")


@fails_without("backends/model/gguf_header.py", "if end > self.size:")
@fails_without("backends/model/gguf_header.py", "if needed > reader.size:")
def test_a_truncated_file_is_refused_wherever_it_ends(models: Models, tmp_path: Path) -> None:
    content = models["llama-gqa"].read_bytes()
    ends = [*range(64), *range(64, 9000, 131), *range(9000, len(content), 20_011), len(content) - 1]
    for end in ends:
        refused(tmp_path / "cut.gguf", content[:end])


def test_a_missing_file_or_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"can't read.*; .*--model"):
        read_header(tmp_path / "missing.gguf")
    with pytest.raises(ModelError, match=r"is a directory.*; .*--backend"):
        read_header(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *((data, "not a GGUF file") for data in (b"", b"GGU", b"FUGG" + b"\0" * 100, b"PK\x03\x04" * 50)),
        *((gguf([ARCHITECTURE], [EMBEDDING], bytes(32), v), "version") for v in (0, 1, 4, 3 << 24, (1 << 32) - 1)),
    ],
)
def test_another_format_or_version_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    assert message in refused(tmp_path / "model.gguf", content).message


def test_a_header_is_read_once_until_its_file_changes(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    content = gguf([ARCHITECTURE], [EMBEDDING], bytes(32))
    path.write_bytes(content)
    header = read_header(path)
    assert read_header(path) is header and header.tensors["token_embd.weight"].shape == (2, 4)
    digest = header.digest
    path.write_bytes(content + bytes(32))
    assert read_header(path) is not header and header.digest != digest
    path.write_bytes(content[:-16])
    with pytest.raises(ModelError, match="needs"):
        read_header(path)
    path.unlink()
    with pytest.raises(ModelError, match="can't read"):
        read_header(path)


@fails_without("backends/model/gguf_header.py", "if end > MAX_HEADER_BYTES:")
@pytest.mark.parametrize(
    ("kind", "counts"),
    [(8, [50_000_000]), (8, [8000] * 2), (4, [90_000_000]), (6, [4_000_000] * 20)],
    ids=["texts", "arrays of texts", "numbers", "arrays of numbers"],
)
def test_a_sparse_file_is_refused_soon_and_without_memory(
    tmp_path: Path, kind: int, counts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """400 MB of nothing are 50 million empty texts, which took 9 s of processor time, and numbers 400 MB of memory."""
    monkeypatch.setattr(gguf_header, "MAX_ELEMENTS", 10_000)
    path, size = tmp_path / "sparse.gguf", {8: 8}.get(kind, 4)
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, len(counts)))
        for count in counts:
            file.write(entry("x", 9, struct.pack("<IQ", kind, count)))
            file.seek(count * size, 1)
        file.truncate()
    begun = time.process_time()
    # The first reading imports `gguf`.
    with memory_below(8 << 20), pytest.raises(ModelError, match="more than"):
        parse_header(path)
    assert time.process_time() - begun < 3


ABSURD = {
    "tensors": b"GGUF" + struct.pack("<IQQ", 3, HUGE, 0) + bytes(64),
    "values": b"GGUF" + struct.pack("<IQQ", 3, 0, HUGE) + bytes(64),
    "many values": b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 16) + bytes(64),
    "key": b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", HUGE) + bytes(64),
    "text": gguf([entry("general.name", 8, struct.pack("<Q", 1 << 40) + bytes(64))], []),
    "long text": gguf([entry("general.name", 8, struct.pack("<Q", 1 << 20) + bytes(64))], []),
    "array of numbers": gguf([entry("x", 9, struct.pack("<IQ", 4, HUGE) + bytes(64))], []),
    "array of texts": gguf([entry("x", 9, struct.pack("<IQ", 8, HUGE) + bytes(640))], []),
    "array of a long text": gguf([entry("x", 9, struct.pack("<IQQ", 8, 1000, HUGE) + bytes(64))], []),
    "array of arrays": gguf([entry("x", 9, struct.pack("<IQ", 9, 1) + bytes(64))], []),
    "arrays in arrays": gguf([entry("x", 9, struct.pack("<IQ", 9, 1) * 20_000)], []),
    "array of unknown": gguf([entry("x", 9, struct.pack("<IQ", 77, 1000) + bytes(64))], []),
    "few of unknown": gguf([entry("x", 9, struct.pack("<IQ", 77, 2) + bytes(64))], []),
    "unknown value": gguf([entry("x", 13, bytes(64))], []),
    "no dimensions": gguf([ARCHITECTURE], [tensor("token_embd.weight", (), 0, 0)], bytes(64)),
    "five dimensions": gguf([ARCHITECTURE], [tensor("token_embd.weight", (1,) * 5, 0, 0)], bytes(64)),
    "many dimensions": gguf([ARCHITECTURE], [text("t") + struct.pack("<I", (1 << 32) - 1)], bytes(64)),
    "large tensor": gguf([ARCHITECTURE], [tensor("token_embd.weight", (HUGE, HUGE, HUGE, HUGE), 0, 0)], bytes(64)),
    "far tensor": gguf([ARCHITECTURE], [tensor("token_embd.weight", (4, 2), 0, HUGE)], bytes(64)),
    "tensor type": gguf([ARCHITECTURE], [tensor("token_embd.weight", (4, 2), 999, 0)], bytes(64)),
    "parts of blocks": gguf([ARCHITECTURE], [tensor("token_embd.weight", (33, 3), 8, 0)], bytes(128)),
    "blocks": gguf([ARCHITECTURE, entry("llama.block_count", 4, struct.pack("<I", 1 << 30))], [EMBEDDING], bytes(64)),
    "alignment 0": gguf([ARCHITECTURE, entry("general.alignment", 4, bytes(4))], [EMBEDDING], bytes(64)),
    "alignment": gguf([ARCHITECTURE, entry("general.alignment", 10, struct.pack("<Q", HUGE))], [EMBEDDING], bytes(64)),
    "alignment text": gguf([ARCHITECTURE, entry("general.alignment", 8, text("32"))], [EMBEDDING], bytes(64)),
    "no architecture": gguf([], [EMBEDDING], bytes(64)),
    "architecture 7": gguf([entry("general.architecture", 4, struct.pack("<I", 7))], [EMBEDDING], bytes(64)),
    "no embedding": gguf([ARCHITECTURE], [tensor("other.weight", (4, 2), 0, 0)], bytes(64)),
}


@fails_without(
    "backends/model/gguf_header.py",
    "if kind == _ARRAY:\n            raise self.broken(",
    "if False:\n            raise self.broken(",
)
@fails_without("backends/model/gguf_header.py", "if isinstance(blocks, int) and blocks > MAX_BLOCKS:")
@pytest.mark.usefixtures("headers")
@pytest.mark.parametrize("fault", list(ABSURD))
def test_absurd_headers_are_refused_within_a_megabyte(tmp_path: Path, fault: str) -> None:
    """Once headers were read, so that imports do not count as memory."""
    with memory_below(1 << 20):
        refused(tmp_path / "model.gguf", ABSURD[fault])


@fails_without("backends/model/gguf_header.py", "if length > MAX_STRING:")
@pytest.mark.usefixtures("headers")
def test_a_long_text_is_refused_before_it_is_read_in_a_file_that_is_as_long(tmp_path: Path) -> None:
    path, length = tmp_path / "model.gguf", 1 << 25
    path.write_bytes(gguf([entry("general.name", 8, struct.pack("<Q", length))], []))
    # What is not written takes no place on the disk.
    os.truncate(path, 2 * length)
    with memory_below(1 << 20), pytest.raises(ModelError):
        parse_header(path)


@fails_without("backends/model/gguf_header.py", "if number > MAX_ENTRIES:")
def test_a_file_has_so_many_values_at_most(tmp_path: Path) -> None:
    values = [entry("", 0, b"\0")] * (MAX_ENTRIES + 1)
    assert "claims 65537 values" in refused(tmp_path / "model.gguf", gguf(values, [])).message


@fails_without("backends/model/gguf_header.py", " and isinstance(value, list):", ":")
def test_a_number_in_place_of_a_vocabulary_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf([ARCHITECTURE, entry("tokens", 4, bytes(4))], [EMBEDDING], bytes(32)))
    with pytest.raises(ModelError, match="no usable tokens"):
        read_arrays(path, ["tokens"])


@pytest.mark.parametrize("value", [0, -1, 1 << 40, True, "nine", [9], float("nan"), 0.5])
def test_an_impossible_size_is_a_model_error(value: object) -> None:
    header = GgufHeader(Path("model.gguf"), {"general.architecture": "llama", "llama.block_count": value}, {})
    with pytest.raises(ModelError, match="block_count"):
        header.count("block_count")
