"""Logging to a file."""

import json
import logging
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapo_edge.errors import StateError
from sapo_edge.events import Notice, to_json
from sapo_edge.state import logs
from sapo_edge.state.log_reader import LogReader
from sapo_edge.tui.node.records import parse_record


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


def test_the_file_gets_more_than_the_terminal_which_gets_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure()
    logging.getLogger("sapo_edge").error("hidden")
    file = tmp_path / "log"
    logs.configure(file)
    logs.configure(file)
    logging.getLogger("sapo_edge.node").info("kept \udc80")
    logging.getLogger("elsewhere").info("not ours")
    lines = file.read_text().splitlines()
    assert len(lines) == 1
    fields = json.loads(lines[0])
    assert list(fields) == ["time", "level", "thread", "source", "text"] and abs(fields["time"] - time.time()) < 60
    assert list(fields.values())[1:] == ["info", "MainThread", "sapo_edge.node", "kept \udc80"]
    assert logs.as_text(lines[0]).endswith("Z INFO MainThread sapo_edge.node: kept \udc80")
    assert capsys.readouterr() == ("", "")


def test_a_torn_last_line_does_not_take_the_next_one_with_it(tmp_path: Path) -> None:
    file = tmp_path / "log"
    for torn in (b'{"time":1,"lev', b"whole\n"):
        file.write_bytes(torn)
        logs.configure(file)
        logging.getLogger("sapo_edge.node").info("next")
        first, second = file.read_text().splitlines()
        assert first == torn.decode().strip() and json.loads(second)["text"] == "next"


def test_events_and_errors_are_one_line_each_and_read_as_before(tmp_path: Path) -> None:
    logs.configure(tmp_path / "log")
    event = to_json(Notice(level="warning", text='a "word"\n{"time":', time=5.5))
    logger = logging.getLogger("sapo_edge.node")
    logger.info(event)
    try:
        raise ValueError("an error")
    except ValueError:
        logger.exception("failed")
    logger.info('{"v":')
    first, second, third = (tmp_path / "log").read_text().splitlines()
    assert json.loads(first)["event"] == json.loads(event) and logs.as_text(first).endswith(f" sapo_edge.node: {event}")
    assert json.loads(second)["text"].startswith("failed\nTraceback") and json.loads(third)["text"] == '{"v":'
    reader = LogReader(tmp_path / "log", parse_record)
    assert reader.read()
    notice, error, rest = reader.records
    assert (notice.level, notice.source) == ("warning", "") and notice.time is not None
    assert (error.level, error.source, error.thread) == ("error", "node", "MainThread")
    assert error.text.endswith("lines: ValueError: an error]") and rest.text == '{"v":'


@given(st.text(max_size=60), st.sampled_from(["", logs.LINE_START, '{"time":1,"level":"x","thread":1,"source":2,']))
def test_any_line_can_be_read(text: str, start: str) -> None:
    assert isinstance(logs.as_text(start + text), str)


def test_the_file_is_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_BYTES", 200)
    logs.configure(tmp_path / "log")
    for _ in range(20):
        logging.getLogger("sapo_edge").info("a line")
    assert len(list(tmp_path.iterdir())) == 1 + logs.OLDER_FILES
    with pytest.raises(StateError, match="log"):
        logs.configure(tmp_path / "none" / "log")


def test_a_full_disk_is_reported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    device = Path("/dev/full")
    if not device.exists() or not stat.S_ISCHR(device.stat().st_mode):
        pytest.skip("no /dev/full here")
    (tmp_path / "log").symlink_to(device)
    logs.configure(tmp_path / "log")
    for _ in range(3):
        logging.getLogger("sapo_edge").info("x" * 10_000)
    assert capsys.readouterr().err.count("can't write to the log") == 1
