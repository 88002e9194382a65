"""What marks a line for systemd's journal."""

from __future__ import annotations

import io
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from sapo_edge.cli.main import main
from sapo_edge.cli.run import _print_result
from sapo_edge.events import NodeStopped
from sapo_edge.library.session import Outcome
from sapo_edge.state.checkpoint import Checkpoint
from sapo_edge.state.checkpoints import Checkpoints
from sapo_edge.state.logs import priority


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


def test_commands_at_the_end_of_a_run_can_be_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "my home"
    saved = Checkpoints(home / "checkpoints").save(Checkpoint(1, "m", "n", 0), lambda directory: None)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "my env" / "sapo"), "run"])
    stopped = NodeStopped(reason="", rounds=1, adapter=str(saved.directory), done=True)
    _print_result(Outcome(stopped, None, None, was_done=False, interrupted=False), home)
    commands = [shlex.split(line)[:4] for line in capsys.readouterr().err.splitlines() if "--home" in line]
    assert [sys.argv[0], "chat", "--home", str(home)] in commands and len(commands) == 6


def test_what_is_no_text_is_read_and_printed_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a locale of UTF-8, whose streams refuse it."""
    home = tmp_path / os.fsdecode(b"home\xff")
    for encoding, name in (("utf-8", b"home\xff"), ("latin-1", rb"home\udcff")):
        shown = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding))
        monkeypatch.setattr(sys, "argv", ["sapo", "paths", "--home", str(home)])
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 0 and os.fsencode(tmp_path / os.fsdecode(name)) in shown.getvalue()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\xff\n"), "utf-8"))
    monkeypatch.setattr(sys, "argv", ["sapo", "swarm", "join", "--home", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
