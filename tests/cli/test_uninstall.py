"""`sapo identity`, `backup`, `restore` and `uninstall`: what is kept of a node, and what goes."""

from __future__ import annotations

import getpass
import os
import signal
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from sapo_edge.care.signals import handling
from sapo_edge.cli import uninstall
from sapo_edge.cli.backup import backup, restore
from sapo_edge.service import systemd
from sapo_edge.state import archive
from sapo_edge.state.durable import bytes_in
from sapo_edge.state.lock import StateLock
from sapo_edge.state.paths import HOME_VARIABLE, Paths
from sapo_edge.state.secret import read_or_create_secret, read_secret, write_secret
from sapo_edge.state.store import Store
from sapo_edge.swarm.joining.identity import Identity, readable_name
from tests.cli.inprocess import Invoke
from tests.cli.process import Result, assert_refused
from tests.swarm.joining.test_identity import quick  # noqa: F401 - a fixture

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    """A person's home in which a node has run, with completion and two services, one of them of another node."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv(HOME_VARIABLE, raising=False)
    for name in ("CONFIG", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    paths = Paths.default()
    with Store(paths):
        pass
    paths.config_file.write_text("own = 6\n")
    script = tmp_path / ".bash_completions" / "sapo.sh"
    script.parent.mkdir()
    script.write_text("complete")
    (tmp_path / ".bashrc").write_text(f"alias a=b\nsource '{script}'\nalias c=d\n")
    units = tmp_path / "config" / "systemd" / "user"
    units.mkdir(parents=True)
    others = {"other": tmp_path / "elsewhere" / "state", "longer": Path(f"{paths.state}-2") / "state"}
    for name, state in {"mine": paths.state, **others}.items():
        (units / f"{name}.service").write_text(f"# Written by `sapo service install`\nDescription={state}\n")
    (units / "foreign.service").write_text(f"Description={paths.state}\n")
    return paths


def test_a_dry_run_lists_everything_and_then_it_removes_that_and_keeps_the_key(
    invoke: Invoke, person: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(tmp_path.rglob("*"))
    result = invoke("uninstall", "--dry-run")
    assert result.code == 0 and sorted(tmp_path.rglob("*")) == before
    for part in ("mine.service", "sapo.sh", ".bashrc", str(person.config), str(person.cache), "runs", "kept"):
        assert part in result.out
    assert not [name for name in ("other", "longer", "foreign") if f"{name}.service" in result.out]
    assert f"kept{' ' * 20}{person.identity}" in result.out and "uninstall sapo-edge" in result.err
    listed = invoke("uninstall", "--dry-run", "--identity", "--json").record
    assert listed["kept"] == [] and str(person.state) in [item["path"] for item in listed["items"]]
    removed: list[str] = []
    monkeypatch.setattr(systemd.Systemd, "remove", lambda self, name: removed.append(name))
    refused = invoke("uninstall")
    assert_refused(Result(refused.code, "", refused.err.splitlines()[-1]), 2, "--yes")
    key = person.identity.read_bytes()
    assert invoke("uninstall", "--yes").code == 0
    assert removed == ["mine"] and [path.name for path in person.state.iterdir()] == ["identity"]
    assert person.identity.read_bytes() == key and not person.config.exists() and not person.cache.exists()
    assert (tmp_path / ".bashrc").read_text() == "alias a=b\nalias c=d\n"
    assert invoke("uninstall", "--yes", "--identity").code == 0 and not person.state.exists()


def test_the_key_stays_where_settings_and_state_are_one_directory(tmp_path: Path) -> None:
    """As on macOS."""
    state = tmp_path / "Application Support" / "sapo-edge"
    paths = Paths(state, state, tmp_path / "Caches" / "sapo-edge", state / "run")
    with Store(paths):
        paths.config_file.write_text("own = 6\n")
    for item in uninstall._directories(paths, with_identity=False):
        item.remove()
    assert [path.name for path in state.iterdir()] == ["identity"] and not paths.cache.exists()
    for item in uninstall._directories(paths, with_identity=True):
        item.remove()
    assert not state.exists()


def test_a_file_that_vanishes_meanwhile_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kept").write_bytes(b"12345")
    monkeypatch.setattr(os, "walk", lambda place: [(str(place), [], ["kept", "gone"])])
    assert bytes_in(tmp_path) == 5 and bytes_in(tmp_path / "kept") == 5


def test_a_running_node_or_relay_is_not_removed(invoke: Invoke, tmp_path: Path) -> None:
    with Store(Paths.default(tmp_path)):
        refused = invoke("uninstall", "--yes", "--json", "--home", tmp_path)
    assert refused.code == 1 and "a node runs here" in refused.err and Paths.default(tmp_path).journal.exists()
    assert refused.record["items"] and refused.record["removed"] is False
    assert invoke("uninstall", "--yes", "--json", "--home", tmp_path).record["removed"] is True
    assert not Paths.default(tmp_path).journal.exists()
    # Neither is a running relay, whose key is worth a backup.
    paths = Paths.default(tmp_path / "old")
    paths.create()
    key = paths.state / "relay-identity"
    key.write_bytes(b"secret")
    with StateLock(paths.relay_lock, "relay"):
        refused = invoke("uninstall", "--yes", "--identity", "--home", tmp_path / "old")
    assert refused.code == 1 and "a relay runs here" in refused.err and key.read_bytes() == b"secret"
    assert invoke("backup", tmp_path / "relay.zip", "--home", tmp_path / "old").code == 0
    assert invoke("restore", tmp_path / "relay.zip", "--home", tmp_path / "new").code == 0
    assert (tmp_path / "new" / "state" / "relay-identity").read_bytes() == b"secret"


def test_a_backup_goes_to_another_home(invoke: Invoke, person: Paths, tmp_path: Path) -> None:
    made = invoke("backup", tmp_path / "sapo.zip")
    assert made.code == 0 and made.out == f"{tmp_path}/sapo.zip\n" and "secret key, unencrypted" in made.err
    restored = invoke("restore", tmp_path / "sapo.zip", "--home", tmp_path / "new")
    assert restored.code == 0 and "only one machine" in restored.err
    assert (tmp_path / "new" / "state" / "identity").read_bytes() == person.identity.read_bytes()
    assert_refused(invoke("restore", tmp_path / "sapo.zip"), 1, "overwrites nothing")
    assert_refused(invoke("backup", tmp_path / "other.zip", "--home", tmp_path / "none"), 1, "nothing to back up")
    # Before the first run, a private swarm's key is worth a backup.
    created = invoke("swarm", "create", "starter", "--private", "--json", "--home", tmp_path / "old").record
    assert "private swarms" in invoke("backup", tmp_path / "key.zip", "--home", tmp_path / "old").err
    assert invoke("restore", tmp_path / "key.zip", "--home", tmp_path / "third").code == 0
    assert invoke("swarm", "show", "--json", "--home", tmp_path / "third").record["swarm"] == created["swarm"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_no_half_of_a_backup_with_the_key(
    person: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    file, new = tmp_path / "sapo.zip", tmp_path / "new"
    archive.write_backup(person, file)
    before = {*tmp_path.iterdir(), new}
    acts: dict[str, Callable[[], None]] = {
        "_add": lambda: backup(tmp_path / "2.zip"),
        "_extract": lambda: restore(file, home=new),
    }
    for name, act in acts.items():
        monkeypatch.setattr(archive, name, lambda *_: os.kill(os.getpid(), number))
        with handling([number], lambda *_: None), pytest.raises(SystemExit) as ended:
            act()
        assert ended.value.code == 128 + number
    assert {*tmp_path.iterdir()} == before and not list((new / "state").glob(".*"))


PASSPHRASE = "correct horse battery"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That of a node with a key, whose owner has a passphrase for backups."""
    monkeypatch.setenv("SAPO_EDGE_PASSPHRASE", PASSPHRASE)
    paths = Paths.default(tmp_path / "home")
    paths.create()
    read_or_create_secret(paths.identity)
    return tmp_path / "home"


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


