"""`sapo chat`: on a terminal, as JSON lines, and as the terminal app uses it."""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pytest

from sapo_edge.cli import chat as chat_module
from sapo_edge.errors import SapoError
from sapo_edge.library.conversation import Models
from sapo_edge.rollout import MAX_QUESTION_BYTES
from sapo_edge.tui.node.processes import Chat, ChatAnswer
from tests.cli.inprocess import Invoke
from tests.cli.process import assert_refused, fork, python, start

SECONDS = 120
LONG = ("--set", "max_tokens=1900")
"""Options with which the tiny model's greedy answers take seconds."""


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Temporary files of the commands are where the test looks for what is left of them."""
    monkeypatch.setenv("SAPO_EDGE_NETWORK", "solo")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))


@pytest.fixture
def open_chat(home: Path, model: Path) -> Iterator[Callable[..., Chat]]:
    """Makes conversations that are closed after the test, opened unless it says otherwise."""
    made: list[Chat] = []

    def make(*options: str | Path, opened: bool = True) -> Chat:
        made.append(Chat(home, ("--model", str(model), "--threads", "1", *map(str, options))))
        if opened:
            made[-1].open(lambda text: None)
        return made[-1]

    yield make
    for chat in made:
        chat.close()


def asked(chat: Chat, text: str = "What is 3 + 4?", *, task: bool = False) -> list[ChatAnswer]:
    """Everything that is shown of the answers to a question."""
    shown: list[ChatAnswer] = []
    chat.ask(text, task=task, temperature=0.0, show=shown.append)
    return shown


def test_each_question_gets_two_answers(invoke: Invoke, home: Path, model: Path) -> None:
    typed = "What is 3 + 4?\n\nWhat is 5 - 2?\n/quit\nnever asked\n"
    ended = invoke("chat", "--threads", "1", "--home", home, "--model", model, "--task", typed=typed).ok()
    starts = [line[:9] for line in ended.out.splitlines() if line.startswith(("base     ", "adapter  "))]
    assert starts == ["base     ", "adapter  "] * 2
    assert all(character.isprintable() or character in "\n\t" for character in ended.out)
    assert "tiny" in ended.err and "adapter of round" in ended.err and "(held-out " in ended.err
    # One question is on the command line, or all of stdin.
    command = ("chat", "--threads", "1", "--home", home, "--model", model, "--task", "--no-base")
    for question, typed in (("What is 3 + 4?", ""), ("-", "What is\n3 + 4?\n")):
        ended = invoke(*command, question, typed=typed)
        assert ended.code == 0 and ended.err.splitlines() == ["loading tiny"], ended.err
        assert ended.out.endswith("\n") and not ended.out.startswith(("base", "adapter"))
    for given in (["x"], ["--plain"], ["--temperature", "1"], ["--no-base"]):
        assert_refused(invoke("chat", "--json", *given, "--home", home), 2, "--json reads questions from stdin")


def test_a_question_is_a_task_and_a_chat_plain(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listening = Mock(speakers=(True,), **{"ask.return_value": 0})
    monkeypatch.setattr(chat_module, "open_conversation", lambda *_, **__: nullcontext((listening, Models("m", "t"))))
    for arguments in (("7 + 8?",), ("7 + 8?", "--plain"), (), ("--task",)):
        assert invoke("chat", *arguments, "--home", tmp_path, typed="7 + 8?\n").code == 0
    assert [call.kwargs["task"] for call in listening.ask.call_args_list] == [True, False, False, True]


def test_without_an_adapter_only_the_base_model_answers(model: Path, tmp_path: Path) -> None:
    code = f"""
import sys
sys.argv = "sapo chat --threads 1 --task".split() + {["--home", str(tmp_path / "fresh"), "--model", str(model)]!r}
from sapo_edge.cli.main import main
try:
    main()
finally:
    print(*(name for name in ("torch", "transformers", "peft", "libp2p", "textual") if name in sys.modules))
