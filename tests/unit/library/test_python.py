"""The Python interface: with a tiny model, in this process, beside what the commands give."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import re
import shlex
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock, create_autospec

import pytest

import sapo_edge as sapo
from sapo_edge.care.signals import handling
from sapo_edge.cli.swarm import create
from sapo_edge.events import Paused
from sapo_edge.library import adapters
from sapo_edge.library.python import Tasks
from sapo_edge.library.workspace import Workspace
from sapo_edge.state.checkpoint import Checkpoint
from sapo_edge.state.checkpoints import Checkpoints
from sapo_edge.state.paths import Paths
from sapo_edge.swarm.joining.invite import Swarm
from sapo_edge.swarm.joining.membership import Membership
from sapo_edge.tasks.manifest import load_manifest
from tests.cli.process import run as command
from tests.defences.defence import fails_without
from tests.models import SHAPES, write_model

ROWS = [{"question": f"word {number}?", "answer": str(number)} for number in range(12)]
LONG_ROWS = [{"question": f"{number} {'word ' * 500}?"} for number in range(120)]
SHORT_ROWS = [{"question": f"{number}?"} for number in range(4097)]
WEIGHTS = ("adapter_model.safetensors", "optimizer.safetensors")
Train = Callable[..., sapo.Run]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny.gguf", SHAPES["llama-gqa"])


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def by_length(_question: str, _expected: str, text: str) -> float:
    return min(1.0, len(text) / 16)


QUICK = {
    "own": 2, "external": 0, "answers": 4, "threads": 1, "seed": 3, "rank": 2, "max_tokens": 8, "held_out": 4,
    "evaluate_every": 2, "learning_rate": 0.01, "warmup": 0, "head_start": "0", "show": False,
}  # fmt: skip
"""Settings of which rounds take a fraction of a second."""


@pytest.fixture
def train(model: Path, tmp_path: Path) -> Train:
    """Trains the tiny model on tasks, with a home in the test's directory."""

    def train(tasks: Tasks = ROWS, **more: Any) -> sapo.Run:
        return sapo.train(tasks, **{"model": model, "home": tmp_path, "check": by_length, **QUICK, **more})

    return train


def files_of(run: sapo.Run) -> dict[str, bytes]:
    assert run.adapter is not None
    return {name: (run.adapter / name).read_bytes() for name in WEIGHTS}


def test_a_call_gives_what_the_command_gives_file_for_file(train: Train, model: Path, tmp_path: Path) -> None:
    tasks = tmp_path / "mine.jsonl"
    tasks.write_text("\n".join(map(json.dumps, ROWS)))
    ours = train(tasks, rounds=2, check=None, home=tmp_path / "ours", head_start="2")
    settings = ("rank=2", "max_tokens=8", "held_out=4", "evaluate_every=2", "learning_rate=0.01", "warmup=0")
    result = command(
        [
            "run", "--model", model, "--home", tmp_path / "theirs", "--manifest", tasks, "--rounds", "2", "--own", "2",
            "--external", "0", "--answers", "4", "--threads", "1", "--seed", "3", "--head-start", "2", "--solo",
            *(word for setting in settings for word in ("--set", setting)),
        ],
        tmp_path,
    )  # fmt: skip
    assert result.code == 0, result.err
    theirs = sapo.open_run(home=tmp_path / "theirs")
    assert ours.adapter is not None and theirs.adapter is not None and ours.adapter.name == theirs.adapter.name
    assert files_of(ours) == files_of(theirs)
    assert ours.results == theirs.results and len(ours.rounds) == 2


