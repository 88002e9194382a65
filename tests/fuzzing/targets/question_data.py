"""A member's file of questions is valid to its last question, or a ManifestError."""

from __future__ import annotations

import hashlib
import io

import msgpack

from sapo_edge.errors import ManifestError
from sapo_edge.tasks.question_data import QuestionData
from sapo_edge.tasks.questions import OwnQuestion
from tests.fuzzing.target import MIB, Target
from tests.fuzzing.targets import manifest_bytes


def check(data: bytes) -> None:
    named = QuestionData(1, hashlib.sha256(data).digest(), max(1, len(data)))
    try:
        for record, _ in named.scan(io.BytesIO(data)):
            question = OwnQuestion.from_list(record)
            assert OwnQuestion.from_list(question.as_list()) == question
    except ManifestError:
        return
    assert msgpack.unpackb(data) is not None, "exactly one question"


def seeds() -> list[bytes]:
    own = [bytes(msgpack.packb(question.as_list())) for question in manifest_bytes.OWN]
    return [*own, b"".join(own), *manifest_bytes.CLAIMS]


TARGET = Target(check, seeds, 32 * 1024, 2 * MIB, 256)
