"""Units as systemd itself judges them, lists as macOS reads them, and the commands that install and remove them.

Nothing for launchd has been run on a Mac.
"""

from __future__ import annotations

import dataclasses
import json
import os
import plistlib
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapo_edge.errors import ConfigError, StateError
from sapo_edge.service import systemd
from sapo_edge.service.launchd import Launchd
from sapo_edge.service.manager import run_command
from sapo_edge.service.plan import ServicePlan, memory_limit
from sapo_edge.service.systemd import Systemd, quote, render, users_may_isolate
from sapo_edge.state.paths import Paths

ANALYZE = shutil.which("systemd-analyze")
needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed: apt install systemd")
HOMES = ["/srv/node", "/home/me/a b", "/srv/100% $HOME/\\x", '/srv/"quoted"']


def plan(home: Path, **changes: Any) -> ServicePlan:
    command = ("/usr/bin/python3", "-P", "-m", "sapo_edge", "run", "--home", str(home))
    base = ServicePlan("sapo-edge", command, Paths.default(home), user="", memory=2**31, nice=10)
    return dataclasses.replace(base, **changes)


def unit(home: str = "/srv/node", *, version: int = 252, namespaces: bool = True, **changes: Any) -> str:
    """The text of a unit."""
    return render(plan(Path(home), **changes), version=version, namespaces=namespaces)


def settings(*home: str, **options: Any) -> dict[str, list[str]]:
    """All values of each setting of a unit."""
    found: dict[str, list[str]] = {}
    for line in unit(*home, **options).splitlines():
        if line and line[0].isalpha():
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def test_a_program_that_is_not_installed_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"can't run no-such-program: No such file .*; install"):
        run_command(["no-such-program"])

    def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 0, "ActiveState=active\nStatusText=round 1: a=b\n\n", "")

    found = Systemd(system=True, run=run).properties("x")
    assert json.loads(json.dumps(found)) == {"ActiveState": "active", "StatusText": "round 1: a=b"}


def analyze(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    assert ANALYZE is not None
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(directory), "SYSTEMD_LOG_LEVEL": "warning"}
    return subprocess.run([ANALYZE, *arguments], capture_output=True, text=True, env=environment, check=False)


@needs_systemd
@pytest.mark.parametrize("user", ["", "root"])
def test_systemd_understands_every_line_and_would_find_a_wrong_one(tmp_path: Path, user: str) -> None:
    texts = [unit(home, user=user, environment={"XDG_STATE_HOME": f"{home}/x y"}) for home in HOMES]
    wrong = texts[0].replace("ProtectSystem=", "ProtectSytem=")
    files = [tmp_path / f"sapo-edge-{number}.service" for number in range(len(HOMES) + 1)]
    for file, text in zip(files, (*texts, wrong), strict=True):
        file.write_text(text.replace("/usr/bin/python3", "/bin/true"))
    arguments = ["verify", "--man=no", *([] if user else ["--user"])]
    result = analyze(tmp_path, *arguments, *map(str, files[:-1]))
    assert result.returncode == 0 and "sapo-edge" not in result.stderr, result.stderr
    assert "ProtectSytem" in analyze(tmp_path, *arguments, str(files[-1])).stderr


@needs_systemd
@pytest.mark.parametrize(("user", "highest"), [("root", 25), ("", 50)])
def test_systemd_calls_the_unit_well_protected(tmp_path: Path, user: str, highest: int) -> None:
    file = tmp_path / "sapo-edge.service"
    # What the offline analysis takes for root, because it does not know the user's manager, counts against it.
    file.write_text(unit(user=user).replace("User=root", "User=daemon"))
    result = analyze(tmp_path, "security", "--offline=true", f"--threshold={highest}", "--no-pager", str(file))
    assert result.returncode == 0, result.stdout[-2000:]


def test_only_the_nodes_directories_can_be_written_and_temporary_ones_are_shared() -> None:
    found = settings("/srv/a b", hub=(Path("/srv/hub"),))
    places = ['-"/srv/a b/state"', '-"/srv/a b/cache"', '-"/srv/a b/run"', "-/srv/hub"]
    assert found["ProtectSystem"] == ["strict"] and found["ReadWritePaths"] == [" ".join(places)]
    for found, is_own in ((settings("/tmp/node"), "no"), (settings(shares_tmp=True), "no"), (settings(), "yes")):
        assert found["PrivateTmp"] == [is_own]
        assert ("-/tmp" in found["ReadWritePaths"][0].split()) == (is_own == "no")


