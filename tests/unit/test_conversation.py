"""What a conversation remembers, and the session around it: commands, several lines, saved files."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapo_edge.cli.chat_session import ChatSession
from sapo_edge.errors import Cancelled
from sapo_edge.library.conversation import PLAIN_TOKENS, Conversation, Models
from sapo_edge.policy import STOP_TEXT, Message, Prompt
from sapo_edge.tasks.manifest import Manifest, TaskEntry
from tests.fakes import FakePolicy

MANIFEST = Manifest("m", (TaskEntry("sums", "chain_sum"),), "Be brief.", (("1 + 1?", "<answer>2</answer>"),), 8)


def recorded(context: int = 100_000) -> FakePolicy:
    """A policy that answers with its name and the number of the question."""

    def answer(_prompt: Prompt, _position: int) -> str:
        return f"{'adapter' if policy.calls[-1].use_adapter else 'base'} {len(policy.calls)}"

    policy = FakePolicy(answer, context=context)
    return policy


def ask(conversation: Conversation, text: str, *, task: bool = False, follow: bool = True, again: bool = False) -> int:
    return conversation.ask(text, task=task, temperature=0.0, show=lambda piece: None, follow=follow, again=again)


def turns(policy: FakePolicy) -> list[list[str]]:
    return [[turn.content for turn in asked.prompts[0]] for asked in policy.calls]


def test_each_remembers_its_own_answers() -> None:
    policy = recorded()
    conversation = Conversation(policy, MANIFEST, adapted=True)
    ask(conversation, "first")
    ask(conversation, "second")
    assert turns(policy) == [["first"]] * 2 + [["first", "base 1", "second"], ["first", "adapter 2", "second"]]
    assert policy.calls[-1].prompts[0][1] == Message("assistant", "adapter 2")
    assert {(asked.max_tokens, asked.stop_text) for asked in policy.calls} == {(PLAIN_TOKENS, "")}
    ask(conversation, "a task", task=True)
    assert turns(policy)[-1] == ["Be brief.", "1 + 1?", "<answer>2</answer>", "a task"]
    assert (policy.calls[-1].max_tokens, policy.calls[-1].stop_text) == (8, STOP_TEXT)
    conversation.memory.system = "Rhyme."
    ask(conversation, "third")
    assert turns(policy)[-1] == ["Rhyme.", "first", "adapter 2", "second", "adapter 4", "third"]
    ask(conversation, "third", again=True)
    assert turns(policy)[-1] == ["Rhyme.", "first", "adapter 2", "second", "adapter 4", "third"]
    ask(conversation, "other", again=True)
    assert turns(policy)[-1][-3:] == ["third", "adapter 10", "other"], "nothing was asked a second time"
    ask(conversation, "anew", follow=False)
    assert turns(policy)[-1] == ["Rhyme.", "anew"] and len(conversation.memory.exchanges) == 1
    with pytest.raises(Cancelled):
        conversation.ask("x", task=False, temperature=0.0, show=lambda _: conversation.cancel(), follow=True)
    assert len(conversation.memory.exchanges) == 1, "a cancelled question is not remembered"
    ask(Conversation(policy, MANIFEST, adapted=False, base=False), "x")
    assert not policy.calls[-1].use_adapter, "without an adapter the base answers in any case"


@given(st.lists(st.integers(0, 60), min_size=1, max_size=12), st.integers(20, 120))
def test_as_few_of_the_oldest_are_forgotten_as_needed(lengths: list[int], context: int) -> None:
    policy = recorded(context)
    conversation = Conversation(policy, MANIFEST, adapted=True, max_tokens=10)
    for number, length in enumerate(lengths):
        text = "q" * length
        before = list(conversation.memory.exchanges)
        forgotten = ask(conversation, text)
        kept = conversation.memory.exchanges
        assert kept[:-1] == before[forgotten:] and kept[-1].question == text
        alone = context - length
        for asked in policy.calls[2 * number :]:
            assert policy.room(asked.prompts[0]) >= 10 or alone < 10
        if forgotten:
            longer = sum(len(e.question) + max(map(len, e.answers.values())) for e in before[forgotten - 1 :])
            assert context - length - longer < 10, "one more would not fit"
        if alone < 10:
            assert not forgotten, "it is too long by itself, so nothing is forgotten for it"
            del kept[-1]


class Session:
    """Types lines into a session; keeps what the policy was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, context: int = 100_000) -> None:
        self.policy = recorded(context)
        self._monkeypatch = monkeypatch
        conversation = Conversation(self.policy, MANIFEST, adapted=True, base=False)
        self._session = ChatSession(conversation, Models("tiny", "m"), task=False, temperature=0.0)

    def type(self, *lines: str) -> None:
        self._monkeypatch.setattr(sys, "stdin", io.StringIO("".join(line + "\n" for line in lines)))
        self._session.run()

    @property
    def asked(self) -> list[list[str]]:
        return turns(self.policy)


@pytest.mark.parametrize(("round", "place"), [(0, "the head start"), (40, "round 40")])
def test_the_title_says_where_the_adapter_comes_from(round: int, place: str) -> None:
    assert Models("tiny", "m", "/x", round, 0.66).title == f"tiny, adapter of {place} (held-out 0.66)"


def test_session_commands(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    session, file = Session(monkeypatch), tmp_path / "talk.json"
    session.type("one", "two", "/reset", "three", "/task on", "four", "/task off", "five", f"/save {file}", "/bye", "x")
    assert session.asked == [
        ["one"], ["one", "adapter 1", "two"], ["three"], ["Be brief.", "1 + 1?", "<answer>2</answer>", "four"],
        ["three", "adapter 3", "five"],
    ]  # fmt: skip
    saved = json.loads(file.read_text())
    contents = [turn["content"] for turn in saved["messages"]["adapter"]]
    assert saved["model"] == "tiny" and contents == ["three", "adapter 3", "five", "adapter 5"]
    assert file.stat().st_mode & 0o077 == 0 and "base" not in saved["messages"]
    assert capsys.readouterr().out == "".join(f"adapter {number}\n" for number in range(1, 6)), "no names: one answers"
    session.type(f"/save {file}", "/save", "/sav x", "/task maybe", "/temperature 3", "/help", "/system Rhyme.", "six")
    errors = capsys.readouterr().err
    told = ("is there already", "/save needs", "did you mean save?", "/task is on or off", "from 0 to 2", "/reset")
    assert not [part for part in told if part not in errors]
    assert session.asked[-1] == ["Rhyme.", "six"]


def test_a_question_of_several_lines_too_many_characters_or_bytes_that_are_no_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = Session(monkeypatch)
    session.type('"""one', "", "  two", '"""', '"""/quit"""', " /etc?", '"""', "never closed")
    assert [asked[-1] for asked in session.asked] == ["one\n\n  two", "/quit", "/etc?", "never closed"]
    session = Session(monkeypatch)
    session.type('"""', "x" * 20_000, "/quit", "y", 'z"""', "next")
    assert session.asked == [["next"]]
    assert capsys.readouterr().err.count("a question has 1 to") == 1
    session = Session(monkeypatch, PLAIN_TOKENS + 20)
    session.type("a" * 10, os.fsdecode(b"caf\xe9?") + "b" * 10)
    assert session.asked == [["a" * 10], ["caf??" + "b" * 10]]
    assert "the oldest 1 question" in capsys.readouterr().err, "what it forgets, it says"