"""
    ended = python("-c", code, directory=tmp_path, typed="x\n").ok()
    assert "the base model alone: nothing is trained yet" in ended.err
    assert ended.out.startswith("base     ") and "adapter  " not in ended.out
    assert ended.out.splitlines()[-1] == "", "nothing of training is loaded"


def test_ctrl_c_stops_an_answer_and_not_the_conversation(home: Path, model: Path) -> None:
    with fork("chat", "--home", home, "--model", model, *LONG, directory=home) as process:
        process.stdin.write("question\n")
        process.stdin.flush()
        assert process.stdout.read(4) == "base"
        process.send_signal(signal.SIGINT)
        process.stdin.write("/quit\n")
        process.stdin.close()
        out, told = process.communicate(SECONDS)
    assert process.returncode == 0 and "adapter  " not in out and "stopped" in told and "Traceback" not in told


def test_ctrl_c_ends_one_question_without_words(home: Path, model: Path) -> None:
    with fork("chat", "--home", home, "--model", model, *LONG, "--plain", "x", directory=home) as process:
        assert process.stdout.read(4) == "base"
        process.send_signal(signal.SIGINT)
        assert "stopped" not in process.communicate(SECONDS)[1] and process.returncode == 130


@pytest.mark.parametrize(("at", "number"), [("loading", signal.SIGTERM), ("ready", signal.SIGINT)])
def test_a_signal_ends_the_service_in_order(home: Path, model: Path, at: str, number: signal.Signals) -> None:
    with start("chat", "--json", "--home", home, "--model", model, directory=home) as process:
        assert process.stdout is not None and process.stderr is not None
        assert any(at in json.loads(line) for line in process.stdout)
        process.send_signal(number)
        assert process.stderr.read() == ""
        # An end by SIGINT itself, which was seen once, is as good: a shell shows 130 for both.
        assert process.wait(SECONDS) in ({128 + number, -number} if number == signal.SIGINT else {128 + number})


def test_an_error_ends_the_service_in_order_while_its_input_is_open(tmp_path: Path) -> None:
    arguments = ("chat", "--json", "--home", tmp_path, "--model", "missing.gguf")
    with start(*arguments, directory=tmp_path) as process:
        assert process.stdout is not None and process.stderr is not None
        assert "missing.gguf" in json.loads(process.stdout.readline())["error"]["message"]
        assert process.wait(SECONDS) == 1 and process.stderr.read().startswith("sapo: there is no model file")


def test_answers_stream_from_base_and_adapter(open_chat: Callable[..., Chat]) -> None:
    chat, said = open_chat(opened=False), list[str]()
    assert chat.open(said.append).startswith("tiny, adapter of round ") and "loading tiny" in said
    assert Path(chat.adapter).name.startswith("round-")
    plain, as_task, again = (asked(chat, task=task) for task in (False, True, False))
    for shown in (plain, as_task):
        assert [piece.adapter for piece in shown] == sorted(piece.adapter for piece in shown)
        for adapter in (False, True):
            pieces = [piece for piece in shown if piece.adapter == adapter]
            assert [piece.done for piece in pieces] == [False] * (len(pieces) - 1) + [True]
            assert all(later.text.startswith(piece.text) for piece, later in itertools.pairwise(pieces))
    # In plain chat an answer may be long; as a task it has the length of training. How many pieces it comes in depends
    # on how busy the machine is.
    texts, shorter, same = ([piece.text for piece in shown if piece.done] for shown in (plain, as_task, again))
    assert all(len(text) > len(short) for text, short in zip(texts, shorter, strict=True))
    assert max(piece.tokens_per_second for piece in plain) > 0 and texts == same


def test_a_question_can_be_cancelled_and_closing_ends_a_waiting_call_and_leaves_no_files(
    open_chat: Callable[..., Chat], tmp_path: Path
) -> None:
    chat = open_chat(*LONG)
    process = chat._process
    assert process is not None and list((tmp_path / "temporary").iterdir())

    def show(piece: ChatAnswer) -> None:
        shown.append(piece)
        chat.cancel()

    for text in ("question", "another"):
        shown: list[ChatAnswer] = []
        chat.ask(text, task=False, temperature=0.0, show=show)
        assert shown and not any(piece.done for piece in shown)
        chat.cancel()
    began = threading.Event()
    failed: list[str] = []

    def ask() -> None:
        try:
            chat.ask("question", task=False, temperature=0.0, show=lambda piece: began.set())
        except SapoError as error:
            failed.append(error.message)

    asking = threading.Thread(target=ask)
    asking.start()
    assert began.wait(SECONDS)
    chat.close()
    asking.join(SECONDS)
    chat.close()
    assert failed == ["the chat was closed"] and not psutil.pid_exists(process.pid)
    assert list((tmp_path / "temporary").iterdir()) == []
    with pytest.raises(SapoError, match="closed"):
        asked(chat)


def test_a_failed_load_has_a_remedy(open_chat: Callable[..., Chat], other_model: Path) -> None:
    closed = open_chat(opened=False)
    closed.close()
    with pytest.raises(SapoError, match="stopped"):
        closed.open(lambda text: None)
    with pytest.raises(SapoError, match="was made with another model; give the one"):
        open_chat("--model", other_model)


def test_a_process_that_dies_is_reported(open_chat: Callable[..., Chat]) -> None:
    chat = open_chat(*LONG)
    assert chat._process is not None
    pid = chat._process.pid
    with pytest.raises(SapoError, match=r"ended with code -9; open it again"):
        chat.ask("q", task=False, temperature=0.0, show=lambda piece: os.kill(pid, signal.SIGKILL))
    assert not psutil.pid_exists(pid)


def test_requests_are_checked_and_the_end_of_the_input_ends_it(home: Path, model: Path) -> None:
    with fork("chat", "--home", home, "--model", model, "--json", directory=home) as process:
        told = map(json.loads, process.stdout)
        assert set(next(told)) == {"loading"}
        ready = next(found for found in told if "ready" in found)
        assert ready["v"] == 1 and ready["model"] == "tiny" and ready["manifest"] == "starter"
        assert ready["round"] in range(1, 6) and 0 <= ready["accuracy"] <= 1 and ready["adapter"].startswith(str(home))

        def send(*requests: Any) -> dict[str, Any]:
            for request in requests:
                process.stdin.write(f"{request if isinstance(request, str) else json.dumps(request)}\n")
            process.stdin.flush()
            found: dict[str, Any] = next(told)
            return found

        for bad in (
            "x", "[]", "{}", {"id": 1}, {"id": True, "ask": "x"}, {"id": [], "ask": "x"}, {"id": 1, "ask": 7},
            {"id": 1, "ask": " "}, {"id": 1, "ask": "x" * (MAX_QUESTION_BYTES + 1)}, {"id": 1, "ask": "\ud800"},
            {"id": 1, "ask": "x", "task": 1}, {"id": 1, "ask": "x", "follow": "yes"}, "[" * 9000,
            *({"id": 1, "ask": "x", "temperature": wrong} for wrong in ("hot", True, 2.1, -0.1, math.nan)),
        ):  # fmt: skip
            assert send(bad)["error"]["code"] == "bad_request", bad
        too_long = send({"id": 2, "ask": "long " * 3000})
        assert too_long["id"] == 2 and too_long["error"]["code"] == "failed" and too_long["error"]["remedy"]
        first = send({"cancel": 9}, {"id": "a", "ask": "x"}, {"id": "b", "ask": "y"})
        rest = [first, *itertools.takewhile(lambda found: not found.get("finished"), told)]
        (busy,) = [found for found in rest if "error" in found]
        assert busy["id"] == "b" and busy["error"]["code"] == "busy"
        pieces = [found for found in rest if "text" in found]
        assert {found["id"] for found in pieces} == {"a"} and sum(found["done"] for found in pieces) == 2
        last = [found for found in pieces if found["done"]][-1]
        assert last["adapter"] and last["tokens"] > 0 and isinstance(last["ended"], bool)
        process.stdin.close()
        assert process.wait(SECONDS) == 0
