"""Environments that judge answers, played by a process that speaks their protocol: faults, limits and consent."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from sapo_edge.errors import ConfigError, DataError, StateError
from sapo_edge.events import WRONG
from sapo_edge.library import environments
from sapo_edge.library.environments import Environment, Environments, agreed_code, code_of, record_code
from sapo_edge.tasks.manifest import Manifest
from sapo_edge.tasks.questions import MAX_QUESTIONS
from sapo_edge.tasks.source import TaskSource
from tests.defences.defence import fails_without

PLAYED = """
import os, sys, time, msgpack
name, arguments = sys.argv[1:3]
def reply(record):
    os.write(1, msgpack.packb(record))
if name == "silent": time.sleep(60)
if name == "gone": sys.exit(1)
if name == "short": reply({"tasks": 2}); reply({"prompt": [], "answer": ""}); sys.exit()
if name in ("refused", "failed"): reply({name: "for a \\x1b[2Jreason"}); sys.exit()
reply({"tasks": 2})
unpacker = msgpack.Unpacker()
while block := os.read(0, 65536):
    unpacker.feed(block)
    for request in unpacker:
        if request == "rows":
            for number in range(12):
                turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"{number}?"}]
                reply({"prompt": turns, "answer": arguments})
            reply(None)
            continue
        question, text = request
        if text == "hang": time.sleep(60)
        if text == "end": os.kill(os.getpid(), 9)
        if text == "files": reply({"score": len([n for n in os.listdir("/proc/self/fd") if int(n) > 3])}); continue
        if text == "fail": reply({"failed": "KeyError: 'oops'"}); continue
        reply({"score": {"right": 1.0, "wrong": 0.0}.get(text, 0.5)})
"""

OURS = """
import sys
from types import SimpleNamespace
from sapo_edge.library import environment_process

def task(prompt, answer):
    return SimpleNamespace(data=SimpleNamespace(
        prompt=prompt, system_prompt=None, model_dump=lambda mode: {"answer": answer} if answer else 1 / 0
    ))

def load(name, arguments):
    if name == "broken":
        raise ValueError("\\ud800")
    texts = "seven", "\\ud800", "x" * 5_000_000
    answers = 7, -(2**63) - 1, 2**64, 10**5000, "\\ud800", None
    return {n: task(*pair) for n, pair in enumerate([*((text, "1") for text in texts), *(("?", a) for a in answers)])}

environment_process.load = load
environment_process.main(*sys.argv[1:3])
"""
"""Our own side of the process, around tasks of which not all can be written."""


@pytest.fixture(autouse=True)
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Environments are this script; those that hang are given up at once."""
    script = tmp_path / "played.py"
    script.write_text(PLAYED)
    monkeypatch.setattr(environments, "python_command", lambda *more: [sys.executable, str(script), *more[2:]])
    monkeypatch.setattr(environments, "find_spec", lambda _name: True)
    monkeypatch.setattr(environments, "ANSWER_SECONDS", 0.5)


@pytest.fixture
def environment() -> Iterator[Environment]:
    with closing(Environment(code_of("words", {"count": "3", "kind": "a b"}), print)) as environment:
        yield environment


def test_arguments_arrive_and_rows_are_those_of_a_data_set(environment: Environment) -> None:
    assert (code_of("words", {}), environment.name) == ("verifiers:words", "words")
    rows = list(environment.rows())
    assert len(rows) == 12 and isinstance(rows[11], dict)
    assert json.loads(rows[11]["answer"]) == {"count": 3, "kind": "a b"}
    assert (environment("q", "", "right"), environment("q", "", "wrong")) == (1.0, 0.0)


def test_rows_may_be_left_and_a_process_that_ends_before_the_last_is_an_error(environment: Environment) -> None:
    rows = environment.rows()
    next(rows)
    closing = threading.Thread(target=environment.close, daemon=True)
    closing.start()
    closing.join(10)
    assert not closing.is_alive()
    with pytest.raises(DataError, match="short ended, or hung, before its last task"):
        list(Environment("verifiers:short", print).rows())


def test_a_row_that_can_not_be_sent_is_empty_and_the_others_arrive(tmp_path: Path) -> None:
    (tmp_path / "played.py").write_text(OURS)
    with closing(Environment("verifiers:words", print)) as environment:
        answers = [row.get("answer") if isinstance(row, dict) else row for row in environment.rows()]
    assert answers == ["1", None, None, "7", "-9223372036854775809", "18446744073709551616", None, None, None]
    with pytest.raises(DataError, match=r"can't be loaded: ValueError: \\ud800; check its name"):
        Environment("verifiers:broken", print)


