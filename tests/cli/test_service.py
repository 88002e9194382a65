"""`sapo service` without a service manager, and a node under one that the test is."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from sapo_edge.cli import service
from sapo_edge.service.systemd import Systemd
from sapo_edge.state.consent import write_consent
from sapo_edge.state.lock import StateLock
from sapo_edge.state.paths import Paths
from tests.cli.conftest import checkpoints, quick
from tests.cli.inprocess import Invoke
from tests.cli.process import assert_refused, fork
from tests.unit.service.test_systemd import Commands, plan

SECONDS = 90


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPO_EDGE_NETWORK", "solo")


def test_a_model_of_the_hub_can_be_written_wherever_models_are(
    invoke: Invoke, commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", "/data/models")
    monkeypatch.setenv("SAPO_EDGE_MODEL", "hf:a/b")
    unit = invoke("service", "install", "--dry-run", "--home", tmp_path / "home").out
    assert any(line.startswith("ReadWritePaths=") and "-/data/models" in line.split() for line in unit.splitlines())


def test_a_dry_run_prints_the_unit_and_leaves_no_file(invoke: Invoke, commands: Commands, tmp_path: Path) -> None:
    result = invoke("service", "install", "--dry-run", "--home", tmp_path / "home")
    assert result.code == 0 and commands.run == [] and list(tmp_path.iterdir()) == []
    assert f"-P -m sapo_edge run --home {tmp_path / 'home'}\n" in result.out and "MemoryMax=" in result.out
    told = invoke("service", "install", "--dry-run", "--home", tmp_path / "home", "--json").record
    assert told["text"] == result.out and told["changed"] is False
    system = invoke("service", "install", "--dry-run", "--system")
    assert "User=sapo-edge" in system.out and "--home /var/lib/sapo-edge" in system.out


def test_install_says_what_it_did_and_what_is_left_to_do(invoke: Invoke, commands: Commands, tmp_path: Path) -> None:
    result = invoke("service", "install", "--home", tmp_path / "home").ok()
    assert result.out == f"{tmp_path}/config/systemd/user/sapo-edge.service\n"
    assert all(part in result.err for part in ("of memory", "enable-linger", "SAPO_EDGE_NETWORK", "starts now"))
    assert (tmp_path / "home" / "state").is_dir(), "else the unit's paths would not exist"
    again = invoke("service", "install", "--home", tmp_path / "home", "--no-start")
    assert again.code == 0 and "nothing to change" in again.err and "not started" in again.err
    told = invoke("service", "install", "--home", tmp_path / "home", "--no-start", "--json").record
    assert told["unit"] == result.out.strip() and told["changed"] is False
    removed = invoke("service", "remove", "--json")
    assert removed.code == 0 and "untouched" in removed.err and removed.record["removed"] is True
    assert "nothing to remove" in invoke("service", "remove").err


@pytest.mark.parametrize("command", ["install", "remove"])
def test_the_unit_of_another_program_stays(invoke: Invoke, commands: Commands, tmp_path: Path, command: str) -> None:
    unit = Systemd(system=False).unit("backup")
    unit.parent.mkdir(parents=True)
    unit.write_text("[Service]\nExecStart=/usr/bin/backup\n")
    home = ("--home", tmp_path / "home") if command == "install" else ()
    assert_refused(invoke("service", command, "--name", "backup", *home), 2, "another --name")
    assert "/usr/bin/backup" in unit.read_text() and commands.run == [] and not (tmp_path / "home").exists()


def test_it_does_not_compete_with_a_node_in_a_terminal(invoke: Invoke, commands: Commands, tmp_path: Path) -> None:
    paths = Paths.default(tmp_path / "home")
    paths.create()
    with StateLock(paths.lock):
        result = invoke("service", "install", "--home", tmp_path / "home")
    assert result.code == 0 and "sapo stop --wait" in result.err
    assert not any("--no-block" in line for line in commands.run)


def test_a_service_in_a_swarm_needs_the_owners_consent(
    invoke: Invoke, commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAPO_EDGE_NETWORK", "swarm")
    monkeypatch.setenv("SAPO_EDGE_CONSENT", "ask")
    consent = Paths.default(tmp_path / "home").consent
    assert "works alone until" in invoke("service", "install", "--home", tmp_path / "home").err
    assert not consent.exists()
    agreed = invoke("service", "install", "--home", tmp_path / "home", "--agree")
    assert "works alone" not in agreed.err and json.loads(consent.read_text())["how"] == "--agree"


@pytest.mark.parametrize("name", ["", "-x", "a b", "a/../b", "A", "x" * 40, "a.service"])
def test_names_of_services_are_bounded(invoke: Invoke, name: str) -> None:
    assert_refused(invoke("service", "install", "--dry-run", f"--name={name}"), 2, "name for a service")


def test_status_exits_with_3_unless_it_runs(invoke: Invoke, commands: Commands) -> None:
    assert invoke("service", "status", "--json").code == 3
    commands.active = True
    result = invoke("service", "status", "--json")
    assert result.code == 0 and result.record["service"] == "sapo-edge"
    user, system = (Systemd(system=value).log_command("x", 20, follow=value) for value in (False, True))
    assert user == ["journalctl", "--user-unit", "x.service", "--lines", "20"]
    assert system == ["journalctl", "--unit", "x.service", "--lines", "20", "--follow"]


def test_a_program_that_its_user_cannot_reach_is_refused(
    invoke: Invoke, commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    (private / "python").write_text("")
    (private / "python").chmod(0o755)
    monkeypatch.setattr("sys.executable", str(private / "python"))
    refused = invoke("service", "install", "--system", "--home", tmp_path / "home")
    assert_refused(refused.last, 2, "--global")
    assert commands.run == [] and not (tmp_path / "home").exists()


def test_what_root_prepared_is_the_users_and_what_it_links_to_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user of a service may replace what is in its home before root installs the service again."""
    system = plan(tmp_path / "home", user="sapo-edge")
    state, chowned = system.paths.state, set[int]()
    kept, swarms = state / "manifests" / "ab.manifest", state / "swarms.json"
    kept.parent.mkdir(parents=True)
    (tmp_path / "root's").mkdir()
    system.paths.cache.symlink_to(tmp_path / "root's")
    for file in (kept, system.paths.identity, system.paths.questions, tmp_path / "shadow"):
        file.touch()
    for link in (swarms, system.paths.consent):
        link.symlink_to(tmp_path / "shadow")
    owner = SimpleNamespace(pw_uid=12345, gr_gid=12345)
    monkeypatch.setattr("pwd.getpwnam", lambda name: owner)
    monkeypatch.setattr("grp.getgrnam", lambda name: owner)
    monkeypatch.setattr(os, "chown", lambda place, *_, **how: chowned.add(os.stat(place, **how).st_ino))
    write_consent(system.paths.consent, "--agree")
    service._hand_over(system)
    given = {kept, kept.parent, swarms, state, state.parent, system.paths.cache, system.paths.consent}
    assert chowned == {file.lstat().st_ino for file in given} and not (tmp_path / "shadow").read_bytes()


def test_a_node_reports_to_its_supervisor_from_its_start_to_its_end(model: Path, tmp_path: Path) -> None:
    variables = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "4000000"}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(variables["NOTIFY_SOCKET"])
        supervisor.settimeout(SECONDS)
        before, until = f"import os; os.environ.update({variables!r})", time.monotonic() + SECONDS
        node = fork(*quick(model, tmp_path / "home", "--set", "held_out=0"), directory=tmp_path, before=before)

        def heard(begin: str) -> str:
            """The next message that begins so."""
            while not (message := supervisor.recv(4096).decode()).startswith(begin):
                assert time.monotonic() < until, f"the node did not say {begin}"
            return message

        assert heard("READY") == "READY=1" and heard("WATCHDOG") == "WATCHDOG=1" and heard("STATUS=round ")
        node.send_signal(signal.SIGTERM)
        assert "EXTEND_TIMEOUT_USEC=" in heard("STOPPING=1") and node.wait(SECONDS) == 0
    assert checkpoints(tmp_path / "home")
