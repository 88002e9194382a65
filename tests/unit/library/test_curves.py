"""Figures for libraries that draw curves: which, where to, and that none of them can disturb a round."""

from __future__ import annotations

import os
import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest import mock
from unittest.mock import DEFAULT, Mock

import pytest

from sapo_edge import events
from sapo_edge.config.curves import CURVES, describe_curves, goes_to
from sapo_edge.errors import StateError
from sapo_edge.library import curves
from sapo_edge.library.curves import Curves, Figures, Target, figures_of, open_curves
from tests.defences.defence import fails_without

ROUND = events.RoundFinished(
    round=3, reward_own=0.5, reward_external=0.25, groups=8, informative=6, own=4, external=4, tokens=600,
    seconds_generate=2.0, seconds_update=4.0, statistics={"loss": 0.125, "entropy": 1.5}, received=7,
)  # fmt: skip
HELD_OUT = events.HeldOut(round=3, accuracy=0.5, correct=2, questions=4, low=0.2, high=0.8, split="validation")
GAIN = events.Comparison(round=2, questions=4, base=1, adapter=3, gain=0.5, low=0.1, high=0.9)
AHEAD = events.HeadStart(updates=20, learned=9, accuracy=0.75, correct=3, questions=4)


def test_each_event_with_figures_gives_them_and_the_others_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    figures, round = figures_of(ROUND)
    assert round == 3 and figures["reward/own"] == 0.5 and figures["reward/external"] == 0.25
    assert figures["groups/teaching"] == 6 and figures["groups/teaching_share"] == 0.75
    assert figures["speed/tokens_per_second"] == 300 and figures["swarm/received"] == 7
    assert figures["update/loss"] == 0.125 and figures["update/entropy"] == 1.5
    assert figures_of(HELD_OUT)[0]["held_out/validation"] == 0.5
    assert figures_of(GAIN) == (
        {"gain/points": 0.5, "gain/low": 0.1, "gain/high": 0.9, "gain/base": 0.25, "gain/adapter": 0.75}, 2
    )  # fmt: skip
    assert figures_of(AHEAD) == ({"head_start/validation": 0.75, "head_start/learned": 9}, 20)
    for event in (events.Notice(level="info", text="secret"), events.NodeStopped(reason="secret", rounds=1)):
        assert not figures_of(event)[0]
    for name in ("WANDB_MODE", "WANDB_BASE_URL", "TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    assert describe_curves("") == ""
    assert {name: "sends" in describe_curves(name) for name in CURVES} == dict.fromkeys(CURVES, False) | {"wandb": True}


@pytest.mark.parametrize(("library", "environment", "place"), [
    ("", {"WANDB_API_KEY": "x"}, ""),
    ("wandb", {}, "wandb.ai"),
    ("wandb", {"WANDB_MODE": "offline"}, ""),
    ("wandb", {"WANDB_BASE_URL": "https://me:secret@own.example/path"}, "own.example"),
    ("trackio", {}, ""),
    ("trackio", {"TRACKIO_SPACE_ID": "me/curves"}, "the Space me/curves of the Hugging Face hub"),
    ("trackio", {"TRACKIO_SERVER_URL": "https://own.example/?write_token=secret"}, "own.example"),
    ("mlflow", {}, ""),
    ("mlflow", {"MLFLOW_TRACKING_URI": "sqlite:////data/mlflow.db"}, ""),
    ("mlflow", {"MLFLOW_TRACKING_URI": "http://me:secret@own.example:5000"}, "own.example"),
    ("mlflow", {"MLFLOW_TRACKING_URI": "databricks"}, "databricks"),
    ("mlflow", {"MLFLOW_TRACKING_URI": "mlruns"}, ""),
    ("mlflow", {"MLFLOW_TRACKING_URI": "http://me:secret@[::1:5000"}, "http"),
    ("trackio", {"MLFLOW_TRACKING_URI": "http://own.example"}, ""),
])  # fmt: skip
def test_where_figures_go_is_told_without_passwords(library: str, environment: dict[str, str], place: str) -> None:
    with mock.patch.dict(os.environ, environment, clear=True):
        assert goes_to(library) == place


def scalars(directory: Path) -> Iterator[tuple[str, int, float]]:
    """Tag, step and value of each figure of an event file of TensorBoard."""
    from tensorboardX.proto.event_pb2 import Event

    (file,) = directory.glob("events.out.tfevents.*")
    data, place = file.read_bytes(), 0
    while place < len(data):
        # A record: length, its checksum, content, its checksum.
        (length,) = struct.unpack_from("<Q", data, place)
        event = Event.FromString(data[place + 12 : place + 12 + length])
        place += 16 + length
        yield from ((value.tag, event.step, value.simple_value) for value in event.summary.value)


def test_tensorboard_reads_what_is_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    warnings: list[str] = []
    opened = open_curves("tensorboard", tmp_path, "starter-first", warnings.append)
    for event in (AHEAD, ROUND, events.Paused(reasons=()), HELD_OUT, GAIN):
        opened(event)
    opened.close()
    read = {(tag, step): value for tag, step, value in scalars(tmp_path / "tensorboard" / "starter-first")}
    given = map(figures_of, (AHEAD, ROUND, HELD_OUT, GAIN))
    expected = {(tag, round): value for figures, round in given for tag, value in figures.items()}
    # Kept as 32-bit numbers.
    assert read == pytest.approx(expected, rel=1e-6) and not warnings


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Stands for a library and keeps what it is told."""
    module = Mock()
    monkeypatch.setattr(curves, "find_spec", lambda _name: module)
    monkeypatch.setattr(curves, "import_module", lambda _name: module)
    return module


def test_trackio_gets_figures_by_round_and_nothing_of_the_machine(
    module: Mock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module.init.side_effect = lambda **_: sys.stdout.write("a greeting") and DEFAULT
    opened = open_curves("trackio", tmp_path, "starter-first", pytest.fail)
    opened(ROUND)
    opened.close()
    options = {"project": "sapo-edge", "name": "starter-first", "resume": "allow", "embed": False}
    module.init.assert_called_once_with(**options, auto_log_gpu=False, auto_log_cpu=False)
    module.init.return_value.log.assert_called_once_with(figures_of(ROUND)[0], step=3)
    module.finish.assert_called_once_with()
    output = capsys.readouterr()
    assert output.out == "" and "a greeting" in output.err, "stdout is for data"


def test_wandb_gets_figures_but_nothing_of_the_host(
    module: Mock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_curves("wandb", tmp_path, "starter-first", pytest.fail)
    opened(HELD_OUT)
    opened.close()
    assert module.init.call_args.kwargs["reinit"] == "create_new", "a caller's own run is neither used nor ended"
    settings = module.Settings.call_args.kwargs
    assert (settings["console"], settings["host"]) == ("off", "")
    assert all(settings[name] for name in ("disable_git", "disable_code", "x_disable_stats", "x_disable_meta"))
    assert not settings["save_code"] and not settings["x_save_requirements"]
    run = module.init.return_value
    run.define_metric.assert_called_once_with("*", step_metric="round")
    run.log.assert_called_once_with({**figures_of(HELD_OUT)[0], "round": 3})
    run.finish.assert_called_once_with()
    module.login.return_value = False
    monkeypatch.delenv("WANDB_MODE", raising=False)
    with pytest.raises(StateError, match="nobody is logged in; log in with: wandb login"):
        open_curves("wandb", tmp_path, "starter-first", pytest.fail)


def test_a_library_that_is_missing_or_fails_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "find_spec", lambda _name: None)
    with pytest.raises(StateError, match="tensorboard needs tensorboardX, which is not installed; install it with"):
        open_curves("tensorboard", tmp_path, "first", pytest.fail)
    monkeypatch.setattr(curves, "find_spec", lambda _name: object())
    monkeypatch.setattr(curves, "import_module", lambda name: name)
    monkeypatch.setitem(curves._OPENERS, "tensorboard", ("", lambda *_: 1 / 0))
    with pytest.raises(StateError, match=r'can\'t be opened: division by zero; correct .* curves = ""'):
        open_curves("tensorboard", tmp_path, "first", pytest.fail)


@fails_without(
    "library/curves.py",
    're.sub(r"(?<=//)[^/\\s@]*@|\\?\\S+", "", str(error).partition("\\n")[0])',
    'str(error).partition("\\n")[0]',
)
def test_an_error_is_told_once_and_ends_the_curves() -> None:
    warnings: list[str] = []
    log = Mock(side_effect=OSError("https://me:secret@own.example/api?token=secret: the disk is full\nand more"))
    failing = Curves(Target(log, lambda: None), warnings.append)
    for _ in range(3):
        failing(ROUND)
    failing.close()
    failing(ROUND)
    log.assert_called_once_with(figures_of(ROUND)[0], 3)
    assert warnings == ["no more curves: https://own.example/api the disk is full"]


def test_a_library_that_hangs_costs_neither_a_round_nor_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "END_SECONDS", 0.05)
    warnings: list[str] = []
    begun, going_on, closed = threading.Event(), threading.Event(), threading.Event()

    def hang(_figures: Figures, _round: int) -> None:
        begun.set()
        going_on.wait()

    hanging = Curves(Target(hang, closed.set), warnings.append)
    hanging(ROUND)
    assert begun.wait(10)
    for _ in range(curves.WAITING + 1):
        hanging(ROUND)
    assert warnings == ["no more curves: it is too slow"]
    hanging.close()
    assert len(warnings) == 1 and not closed.is_set()
    going_on.set()
    assert closed.wait(10), "it is closed once it goes on"