def test_an_answer_on_which_it_hangs_or_ends_is_wrong_and_said_and_the_next_one_is_judged(
    environment: Environment, capsys: pytest.CaptureFixture[str]
) -> None:
    for lost, text in enumerate(("hang", "end"), start=1):
        assert environment("q", "", text) == 0.0 and environment.lost == lost
        assert environment("q", "", "right") == 1.0
    hung, ended = capsys.readouterr().out.splitlines()
    assert "took more than 0 s on an answer, which counts as wrong (1 so far)" in hung
    assert "ended, or took too much memory, on an answer, which counts as wrong (2 so far)" in ended


def test_an_environment_that_always_ends_or_fails_is_an_error(environment: Environment) -> None:
    with pytest.raises(DataError, match="failed on an answer: KeyError: 'oops'; mend it"):
        environment("q", "", "fail")
    assert [environment("q", "", "end") for _ in range(2)] == [0.0, 0.0]
    for count in (3, 4):
        with pytest.raises(DataError, match=f"on {count} answers in a row"):
            environment("q", "", "end")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_it_inherits_no_open_file(environment: Environment, tmp_path: Path) -> None:
    with (tmp_path / "secret").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        other = Environment("verifiers:words", print)
    with closing(other):
        assert other("q", "", "files") == 0.0


@pytest.mark.parametrize(("name", "kind", "message"), [
    ("refused", ConfigError, r"the environment refused for a \\x1b\[2Jreason; only environments with one turn"),
    ("failed", DataError, r"can't be loaded: for a \\x1b\[2Jreason; check its name"),
    ("gone", DataError, "the environment gone ended; try it by itself"),
    ("silent", DataError, "took more than 1 s to load"),
])  # fmt: skip
def test_one_that_can_not_be_used_says_why(
    name: str, kind: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "START_SECONDS", 1.0 if name == "silent" else 60.0)
    with pytest.raises(kind, match=message):
        Environment(f"verifiers:{name}", print)


@fails_without("library/environments.py", "if not self._agreed(named):")
def test_a_manifest_is_judged_by_what_its_owner_has_agreed_to_and_nothing_else(tmp_path: Path) -> None:
    file, check = tmp_path / "code.json", 'answer = "right", check = "code", code = "verifiers:words"'
    questions = ", ".join(f'{{question = "{n}", {check}}}' for n in range(9))
    manifest = Manifest.from_toml(f'name = "w"\n[[tasks]]\nname = "mine"\nquestions = [{questions}]\n')
    judges = Environments(manifest.functions, lambda name: name in agreed_code(file), print)
    with pytest.raises(ConfigError, match="words is code that would run on this machine"):
        TaskSource(manifest, judges)
    record_code(file, "words", "terminal")
    source = TaskSource(manifest, judges)
    task = source.held_out("test", 1)[0]
    assert (source.score(task, "right"), source.judge(task, "wrong")) == (1.0, WRONG)
    assert source.right_answer(task) == "right"
    with pytest.raises(DataError, match="failed on an answer"):
        source.score(task, "fail")
    judges.close()
    assert "mine" not in judges and judges.get("mine") is None


def test_a_damaged_record_of_consents_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "code.json"
    assert agreed_code(file) == frozenset()
    file.write_text("[]")
    with pytest.raises(StateError, match="can't be read; remove it"):
        agreed_code(file)
    monkeypatch.setattr(environments, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match="needs the package verifiers; install"):
        Environment("verifiers:words", print)


def test_questions_by_digest_are_judged_as_well(tmp_path: Path) -> None:
    rest = {"answer": "", "check": "code", "code": "verifiers:words"}
    lines = (json.dumps({"question": f"{n}?", **rest}) for n in range(MAX_QUESTIONS + 1))
    (tmp_path / "many.jsonl").write_text("\n".join(lines))
    manifest = Manifest.read(tmp_path / "many.jsonl", tmp_path / "store")
    assert manifest.data and not manifest.functions
    judges = Environments(manifest.functions, lambda _name: True, print)
    source = TaskSource(manifest, judges)
    assert source.score(source.held_out("test", 1)[0], "right") == 1.0
    judges.close()
    refusing = TaskSource(manifest, Environments(manifest.functions, lambda _name: False, print))
    with pytest.raises(ConfigError, match="words is code that would run"):
        refusing.score(refusing.held_out("test", 1)[0], "right")
