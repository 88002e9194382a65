"""Machines without a screen: one file, or variables, make a node; small machines get a profile."""

from __future__ import annotations

from pathlib import Path

import pytest

from sapo_edge.backends.machine import memory
from sapo_edge.cli import service
from sapo_edge.config.layers import resolve
from sapo_edge.config.settings import SETTINGS
from sapo_edge.doctor.profile import LARGE, MIB, PROFILES, choose_profile
from sapo_edge.state.paths import HOME_VARIABLE, Paths
from sapo_edge.swarm.joining.membership import Membership
from tests.cli.inprocess import Invoke
from tests.cli.process import assert_refused

PEER = "12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"


@pytest.mark.parametrize(
    ("megabytes", "name"), [(430, "512mb"), (920, "1gb"), (1900, "2gb"), (3790, "4gb"), (7800, "8gb"), (15_900, "")]
)
def test_the_profile_follows_the_memory_that_such_a_machine_shows(megabytes: int, name: str) -> None:
    assert choose_profile(megabytes * MIB) == name


def test_profiles_are_settings_that_exist_and_go_together() -> None:
    for profile in PROFILES.values():
        resolved = resolve(dict(profile.settings), environ={})
        assert all(getattr(resolved.settings, name) == value for name, value in profile.settings.items())
        assert all(value != SETTINGS[name].default for name, value in profile.settings.items()), "no more than needed"
    assert [profile.memory for profile in PROFILES.values()] == sorted({p.memory for p in PROFILES.values()})
    assert choose_profile(LARGE) == ""


def test_one_file_makes_ten_nodes(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SAPO_EDGE_NETWORK", raising=False)
    monkeypatch.setattr(memory, "total_memory", lambda: 1900 * MIB)
    founder = tmp_path / "founder"
    address = f"/ip4/192.0.2.1/tcp/4001/p2p/{PEER}"
    invoke("swarm", "create", "starter", "--private", "--bootstrap", address, "--home", founder)
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
