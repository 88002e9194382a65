"""Files that somebody brings or that a disk has damaged: read, or refused with the error that says so."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import replace
from functools import cache
from hashlib import sha256

import numpy as np
from safetensors.numpy import save

from sapo_edge.backends.adapter.files import ADAPTER_FILE, CONFIG_FILE, read_adapter, read_alpha, read_checked
from sapo_edge.backends.model.gguf_header import parse_header
from sapo_edge.control.journal_view import JournalReader, RolloutQuery, in_full
from sapo_edge.errors import CheckpointError, ModelError, StateError
from sapo_edge.events import Comparison, HeldOut, Notice
from sapo_edge.pool.pool import Pool, PoolLimits
from sapo_edge.pool.saved import MAGIC, SavedPool, SavedRollout, read_pool, write_pool
from sapo_edge.rollout import Answer, Rollout, TaskRef
from sapo_edge.state.journal import Journal, JournaledRollout
from tests.fakes import round_event
from tests.fuzzing.target import KIB, MIB, Target, directory, read
from tests.swarm.wire.make_vectors import ROLLOUTS

SHAPES = {"a.lora_A.weight": (2, 3), "a.lora_B.weight": (4, 2)}
LIMITS = (16, 64 * KIB, 64)


def check_adapter(data: bytes) -> None:
    """An adapter; the first byte says which of its files it is."""
    is_config = data[:1] == b"\1"
    path = directory() / (CONFIG_FILE if is_config else ADAPTER_FILE)
    path.write_bytes(data[1:])
    try:
        if is_config:
            rank, alpha = read_alpha(path.parent)
            assert math.isfinite(alpha / rank)
        else:
            assert all(array.nbytes <= len(data) for array in read_adapter(path.parent).values())
            adapter, _ = read_checked(path.parent, SHAPES)
            assert all(np.isfinite(array).all() for array in adapter.values())
    except CheckpointError:
        return


def adapter_seeds() -> list[bytes]:
    weights = {name: np.ones(shape, np.float32) for name, shape in SHAPES.items()}
    halves = {name: array.astype(np.float16) for name, array in weights.items()}
    lora = {"peft_type": "LORA"}
    configs: tuple[object, ...] = ({**lora, "r": 8, "lora_alpha": 16}, {**lora, "use_dora": True}, [], {})
    texts = [*map(json.dumps, configs), '{"peft_type": "LORA", "r": 1e999, "lora_alpha": 1}', "[" * 5000]
    return [b"\0" + save(weights), b"\0" + save(halves), *(b"\1" + text.encode() for text in texts)]


def check_gguf(data: bytes) -> None:
    """The header of a model file."""
    path = directory() / "model.gguf"
    path.write_bytes(data)
    try:
        header = parse_header(path)
        assert header.architecture and all(info.offset + info.bytes <= len(data) for info in header.tensors.values())
        assert header.count("embedding_length") > 0 and header.number("rope.freq_base", 1.0) > 0
    except ModelError:
        return


def gguf_seeds() -> list[bytes]:
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


@cache
def good_journal() -> bytes:
    path = directory() / "good.sqlite"
    path.unlink(missing_ok=True)
    journal = Journal(path)
    answers = (Answer("<answer>4</answer>", True), Answer("", False))
    rollout = Rollout(TaskRef("sums", "0.1.25", 7, 1), "2 + 2 =", "4", answers, "me", 1, 1, 12.5, "ab" * 32)
    rows = [JournaledRollout(rollout, (1.0, 0.0), (0.7, -0.7), own) for own in (True, False)]
    journal.record(round_event(1), rows, {"sequence": 3})
    accuracy = {"accuracy": 0.5, "correct": 5, "questions": 10, "low": 0.2, "high": 0.8, "split": "validation"}
    journal.record(HeldOut(round=1, time=2.0, **accuracy))  # type: ignore[arg-type]
    journal.record(Comparison(round=1, questions=10, base=1, adapter=5, gain=0.4, low=0.1, high=0.6))
    journal.record(Notice(level="info", text="hello"))
    journal.close()
    return path.read_bytes()


def check_journal(data: bytes) -> None:
    """A journal that is damaged anywhere, opened and read as a node and its clients do.

    The bytes change a good one: three for a position and one for a value, again and again.
    """
    content = bytearray(good_journal())
    for start in range(0, len(data) - 3, 4):
        content[int.from_bytes(data[start : start + 3], "big") % len(content)] = data[start + 3]
    path = directory() / "journal.sqlite"
    path.write_bytes(content)
    if (journal := read(Journal, path, StateError)) is None:
        return
    try:
        reader = JournalReader(path)
        for view in (
            journal.rounds, journal.held_out, journal.held_out_course, journal.last_comparison, journal.events,
            journal.last_round, lambda: journal.rollouts(1), lambda: journal.used_external(10),
            lambda: journal.best_held_out(("validation", 10, "")), lambda: journal.counter("sequence"),
            lambda: journal.external_since_evaluation("validation"), lambda: reader.history(10),
            lambda: reader.rollouts(RolloutQuery(search="a")), lambda: show(reader),
        ):  # fmt: skip
            try:
                view()
            except StateError:
                continue
    finally:
        journal.close()


def show(reader: JournalReader) -> None:
    rollout = reader.rollout(1, 0)
    if rollout is not None:
        in_full(1, 0, rollout)


def journal_seeds() -> list[bytes]:
    """No change, and each value's text changed somewhere."""
    marks = (b'{"v":1', b"<answer>", b"[1.0", b"[0.7", b"sums", b"validation", b'"event":', b"me")
    places = [good_journal().find(mark) for mark in marks]
    return [b"", *(place.to_bytes(3, "big") + byte for place in places if place >= 0 for byte in (b"\xff", b"x", b"1"))]


def check_pool(data: bytes) -> None:
    """What was read of a pool is written and read again the same.

    The bytes as they are, and as the body of a file whose digest is right: a fuzzer can't find one.
    """
    path = directory() / "pool"
    for content in (data, MAGIC + sha256(data).digest() + data):
        path.write_bytes(content)
        if (saved := read(lambda written: read_pool(written, *LIMITS), path, StateError)) is None:
            continue
        assert len(saved.rollouts) <= LIMITS[0]
        write_pool(path, saved)
        assert read_pool(path, *LIMITS) == saved
        pool = Pool("own", PoolLimits(*LIMITS[:2], remembered=LIMITS[2]))
        pool.load(path)
        assert len(pool) <= len(saved.rollouts)


def pool_seeds() -> list[bytes]:
    rollouts = [SavedRollout(replace(rollout, digest="ab" * 32), 1.0, "private") for rollout in ROLLOUTS.values()]
    path = directory() / "pool"
    write_pool(path, SavedPool(["cd" * 32], [bytes(16)], [bytes(16)], rollouts))
    whole = path.read_bytes()
    body = whole[len(MAGIC) + 32 :]
    return [body, body + b"\xc4\x00", whole, b"", b"\xc4\x00"]


TARGETS = {
    "adapter": Target(check_adapter, adapter_seeds, 4 * KIB, 128 * KIB, 64, short=100),
    "gguf": Target(check_gguf, gguf_seeds, 4 * KIB, 128 * KIB, 64, short=200),
    "journal": Target(check_journal, journal_seeds, 4 * 64, MIB, KIB, short=20),
    "pool_file": Target(check_pool, pool_seeds, 8 * KIB, 2048 * KIB, 64, short=100),
}
