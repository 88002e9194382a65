"""Machines without a screen: `sapo setup` and `sapo service`, and a node under a supervisor that the test is."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from sapo_edge.backends.machine import memory
from sapo_edge.cli import service
from sapo_edge.config.layers import resolve
from sapo_edge.config.settings import SETTINGS
from sapo_edge.doctor.profile import LARGE, MIB, PROFILES, choose_profile
from sapo_edge.service.systemd import Systemd
from sapo_edge.state.consent import write_consent
from sapo_edge.state.lock import StateLock
from sapo_edge.state.paths import HOME_VARIABLE, Paths
from sapo_edge.swarm.joining.membership import Membership
from tests.cli.conftest import checkpoints, quick
from tests.cli.inprocess import Invoke
from tests.cli.process import TIMEOUT, assert_refused, fork
from tests.swarm.joining.test_invite import HERE
from tests.unit.service.test_systemd import Commands, plan


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPO_EDGE_NETWORK", "solo")


def test_a_dry_run_prints_the_unit_and_leaves_no_file(
    invoke: Invoke, commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", "/data/models")
    monkeypatch.setenv("SAPO_EDGE_MODEL", "hf:a/b")
    result = invoke("service", "install", "--dry-run", "--home", tmp_path / "home")
    assert result.code == 0 and commands.run == [] and list(tmp_path.iterdir()) == []
    assert f"-P -m sapo_edge run --home {tmp_path / 'home'}\n" in result.out and "MemoryMax=" in result.out
    (places,) = (line for line in result.out.splitlines() if line.startswith("ReadWritePaths="))
    assert "-/data/models" in places.split(), "a model of the hub can be written wherever models are"
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
    commands.run.clear()
    with StateLock(Paths.default(tmp_path / "home").lock):
        competing = invoke("service", "install", "--home", tmp_path / "home").ok()
    assert "sapo stop --wait" in competing.err and not any("--no-block" in line for line in commands.run)


@pytest.mark.parametrize("command", ["install", "remove"])
def test_the_unit_of_another_program_stays(invoke: Invoke, commands: Commands, tmp_path: Path, command: str) -> None:
    unit = Systemd(system=False).unit("backup")
    unit.parent.mkdir(parents=True)
    unit.write_text("[Service]\nExecStart=/usr/bin/backup\n")
    home = ("--home", tmp_path / "home") if command == "install" else ()
    assert_refused(invoke("service", command, "--name", "backup", *home), 2, "another --name")
    assert "/usr/bin/backup" in unit.read_text() and commands.run == [] and not (tmp_path / "home").exists()


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
    assert_refused(invoke("service", "install", "--system", "--home", tmp_path / "home"), 2, "--global")
    assert commands.run == [] and not (tmp_path / "home").exists()


def test_what_root_made_is_the_users_and_what_it_links_to_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        supervisor.settimeout(TIMEOUT)
        before, until = f"import os; os.environ.update({variables!r})", time.monotonic() + TIMEOUT
        node = fork(*quick(model, tmp_path / "home", "--set", "held_out=0"), directory=tmp_path, before=before)

        def heard(begin: str) -> str:
            """The next message that begins so."""
            while not (message := supervisor.recv(4096).decode()).startswith(begin):
                assert time.monotonic() < until, f"the node did not say {begin}"
            return message

        assert heard("READY") == "READY=1" and heard("WATCHDOG") == "WATCHDOG=1" and heard("STATUS=round ")
        node.send_signal(signal.SIGTERM)
        assert "EXTEND_TIMEOUT_USEC=" in heard("STOPPING=1") and node.wait(TIMEOUT) == 0
    assert checkpoints(tmp_path / "home")


@pytest.mark.parametrize(
    ("megabytes", "name"),
    [(430, "512mb"), (920, "1gb"), (1900, "2gb"), (3790, "4gb"), (7800, "8gb"), (LARGE // MIB, ""), (15_900, "")],
)
def test_the_profile_follows_the_memory_that_such_a_machine_shows(megabytes: int, name: str) -> None:
    assert choose_profile(megabytes * MIB) == name


def test_profiles_are_settings_that_exist_and_go_together() -> None:
    for profile in PROFILES.values():
        resolved = resolve(dict(profile.settings), environ={})
        assert all(getattr(resolved.settings, name) == value for name, value in profile.settings.items())
        assert all(value != SETTINGS[name].default for name, value in profile.settings.items()), "no more than needed"
    assert [profile.memory for profile in PROFILES.values()] == sorted({p.memory for p in PROFILES.values()})


def test_one_file_makes_ten_nodes(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SAPO_EDGE_NETWORK", raising=False)
    monkeypatch.setattr(memory, "total_memory", lambda: 1900 * MIB)
    founder = tmp_path / "founder"
    invoke("swarm", "create", "starter", "--private", "--bootstrap", HERE, "--home", founder)
    invite = invoke("swarm", "invite", "--home", founder).out.strip().splitlines()[-1]
    file = tmp_path / "sapo.toml"
    file.write_text(f'invite = "{invite}"\n[settings]\nconsent = "given"\nown = 3\nmax_temperature = 75\n')
    for number in range(2):
        home = tmp_path / f"pi{number}"
        result = invoke("setup", file, "--home", home).ok()
        assert "profile 2gb" in result.err and "joined starter" in result.out
        settings = resolve(file=Paths.default(home).config_file, environ={}).settings
        assert (settings.own, settings.rank, settings.consent, settings.max_temperature) == (3, 8, "given", 75)
        current = Membership(Paths.default(home).state).current
        assert current is not None and current.is_private
        assert not Paths.default(home).identity.exists(), "each machine makes its own"
        before = Paths.default(home).config_file.stat().st_mtime_ns
        assert invoke("setup", file, "--home", home).out == ""
        assert Paths.default(home).config_file.stat().st_mtime_ns == before, "nothing is written a second time"


def test_a_systems_service_gets_its_settings(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed: list[dict[str, object]] = []
    monkeypatch.delenv(HOME_VARIABLE, raising=False)
    monkeypatch.setattr(service, "SYSTEM_HOME", tmp_path / "system")
    monkeypatch.setattr(service, "install", lambda **options: installed.append(options))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sapo.toml").write_text('service = "system"\nprofile = "1gb"\n[settings]\nmodel = "tiny.gguf"\n')
    assert invoke("setup", tmp_path / "sapo.toml").code == 0
    assert installed == [{"system": True, "home": tmp_path / "system"}]
    settings = resolve(file=tmp_path / "system" / "config" / "config.toml", environ={}).settings
    assert settings.role == "generator" and settings.model == str(tmp_path / "tiny.gguf")


@pytest.mark.parametrize(("text", "part"), [
    ("own = 6", "'own' is not understood"), ("[settings]\nonw = 6", "onw"), ("[settings]\nown = 0", "own"),
    ("settings = 1", "settings"), ("profile = 1", "profile"), ('service = "all"', "none, user, system"),
    ("x", "can't be used"), ('invite = "hello"', "invite"), ("a" * 70_000, "more than"),
])  # fmt: skip
def test_a_wrong_file_is_refused(invoke: Invoke, tmp_path: Path, text: str, part: str) -> None:
    (tmp_path / "sapo.toml").write_text(f"{text}\n")
    result = invoke("setup", tmp_path / "sapo.toml", "--home", tmp_path / "home")
    assert result.code in (1, 2) and part in result.err and "Traceback" not in result.err


def test_settings_are_written_all_or_none(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, home = tmp_path / "sapo.toml", tmp_path / "home"
    file.write_text('profile = "none"\n[settings]\nown = 2\n')
    invoke("setup", file, "--home", home).ok()
    before = Paths.default(home).config_file.read_text()
    file.write_text('profile = "none"\n[settings]\nshare = 16\nanswers = 0\n')
    assert_refused(invoke("setup", file, "--home", home), 2, "answers = 0 (set-up)")
    assert Paths.default(home).config_file.read_text() == before
    monkeypatch.setenv("SAPO_EDGE_PROFILE", "1gb")
    assert invoke("setup", "--home", tmp_path).code == 0
    assert invoke("config", "get", "role", "--home", tmp_path).out == "generator\n", "and it is no wrong setting"
    monkeypatch.setenv("SAPO_EDGE_PROFILE", "3gb")
    assert_refused(invoke("setup", "--home", tmp_path), 2, "512mb, 1gb")
