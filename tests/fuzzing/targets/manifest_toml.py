"""A manifest as TOML is read or is a ManifestError; what was read encodes and decodes to itself."""

from __future__ import annotations

from importlib import resources

from sapo_edge.errors import ManifestError
from sapo_edge.tasks.manifest import MAX_FILE_BYTES, Manifest, shipped_manifests
from tests.fuzzing.target import MIB, Target, read


def check(data: bytes) -> None:
    if len(data) > MAX_FILE_BYTES or (text := read(bytes.decode, data, ValueError)) is None:
        return
    if (manifest := read(Manifest.from_toml, text, ManifestError)) is None:
        return
    try:
        assert Manifest.from_bytes(manifest.to_bytes()).digest == manifest.digest
    except ManifestError as error:
        assert "has" in str(error), "too large as bytes"
    assert len(manifest.prompt_for("question")) > 0 and manifest.entry_at(0.999) in manifest.tasks


def seeds() -> list[bytes]:
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


# Python's objects are many times as large as their text, and brackets nest as deep as Python's limit of recursion.
TARGET = Target(check, seeds, MAX_FILE_BYTES, 4 * MIB, 512, short=8)
