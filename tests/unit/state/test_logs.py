"""Logging to stderr and a file."""

import logging
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from sapo_edge.errors import ConfigError, StateError
from sapo_edge.state import logs


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers[:] = []
    yield
    for handler in root.handlers:
        handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("sapo_edge").setLevel(logging.NOTSET)


def test_stderr_gets_its_level_and_stdout_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("warning")
    logging.getLogger("sapo_edge.node").info("quiet")
    logging.getLogger("sapo_edge.node").warning("loud")
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err == "WARNING sapo_edge.node: loud\n"


def test_the_file_gets_more_than_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "log"
    logs.configure("error", file)
    logs.configure("error", file)
    logging.getLogger("sapo_edge.node").info("kept \udc80")
    logging.getLogger("elsewhere").info("not ours")
    lines = file.read_text().splitlines()
    assert len(lines) == 1 and lines[0].endswith("INFO MainThread sapo_edge.node: kept \\udc80")
    assert capsys.readouterr().err == ""


def test_the_file_is_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_BYTES", 200)
    logs.configure("error", tmp_path / "log")
    for _ in range(20):
        logging.getLogger("sapo_edge").info("a line")
    assert len(list(tmp_path.iterdir())) == 1 + logs.OLDER_FILES


def test_without_stderr_nothing_reaches_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("debug", stderr=False)
    logging.getLogger("sapo_edge").error("hidden")
    assert capsys.readouterr().err == ""


def test_a_full_disk_is_reported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    device = Path("/dev/full")
    if not device.exists() or not stat.S_ISCHR(device.stat().st_mode):
        pytest.skip("no /dev/full here")
    (tmp_path / "log").symlink_to(device)
    logs.configure("error", tmp_path / "log")
    for _ in range(3):
        logging.getLogger("sapo_edge").info("x" * 10_000)
    assert capsys.readouterr().err.count("can't write to the log") == 1


def test_an_unknown_level_or_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="debug, info"):
        logs.configure("loud")
    with pytest.raises(StateError, match="log"):
        logs.configure("info", tmp_path / "none" / "log")