def test_what_a_unit_says_of_restarts_namespaces_and_homes() -> None:
    found = settings()
    assert found["Restart"] == ["on-failure"] and found["StartLimitIntervalSec"] == ["0"]
    assert found["RestartPreventExitStatus"] == ["2"] and found["SuccessExitStatus"] == ["130"]
    assert found["Type"] == ["notify"] and found["KillMode"] == ["mixed"] and "RestartSteps" not in found
    assert settings(version=254)["RestartMaxDelaySec"] == ["30min"]
    found = settings(namespaces=False)
    assert "PrivateUsers" not in found and "ProtectSystem" not in found
    assert found["NoNewPrivileges"] == ["yes"] and found["SystemCallFilter"] == ["@system-service", "~@privileged"]
    found = settings(user="x", devices=True, groups=("render",))
    assert "PrivateDevices" not in found and found["SupplementaryGroups"] == ["render"]
    system, user = (settings("/var/lib/x", user=name) for name in ("sapo-edge", ""))
    assert system["ProtectHome"] == ["yes"] and system["User"] == ["sapo-edge"]
    assert user["ProtectHome"] == ["read-only"] and user["PrivateUsers"] == ["yes"]
    assert system["WantedBy"] == ["multi-user.target"] and user["WantedBy"] == ["default.target"]
    assert "User" not in user and "After" not in user
    assert settings("/home/me/x", user="sapo-edge")["ProtectHome"] == ["read-only"]


def unquote(word: str) -> str:
    """What systemd reads: systemd.syntax(7), systemd.service(5)."""
    inner = word[1:-1] if word.startswith('"') else word
    return re.sub(r"\\(.)", r"\1", inner).replace("%%", "%").replace("$$", "$")


@given(st.text(st.characters(exclude_categories=["C", "Z"], include_characters=" "), min_size=1))
def test_quoted_words_are_read_back(text: str) -> None:
    word = quote(text, variables=True)
    assert unquote(word) == text and (word.startswith('"') or not re.search(r"[\s'\"\\]", word))


@pytest.mark.parametrize("text", ["a\nExecStartPre=/bin/sh", "\x1b", "a\x00b", "\u202e"])
def test_control_characters_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        quote(text)


