"""`sapo identity`: who the node is, a backup that only its passphrase opens, and the way back."""

from __future__ import annotations

import getpass
import os
import stat
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from sapo_edge.state.lock import StateLock
from sapo_edge.state.paths import Paths
from sapo_edge.state.secret import read_or_create_secret, read_secret, write_secret
from sapo_edge.swarm.joining.identity import Identity, readable_name
from tests.cli.inprocess import Invoke
from tests.cli.process import assert_refused

PASSPHRASE = "correct horse battery"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    paths = Paths.default(tmp_path / "home")
    paths.create()
    read_or_create_secret(paths.identity)
    return tmp_path / "home"


@pytest.fixture
def passphrase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPO_EDGE_PASSPHRASE", PASSPHRASE)


def secret_of(home: Path) -> bytes:
    return read_secret(Paths.default(home).identity)


def test_show_prints_the_identity_without_the_secret(invoke: Invoke, home: Path, tmp_path: Path) -> None:
    identity = Identity(secret_of(home))
    record = invoke("identity", "show", "--home", home, "--json").record
    assert record == {
        "v": 1, "name": readable_name(identity.peer_id), "peer_id": identity.peer_id,
        "public_key": identity.public_key.hex(), "path": str(home / "state" / "identity"),
    }  # fmt: skip
    told = invoke("identity", "show", "--home", home)
    assert identity.peer_id in told.out and secret_of(home).hex() not in told.out + told.err
    assert_refused(invoke("identity", "show", "--home", tmp_path / "new"), 1, "no identity yet", "sapo run")
    assert not (tmp_path / "new").exists()


@pytest.mark.usefixtures("passphrase")
def test_a_backup_moves_the_identity_to_another_home(invoke: Invoke, home: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "backup", tmp_path / "other"
    told = invoke("identity", "backup", file, "--home", home)
    assert told.code == 0 and told.out == f"{file}\n" and stat.S_IMODE(file.stat().st_mode) == 0o600
    assert secret_of(home) not in file.read_bytes() and secret_of(home).hex().encode() not in file.read_bytes()
    restored = invoke("identity", "restore", file, "--home", other)
    assert restored.code == 0 and secret_of(other) == secret_of(home)
    identity = Paths.default(other).identity
    assert stat.S_IMODE(identity.stat().st_mode) == 0o600 and os.listdir(identity.parent).count("identity") == 1
    assert_refused(invoke("identity", "backup", file, "--home", home), 1, "exists", "--force")
    assert_refused(invoke("identity", "restore", file, "--home", home), 1, "holds an identity already", "--force")
    nowhere = tmp_path / "none" / "backup"
    assert_refused(invoke("identity", "backup", nowhere, "--home", home), 1, "No such file", "or name another file")
    assert_refused(invoke("identity", "restore", nowhere, "--home", home), 1, "No such file", "or name another file")
    mode = other.stat().st_mode
    assert_refused(invoke("identity", "backup", other, "--force", "--home", other), 1, "Is a directory")
    assert other.stat().st_mode == mode, "or nobody could enter it"
    write_secret(identity, b"n" * 32)
    file.chmod(0o644)
    assert invoke("identity", "backup", file, "--force", "--home", other).code == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert invoke("identity", "restore", file, "--force", "--home", home).code == 0
    assert secret_of(home) == b"n" * 32
    assert sorted(os.listdir(tmp_path)) == ["backup", "home", "other"]


@pytest.mark.usefixtures("passphrase")
def test_no_restore_fails_halfway(invoke: Invoke, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, file = secret_of(home), tmp_path / "backup"
    invoke("identity", "backup", file, "--home", home)
    force = ("--force", "--home", home)
    with StateLock(Paths.default(home).lock):
        assert_refused(invoke("identity", "restore", file, *force), 1, "another node", "sapo stop")
    assert_refused(invoke("identity", "restore", tmp_path / "none", *force), 1, "can't read the backup")
    good = file.read_bytes()
    for data, part in (
        (b"", "not a backup"), (b"x" * 10**6, "not a backup"), (good[:-1] + bytes([good[-1] ^ 1]), "decrypted"),
        (good[:-1], "cut off"), (good[:40], "cut off"),
    ):  # fmt: skip
        file.write_bytes(data)
        assert_refused(invoke("identity", "restore", file, *force), 1, part)
    file.write_bytes(good)
    monkeypatch.setenv("SAPO_EDGE_PASSPHRASE", "something else")
    assert_refused(invoke("identity", "restore", file, *force), 1, "can't be decrypted", "check the passphrase")
    monkeypatch.setenv("SAPO_EDGE_PASSPHRASE", "short")
    assert_refused(invoke("identity", "backup", tmp_path / "new", "--home", home), 2, "too short")
    assert secret_of(home) == before and not (tmp_path / "new").exists()


def test_the_passphrase_is_asked_for_twice_on_a_terminal_and_never_read_from_a_pipe(
    invoke: Invoke, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "backup"
    assert_refused(
        invoke("identity", "backup", file, "--home", home, typed=f"{PASSPHRASE}\n{PASSPHRASE}\n"),
        2, "no terminal", "SAPO_EDGE_PASSPHRASE",
    )  # fmt: skip
    typed = [PASSPHRASE, "another one"]
    monkeypatch.setattr(getpass, "getpass", lambda prompt, stream: typed.pop(0))
    terminal = SimpleNamespace(stderr=sys.stderr, stdin=SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("sapo_edge.cli.identity.sys", terminal)
    assert_refused(invoke("identity", "backup", file, "--home", home), 2, "passphrases differ")
    typed[:] = [PASSPHRASE, PASSPHRASE, PASSPHRASE]
    assert invoke("identity", "backup", file, "--home", home).code == 0
    assert invoke("identity", "restore", file, "--home", tmp_path / "other").code == 0 and typed == []
