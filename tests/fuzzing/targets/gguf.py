"""The header of a model file that somebody downloaded is read or is a ModelError."""

from __future__ import annotations

import struct

from sapo_edge.backends.model.gguf_header import parse_header
from sapo_edge.errors import ModelError
from tests.fuzzing.target import KIB, Target, directory


def check(data: bytes) -> None:
    path = directory() / "model.gguf"
    path.write_bytes(data)
    try:
        header = parse_header(path)
        assert header.architecture and all(info.offset + info.bytes <= len(data) for info in header.tensors.values())
        assert header.count("embedding_length") > 0 and header.number("rope.freq_base", 1.0) > 0
    except ModelError:
        return


def seeds() -> list[bytes]:
    values = [
        entry("general.architecture", 8, text("llama")),
        entry("llama.embedding_length", 4, struct.pack("<I", 4)),
        entry("llama.rope.freq_base", 6, struct.pack("<f", 1e4)),
        entry("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 2) + text("a") + text("b")),
        entry("tokenizer.ggml.scores", 9, struct.pack("<IQ", 6, 70) + bytes(280)),
    ]
    tensor = text("token_embd.weight") + struct.pack("<IQQIQ", 2, 4, 2, 0, 0)
    claims = struct.pack("<Q", 2**64 - 1)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, len(values)) + b"".join(values) + tensor
    array = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + entry("a", 9, struct.pack("<I", 8) + claims) + bytes(800)
    return [head + bytes(-len(head) % 32 + 32), head, array, b"GGUF" + struct.pack("<I", 3) + 2 * claims]


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def entry(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


TARGET = Target(check, seeds, 4 * KIB, 128 * KIB, 64, short=200)
