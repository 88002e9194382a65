"""The node's secret."""

import os
import stat
from pathlib import Path

import pytest

from sapo_edge.errors import StateError
from sapo_edge.state.secret import read_or_create_secret, read_secret, seed_from_secret


def test_nobody_else_may_read_the_secret(tmp_path: Path) -> None:
    path = tmp_path / "my home" / "identity"
    path.parent.mkdir()
    read_or_create_secret(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    with pytest.raises(StateError, match=f"`chmod 600 '{path}'`"):
        read_or_create_secret(path)


@pytest.mark.parametrize("content", [b"", b"ab" * 31, b"ab" * 33, b"xy" * 32, b"\xff" * 64])
def test_an_invalid_secret_is_rejected_and_kept(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "identity"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(StateError, match="32 bytes"):
        read_or_create_secret(path)
    assert path.read_bytes() == content


def test_a_missing_secret_is_created_once_and_stays(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="can't read the identity"):
        read_secret(tmp_path / "identity")
    secret = read_or_create_secret(tmp_path / "identity")
    assert len(secret) == 32 and read_or_create_secret(tmp_path / "identity") == secret
    assert (tmp_path / "identity").read_text() == secret.hex() + "\n"
    assert os.listdir(tmp_path) == ["identity"]
    assert read_or_create_secret(tmp_path / "other") != secret


def test_the_seed_is_the_same_in_every_version_and_differs_between_nodes() -> None:
    seeds = {seed_from_secret(bytes([number]) * 32) for number in range(256)}
    assert len(seeds) == 256 and all(0 <= seed < 2**63 for seed in seeds)
    assert seed_from_secret(bytes(32)) == 2614768170376473259