class Commands:
    """Commands that succeed unless told otherwise."""

    def __init__(self) -> None:
        self.run: list[str] = []
        self.active = False
        self.refused = ""

    def __call__(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        line = " ".join(command)
        if line == "systemctl --version":
            return subprocess.CompletedProcess(command, 0, "systemd 252 (252.1)\n", "")
        if " is-active " in line:
            return subprocess.CompletedProcess(command, 0, "active\n" if self.active else "inactive\n", "")
        self.run.append(line)
        failed = bool(self.refused) and self.refused in line
        return subprocess.CompletedProcess(command, int(failed), "", "no bus\x1b[2J" if failed else "")


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Commands:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return Commands()


def test_installing_twice_changes_nothing_and_removing_stops_it_first(commands: Commands, tmp_path: Path) -> None:
    manager = Systemd(system=False, run=commands)
    assert manager.install(plan(tmp_path), start=True)
    unit = tmp_path / "config" / "systemd" / "user" / "sapo-edge.service"
    before, start = unit.read_bytes(), "systemctl --user --no-block start sapo-edge.service"
    assert commands.run == ["systemctl --user daemon-reload", "systemctl --user enable sapo-edge.service", start]
    commands.active, commands.run = True, []
    assert not manager.install(plan(tmp_path), start=True) and unit.read_bytes() == before
    assert commands.run[-1] == start, "a running node is left alone"
    assert manager.install(plan(tmp_path, memory=2**30), start=True)
    assert commands.run[-1] == "systemctl --user --no-block restart sapo-edge.service"
    commands.run = []
    manager.install(plan(tmp_path, memory=2**29), start=False)
    assert not any("start" in line.split() for line in commands.run)
    commands.run = []
    assert manager.remove("sapo-edge") and not unit.exists() and not manager.remove("sapo-edge")
    assert commands.run == ["systemctl --user disable --now sapo-edge.service", "systemctl --user daemon-reload"]


def test_a_refusal_is_one_line_with_a_remedy(commands: Commands, tmp_path: Path) -> None:
    commands.refused = "daemon-reload"
    with pytest.raises(StateError, match=r"no bus.*log in as this user") as caught:
        Systemd(system=False, run=commands).install(plan(tmp_path), start=False)
    assert "\x1b" not in str(caught.value)


def test_without_systemd_another_way_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(systemd, "BOOTED", tmp_path / "none")
    with pytest.raises(ConfigError, match="sapo start") as caught:
        Systemd(system=False).check("x")
    assert "command -v sapo" in str(caught.value), "cron's path is short"
    monkeypatch.setattr(systemd, "BOOTED", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ConfigError, match="sudo"):
        Systemd(system=True).check("x")
    switch = tmp_path / "switch"
    monkeypatch.setattr(systemd, "_NAMESPACE_SWITCHES", {str(switch): "0"})
    assert users_may_isolate()
    for value, allowed in (("1\n", True), ("0\n", False)):
        switch.write_text(value)
        assert users_may_isolate() is allowed


class LaunchdCommands:
    """The same of launchd."""

    def __init__(self) -> None:
        self.run: list[list[str]] = []
        self.loaded = False
        self.fails = False

    def __call__(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        verb = command[1]
        if verb == "print":
            return subprocess.CompletedProcess(command, 0 if self.loaded else 113, "state = running\n", "")
        self.run.append(list(command[1:]))
        self.loaded = verb == "bootstrap"
        return subprocess.CompletedProcess(command, int(self.fails), "", "Bootstrap failed: 5")


def test_the_list_says_what_launchd_has_to_know(tmp_path: Path) -> None:
    made = plan(tmp_path / "a & b <c>", environment={"HF_HOME": "/x"}, user="sapo-edge")
    found = plistlib.loads(Launchd(system=True).render(made).encode())
    assert found["ProgramArguments"] == [*made.command, "--json"] and found["Label"] == "sapo-edge"
    assert found["KeepAlive"] == {"SuccessfulExit": False} and found["RunAtLoad"] is True
    assert found["ExitTimeOut"] == 900 and found["Nice"] == 10 and found["ProcessType"] == "Background"
    assert found["UserName"] == "sapo-edge" and found["EnvironmentVariables"] == {"HF_HOME": "/x"}
    assert found["Umask"] == 0o077 and found["StandardErrorPath"].startswith(str(made.paths.state))


def test_launchd_installs_renews_and_removes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    commands = LaunchdCommands()
    agent = Launchd(system=False, run=commands)
    file = tmp_path / "Library" / "LaunchAgents" / "sapo-edge.plist"
    assert agent.install(plan(tmp_path), start=True) and plistlib.loads(file.read_bytes())["Label"] == "sapo-edge"
    assert [command[0] for command in commands.run] == ["bootstrap"] and agent.is_running("sapo-edge")
    assert not agent.install(plan(tmp_path), start=True) and len(commands.run) == 1
    assert agent.install(plan(tmp_path, nice=5), start=True)
    assert [command[0] for command in commands.run[1:]] == ["bootout", "bootstrap"]
    assert agent.remove("sapo-edge") and not file.exists() and not agent.remove("sapo-edge")
    commands.fails = True
    with pytest.raises(StateError, match="Bootstrap failed: 5; log in"):
        Launchd(system=False, run=commands).install(plan(tmp_path), start=True)


@given(st.one_of(st.none(), st.integers(0, 2**40)), st.integers(2**29, 2**40))
def test_memory_is_more_than_needed_and_less_than_the_machine_has(needed: int | None, machine: int) -> None:
    limit = memory_limit(needed, machine)
    assert limit <= 0.9 * machine
    assert limit == int(0.9 * machine) if needed is None else limit > needed or limit == int(0.9 * machine)