def test_a_backup_moves_the_identity_to_another_home(invoke: Invoke, home: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "backup", tmp_path / "other"
    told = invoke("identity", "backup", file, "--home", home)
    assert told.code == 0 and told.out == f"{file}\n" and stat.S_IMODE(file.stat().st_mode) == 0o600
    assert secret_of(home) not in file.read_bytes() and secret_of(home).hex().encode() not in file.read_bytes()
    assert invoke("identity", "restore", file, "--home", other).code == 0 and secret_of(other) == secret_of(home)
    identity = Paths.default(other).identity
    assert stat.S_IMODE(identity.stat().st_mode) == 0o600 and os.listdir(identity.parent).count("identity") == 1
    assert_refused(invoke("identity", "backup", file, "--home", home), 1, "exists", "--force")
    assert_refused(invoke("identity", "restore", file, "--home", home), 1, "holds an identity already", "--force")
    for command in ("backup", "restore"):
        nowhere = invoke("identity", command, tmp_path / "none" / "backup", "--home", home)
        assert_refused(nowhere, 1, "No such file", "or name another file")
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


def test_no_restore_fails_halfway(invoke: Invoke, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, file = secret_of(home), tmp_path / "backup"
    invoke("identity", "backup", file, "--home", home)
    force = ("--force", "--home", home)
    with StateLock(Paths.default(home).lock):
        assert_refused(invoke("identity", "restore", file, *force), 1, "another node", "sapo stop")
    assert_refused(invoke("identity", "restore", tmp_path / "none", *force), 1, "can't read the backup")
    good = file.read_bytes()
    file.write_bytes(good[:-1])
    assert_refused(invoke("identity", "restore", file, *force), 1, "cut off")
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
    monkeypatch.delenv("SAPO_EDGE_PASSPHRASE")
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
