"""What marks a line for systemd's journal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sapo_edge.cli.output import priority


def test_only_the_journal_gets_priorities(monkeypatch: pytest.MonkeyPatch) -> None:
    status = os.fstat(2)
    monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
    assert (priority("error"), priority("warning"), priority("info")) == ("<3>", "<4>", "")
    monkeypatch.setenv("JOURNAL_STREAM", "1:2")
    assert priority("error") == ""
    monkeypatch.delenv("JOURNAL_STREAM")
    assert priority("error") == ""


def test_a_commands_error_is_one_in_the_journal(tmp_path: Path) -> None:
    with (tmp_path / "journal").open("wb") as journal:
        status = os.fstat(journal.fileno())
        environment = {**os.environ, "JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}
        command = [sys.executable, "-m", "sapo_edge", "config", "set", "own", "x", "--home", str(tmp_path)]
        assert subprocess.run(command, stderr=journal, env=environment, check=False).returncode == 2
    assert (tmp_path / "journal").read_text().startswith("<3>sapo: own = 'x'")
