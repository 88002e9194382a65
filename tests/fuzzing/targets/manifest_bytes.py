"""A manifest of a peer is decoded or is a ManifestError; only its own encoding is accepted."""

from __future__ import annotations

from sapo_edge.errors import ManifestError
from sapo_edge.tasks.checks import Choice, Exact, Number, Pattern, Set
from sapo_edge.tasks.manifest import MAX_MANIFEST_BYTES, Manifest, TaskEntry, load_manifest, shipped_manifests
from sapo_edge.tasks.question_data import QuestionData
from sapo_edge.tasks.questions import OwnQuestion
from tests.fuzzing.target import MIB, Target, read

CLAIMS = (
    b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\x91" * 60_000, b"\xd6\xff" + bytes(4),
)  # fmt: skip
"""Containers that claim more than they have."""
OWN = tuple(
    OwnQuestion(f"{check}?", "1", check, "test" if isinstance(check, Set) else "")
    for check in (Exact(True), Number(0.5), Choice(("1", "2")), Set(), Pattern("[0-9]+"))
)


def check(data: bytes) -> None:
    if (manifest := read(Manifest.from_bytes, data, ManifestError)) is None:
        return
    assert manifest.to_bytes() == data and len(data) <= MAX_MANIFEST_BYTES
    assert len(manifest.prompt_for("question")) > 0 and manifest.entry_at(0.999) in manifest.tasks


def seeds() -> list[bytes]:
    tasks = (TaskEntry("mine", questions=OWN), TaskEntry("more", questions=QuestionData(9, bytes(32), 99)))
    own = [Manifest("own", tasks[:count]).to_bytes() for count in (1, 2)]
    return [*(load_manifest(name).to_bytes() for name in shipped_manifests()), *CLAIMS, *own]


TARGET = Target(check, seeds, 32 * 1024, MIB, 256)
