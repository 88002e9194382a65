"""Property lists as macOS reads them; nothing here has been run on a Mac."""

from __future__ import annotations

import plistlib
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from sapo_edge.errors import StateError
from sapo_edge.service.launchd import Launchd
from tests.unit.service.plans import plan


class Commands:
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


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Commands:
    monkeypatch.setenv("HOME", str(tmp_path))
    return Commands()


def test_the_list_says_what_launchd_has_to_know(tmp_path: Path) -> None:
    made = plan(tmp_path / "a & b <c>", environment={"HF_HOME": "/x"}, user="sapo-edge")
    found = plistlib.loads(Launchd(system=True).render(made).encode())
    assert found["ProgramArguments"] == [*made.command, "--json"] and found["Label"] == "sapo-edge"
    assert found["KeepAlive"] == {"SuccessfulExit": False} and found["RunAtLoad"] is True
    assert found["ExitTimeOut"] == 900 and found["Nice"] == 10 and found["ProcessType"] == "Background"
    assert found["UserName"] == "sapo-edge" and found["EnvironmentVariables"] == {"HF_HOME": "/x"}
    assert found["Umask"] == 0o077 and found["StandardErrorPath"].startswith(str(made.paths.state))


def test_install_renew_and_remove(commands: Commands, tmp_path: Path) -> None:
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