def test_events_and_rounds_are_told_meanwhile(train: Train, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    told: list[sapo.Event] = []
    rounds: list[int] = []
    logging.getLogger("sapo_edge").setLevel(logging.WARNING)
    run = train(rounds=3, on_event=told.append, on_round=lambda event: rounds.append(event.round))
    assert rounds == [1, 2, 3] and [event.round for event in run.rounds] == rounds
    assert {"node_started", "round", "node_stopped"} <= {event.event for event in told}
    assert '"event":"round"' in Paths.default(tmp_path).log.read_text().replace(" ", "").replace("\\", "")
    assert not [record for record in caplog.records if record.levelno < logging.WARNING], "they are for the file"


def test_a_run_goes_on_and_other_tasks_begin_another_beside_it(
    train: Train, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = train(rounds=1)
    assert first.train(1, model=model, **QUICK) is first
    assert len(first.rounds) == 2
    other = train([*ROWS, {"question": "another?", "answer": "x"}], rounds=1)
    assert (other.name, len(other.rounds)) == ("mine", 1) and other.directory != first.directory
    assert first.ask("word 1?") and first.evaluate(2).questions == 2
    assert Paths.default(tmp_path).run_name == other.name, "a question changes nothing about which run goes on"
    again = train(rounds=3)
    assert again.name == first.name and len(again.rounds) == 3
    assert first.ask("word 1?") == sapo.open_run(first.name, home=tmp_path).ask("word 1?")
    train(rounds=3, show=True)
    assert "nothing to do: first has its 3 rounds" in capsys.readouterr().err
    assert sapo.open_run("mine", home=tmp_path, check=by_length).adapter == other.adapter


def test_a_run_is_asked_compared_and_exported(train: Train, tmp_path: Path) -> None:
    with train(rounds=2) as run:
        assert run.ask("word 3?", base=True) == run.ask("word 3?", base=True)
        assert isinstance(run.ask("word 3?", plain=True), str)
        compared = run.evaluate(2)
        assert (compared.questions, compared.split) == (2, "test")
        assert compared.gain == pytest.approx(compared.adapter - compared.base)
        assert (run.export("peft", tmp_path / "peft") / WEIGHTS[0]).read_bytes() == files_of(run)[WEIGHTS[0]]
        with pytest.raises(sapo.SapoError, match="choose one of"):
            run.export("zip", tmp_path / "zip")


def test_a_run_keeps_its_tasks_and_its_model(train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = train(rounds=1)
    Membership(Paths.default(tmp_path).state).join(Swarm.of(load_manifest("starter")))
    monkeypatch.setenv("SAPO_EDGE_MANIFEST", "home")
    monkeypatch.setenv("SAPO_EDGE_MODEL", str(tmp_path / "other.gguf"))
    assert run.evaluate(2).questions == 2 and run.ask("word 1?")
    run.train(1, **QUICK)
    assert len(run.rounds) == 2


def test_a_check_is_a_function_and_what_it_raises_comes_back(train: Train, tmp_path: Path) -> None:
    seen: list[str] = []

    def check(question: str, expected: str, text: str) -> float:
        seen.append(question)
        return float(len(text) % 2)

    rows = [{"question": row["question"], "check": "number", "tolerance": 1} for row in ROWS]
    train(rows, check=check, rounds=1)
    assert set(seen) <= {row["question"] for row in ROWS} and len(seen) > 8

    def broken(*_: str) -> float:
        raise ZeroDivisionError("no")

    with pytest.raises(sapo.SapoError, match="function broken failed on an answer: ZeroDivisionError: no"):
        train(home=tmp_path / "broken", check=broken, rounds=1)


def test_a_home_has_one_node_and_what_a_callback_raises_ends_the_run_in_order(train: Train, tmp_path: Path) -> None:
    def again(_: sapo.RoundFinished) -> None:
        with pytest.raises(sapo.SapoError, match="another node"):
            train(rounds=1)
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        train(rounds=5, on_round=again)
    run = sapo.open_run(home=tmp_path, check=by_length)
    assert len(run.rounds) == 1 and run.adapter is not None


def test_ctrl_c_saves_the_round_and_while_the_model_loads_ends_the_call_at_once(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(rounds=50, on_round=lambda _: os.kill(os.getpid(), signal.SIGINT))
    assert signal.getsignal(signal.SIGINT) is before
    run = sapo.open_run(home=tmp_path, check=by_length)
    assert 1 <= len(run.rounds) < 50 and run.adapter is not None
    monkeypatch.setattr(Workspace, "open_policy", lambda *_, **__: os.kill(os.getpid(), signal.SIGINT))
    with handling([signal.SIGINT], signal.default_int_handler), pytest.raises(KeyboardInterrupt):
        train(rounds=60)


def test_events_of_other_threads_are_told_in_this_one_which_they_do_not_wait_for(train: Train) -> None:
    stop, threads, reasons = sapo.Stop(), set[int](), list[tuple[str, ...]]()

    def pause(_: sapo.RoundFinished) -> None:
        pausing = threading.Thread(target=stop.pause, args=("test",))
        pausing.start()
        pausing.join(10)
        assert not pausing.is_alive()

    def resume(event: sapo.Event) -> None:
        threads.add(threading.get_ident())
        if isinstance(event, Paused):
            reasons.append(event.reasons)
            stop.resume()

    train(rounds=2, stop=stop, on_event=resume, on_round=pause)
    assert threads == {threading.get_ident()} and reasons[0] == ("test",)
    stop.pause("after the end")


async def test_another_thread_trains_and_this_one_stops_it(train: Train) -> None:
    stop = sapo.Stop()
    run = await asyncio.to_thread(train, rounds=50, stop=stop, on_round=lambda _: stop.after_round())
    assert 1 <= len(run.rounds) < 50
    assert threading.current_thread() is threading.main_thread()


@fails_without("library/python.py", 'if "network" in settings:')
@pytest.mark.parametrize(("options", "message"), [
    ({"rounds": 0}, "give 1 or more"),
    ({"onw": 3}, "own"),
    ({"tasks": "statrer"}, "starter"),
    ({"tasks": [{"question": "?", "answer": {1, 2}}]}, "row 1"),
    ({"tasks": [{"question": "?", "answer": float("nan")}]}, "row 1 has a value that is no JSON"),
    ({"tasks": {"question": ["?"]}}, "row 1 is no dictionary"),
    ({"tasks": [{"question": "?"}], "check": None}, "^row 1: it has no answer"),
    ({"tasks": "starter"}, "made by a generator"),
    ({"tasks": LONG_ROWS}, "task mine does not fit into the 256 KiB .*; give check for fewer or shorter rows"),
    ({"tasks": SHORT_ROWS}, "task mine has more questions than .*; give check for up to 4,096 questions"),
    ({"swarm": "open"}, "leave out swarm"),
    ({"swarm": "open", "check": None}, "agree=True"),
    ({"swarm": "open", "check": None, "agree": True}, "have no open swarm"),
    ({"swarm": Swarm.of(load_manifest("home")).to_line(), "check": None, "agree": True}, "trains on home, not on"),
    ({"network": "swarm"}, "network is no argument"),
    ({"name": "No Name"}, "small letters"),
])  # fmt: skip
def test_mistakes_are_told_with_what_to_do(options: dict[str, Any], message: str, train: Train, tmp_path: Path) -> None:
    with pytest.raises(sapo.SapoError, match=message):
        train(**options)
    paths = Paths.default(tmp_path)
    assert not paths.runs.exists() and not paths.consent.exists() and Membership(paths.state).current is None


def test_who_has_left_the_last_swarm_is_told_how_to_join_the_open_one(train: Train, tmp_path: Path) -> None:
    state = Paths.default(tmp_path).state
    Membership(state).leave()
    remedy = shlex.join(["sapo", "swarm", "create", "starter", "--home", str(tmp_path)])
    with pytest.raises(sapo.SapoError, match=re.escape(f"has left the swarm; `{remedy}` joins it again")):
        train("starter", check=None, swarm="open", agree=True)
    create("starter", home=tmp_path)
    assert Membership(state).current == Swarm.of(load_manifest("starter"))


def test_the_interface_has_these_names_and_loads_nothing_before_they_are_used() -> None:
    assert set(sapo.__all__) < set(dir(sapo))
    assert all(getattr(sapo, name) is not None for name in sapo.__all__)
    with pytest.raises(AttributeError, match="no attribute 'tran'"):
        sapo.tran  # noqa: B018


def test_a_checkpoint_that_replaces_one_of_its_round_is_asked(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a head start, whose validations all save round 0; and what was verified is not read at each question."""
    opened = Mock(wraps=adapters.open_conversation)
    monkeypatch.setattr(adapters, "open_conversation", opened)
    verified = create_autospec(Checkpoint.verify_files, side_effect=Checkpoint.verify_files)
    monkeypatch.setattr(Checkpoint, "verify_files", verified)
    with train(rounds=1) as run:
        run.ask("word 3?")
        verified.reset_mock()
        run.ask("word 4?")
        assert opened.call_count == 1 and not verified.called
        checkpoints = Checkpoints(run.directory / "checkpoints")
        newest = checkpoints.latest()
        assert newest is not None
        before = {path.name: path.read_bytes() for path in newest.directory.iterdir() if path.name in newest.files}

        def write(directory: Path) -> None:
            for name, content in before.items():
                changed = content[:-1] + bytes([content[-1] ^ 1]) if name == WEIGHTS[0] else content
                (directory / name).write_bytes(changed)

        checkpoints.save(newest, write)
        run.ask("word 3?")
        assert [call.args[1] for call in opened.call_args_list] == 2 * [newest.directory]


def test_of_endless_rows_one_more_than_there_may_be_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def count(file: Path, _store: Path) -> None:
        raise sapo.SapoError(f"{len(file.read_text().splitlines())} rows", "")

    monkeypatch.setattr("sapo_edge.tasks.question_data.MAX_DATA_QUESTIONS", 20)
    monkeypatch.setattr("sapo_edge.tasks.manifest.load_manifest", count)
    with pytest.raises(sapo.SapoError, match=r"^21 rows"):
        sapo.train(({"question": f"{n}?", "answer": "x"} for n in itertools.count()), home=tmp_path)
