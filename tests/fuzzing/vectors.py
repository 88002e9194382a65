"""Seeds from the test vectors of docs/network.md."""

from __future__ import annotations

from tests.swarm.wire.make_vectors import vectors


def field(file: str, name: str) -> list[bytes]:
    """One field in hexadecimal of all vectors in a file."""
    return [bytes.fromhex(vector[name]) for vector in vectors(file) if vector.get(name)]


def invalid(kind: str, name: str) -> list[bytes]:
    """One field of the vectors that must be rejected."""
    return [bytes.fromhex(vector[name]) for vector in vectors("invalid.json") if vector["kind"] == kind]
