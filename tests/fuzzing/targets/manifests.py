"""Manifests of files and of peers, and a member's file of questions: read whole, or a ManifestError."""

from __future__ import annotations

import hashlib
import io
from importlib import resources

import msgpack

from sapo_edge.errors import ManifestError
from sapo_edge.tasks.checks import Choice, Exact, Number, Pattern, Set
from sapo_edge.tasks.manifest import (
    MAX_FILE_BYTES,
    MAX_MANIFEST_BYTES,
    Manifest,
    TaskEntry,
    load_manifest,
    shipped_manifests,
)
from sapo_edge.tasks.question_data import QuestionData
from sapo_edge.tasks.questions import OwnQuestion
from tests.fuzzing.target import KIB, MIB, Target, read

CLAIMS = (
    b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\x91" * 60_000, b"\xd6\xff" + bytes(4),
)  # fmt: skip
"""Containers that claim more than they have."""
OWN = tuple(
    OwnQuestion(f"{check}?", "1", check, "test" if isinstance(check, Set) else "")
    for check in (Exact(True), Number(0.5), Choice(("1", "2")), Set(), Pattern("[0-9]+"))
)


def check_usable(manifest: Manifest) -> None:
    assert len(manifest.prompt_for("question")) > 0 and manifest.entry_at(0.999) in manifest.tasks


def check_bytes(data: bytes) -> None:
    """Only its own encoding is accepted of a peer."""
    if (manifest := read(Manifest.from_bytes, data, ManifestError)) is None:
        return
    assert manifest.to_bytes() == data and len(data) <= MAX_MANIFEST_BYTES
    check_usable(manifest)


def bytes_seeds() -> list[bytes]:
    tasks = (TaskEntry("mine", questions=OWN), TaskEntry("more", questions=QuestionData(9, bytes(32), 99)))
    own = [Manifest("own", tasks[:count]).to_bytes() for count in (1, 2)]
    return [*(load_manifest(name).to_bytes() for name in shipped_manifests()), *CLAIMS, *own]


def check_toml(data: bytes) -> None:
    """What was read as TOML encodes and decodes to itself."""
    if len(data) > MAX_FILE_BYTES or (text := read(bytes.decode, data, ValueError)) is None:
        return
    if (manifest := read(Manifest.from_toml, text, ManifestError)) is None:
        return
    try:
        assert Manifest.from_bytes(manifest.to_bytes()).digest == manifest.digest
    except ManifestError as error:
        assert "has" in str(error), "too large as bytes"
    check_usable(manifest)


def toml_seeds() -> list[bytes]:
    files = resources.files("sapo_edge.tasks").joinpath("manifests")
    shipped = [files.joinpath(f"{name}.toml").read_bytes() for name in shipped_manifests()]
    hard = (
        "a." * 30_000 + "a = 1", "[" + "a." * 15_000 + "a]\n" + "b = 1\n" * 5_000, "a = " + "[" * 30_000,
        "a = " + "{a=" * 15_000, "a = " + "9" * 5_000, "a = 1979-05-27T07:32:00Z", "a = inf", "[[a]]\n" * 9_000,
    )  # fmt: skip
    own = 'name = "own"\n[[tasks]]\nname = "mine"\nexamples = 1\nquestions = [{ question = "?", answer = "1" }, ' + (
        '{ question = "1 + 1?", answer = 2, check = "number", tolerance = 0.5, split = "test" }, '
        '{ question = "A?", answer = "A", check = "choice", choices = ["A", "B"] }, '
        '{ question = "B?", answer = ["a"], check = "set" }, '
        '{ question = "C?", answer = "1", check = "regex", pattern = "[0-9]+" }]'
    )
    return [own.encode(), *shipped, *(text.encode() for text in hard)]


def check_questions(data: bytes) -> None:
    """A file of questions is valid to its last question."""
    named = QuestionData(1, hashlib.sha256(data).digest(), max(1, len(data)))
    try:
        for record, _ in named.scan(io.BytesIO(data)):
            question = OwnQuestion.from_list(record)
            assert OwnQuestion.from_list(question.as_list()) == question
    except ManifestError:
        return
    assert msgpack.unpackb(data) is not None, "exactly one question"


def questions_seeds() -> list[bytes]:
    own = [bytes(msgpack.packb(question.as_list())) for question in OWN]
    return [*own, b"".join(own), *CLAIMS]


TARGETS = {
    "manifest_bytes": Target(check_bytes, bytes_seeds, 32 * KIB, MIB, 256),
    # Python's objects are many times as large as their text, and brackets nest as deep as Python's limit of recursion.
    "manifest_toml": Target(check_toml, toml_seeds, MAX_FILE_BYTES, 4 * MIB, 512, short=8),
    "question_data": Target(check_questions, questions_seeds, 32 * KIB, 2 * MIB, 256),
}
