"""`sapo answer`: a person answers a question, and the answers are shared like a model's."""

from __future__ import annotations

import sys
from typing import Protocol

from sapo_edge.cli.output import narrate, print_json
from sapo_edge.cli.workspace import Workspace
from sapo_edge.control.client import ControlClient, connect
from sapo_edge.errors import ConfigError, ExitCode, NoNodeError
from sapo_edge.person import (
    Outbox,
    PersonAnswers,
    Question,
    Verdict,
    draw_question,
    is_too_long,
    tag_answer,
    verify_answers,
)
from sapo_edge.plain import counted, printable
from sapo_edge.rollout import MAX_ANSWERS
from sapo_edge.state.secret import read_or_create_secret, seed_from_secret
from sapo_edge.tasks.source import TaskSource

MAX_CHARACTERS = 8000
"""Most characters of all answers together: they travel in one line of the control socket."""
_SECONDS = 60.0


class _Examiner(Protocol):
    """Who asks and verifies: the running node, or this program alone."""

    def question(self) -> Question: ...

    def verdict(self, given: PersonAnswers) -> Verdict: ...


class _RunningNode:
    """Asks the node, which shares the answers at once."""

    def __init__(self, client: ControlClient) -> None:
        self._client = client

    def question(self) -> Question:
        return Question.from_dict(self._client.request("question", timeout=_SECONDS))

    def verdict(self, given: PersonAnswers) -> Verdict:
        reply = self._client.request("share_answers", given.as_dict(), timeout=_SECONDS)
        verdict = Verdict.from_dict(reply, len(given.answers))
        narrate("shared with the swarm" if verdict.shared else "the running node works alone: nothing is shared")
        return verdict


class _NoNode:
    """Makes the question and verifies the answers here; they wait in the outbox for the next node."""

    def __init__(self, workspace: Workspace) -> None:
        self._source = TaskSource(workspace.require_manifest())
        workspace.paths.create()
        self._outbox = Outbox(workspace.paths.state / "outbox.json")
        secret = read_or_create_secret(workspace.paths.identity)
        self._seed = seed_from_secret(secret)

    def question(self) -> Question:
        return draw_question(self._source, self._seed)

    def verdict(self, given: PersonAnswers) -> Verdict:
        task, rewards = verify_answers(self._source, given)
        waiting = self._outbox.add(given)
        narrate(f"no node runs: {counted(waiting, 'set')} of answers wait for the next `sapo run`, which shares them")
        return Verdict(rewards, task.ground_truth, False)


def run_answer(workspace: Workspace, *, as_json: bool) -> ExitCode:
    """Ask, take answers, tell the verdict.

    Returns:
        DONE, also if no answer was given; INTERRUPTED after Ctrl-C.
    """
    try:
        client = connect(workspace.paths)
    except NoNodeError:
        return _ask(_NoNode(workspace), as_json=as_json)
    with client:
        return _ask(_RunningNode(client), as_json=as_json)


def _ask(examiner: _Examiner, *, as_json: bool) -> ExitCode:
    question = examiner.question()
    narrate(printable(question.text, lines=True))
    narrate("")
    narrate("Give one or more answers, one a line; an empty line ends. Others learn from the difference between")
    narrate("right and wrong ones, so that several are worth more than one.")
    try:
        typed = _typed_answers()
    except KeyboardInterrupt:
        narrate("\nnothing was shared")
        return ExitCode.INTERRUPTED
    if not typed:
        narrate("no answer was given, and nothing is shared")
        return ExitCode.DONE
    verdict = examiner.verdict(
        PersonAnswers(question.ref, tuple(tag_answer(text) for text in typed), question.manifest)
    )
    _tell(question, typed, verdict, as_json=as_json)
    return ExitCode.DONE


def _typed_answers() -> list[str]:
    """Lines up to an empty one, the end of the input, or the most that a rollout holds."""
    if sys.stdin is None:
        raise ConfigError("there is nothing to read answers from", "run it in a terminal, or pipe answers in")
    typed: list[str] = []
    left = MAX_CHARACTERS
    while len(typed) < MAX_ANSWERS:
        if sys.stdin.isatty():
            print(f"{len(typed) + 1}> ", end="", file=sys.stderr, flush=True)
        text = sys.stdin.readline(MAX_CHARACTERS + 2).strip()
        if not text:
            break
        if is_too_long(text) or len(text) > left:
            narrate("that is too long, and left out")
        elif not text.isprintable():
            narrate("that holds control characters, and is left out")
        else:
            typed.append(text)
            left -= len(text)
    return typed


def _tell(question: Question, typed: list[str], verdict: Verdict, *, as_json: bool) -> None:
    if as_json:
        record = {"question": question.text, "answers": typed, **verdict.as_dict()}
        print_json(record)
        return
    for text, reward in zip(typed, verdict.rewards, strict=False):
        mark = "right" if reward == 1 else "wrong" if reward == 0 else f"{reward:.2f}"
        print(f"{mark:6} {printable(text)}")
    if verdict.expected and not any(reward == 1 for reward in verdict.rewards):
        print(f"{'expected':8} {printable(verdict.expected)}")
