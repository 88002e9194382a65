"""`sapo answer`: a person answers a question; the answers are shared like a model's."""

from __future__ import annotations

import secrets
import sys
from typing import TYPE_CHECKING, Protocol

import typer

from sapo_edge.cli.options import Home, Json
from sapo_edge.cli.output import narrate, print_json
from sapo_edge.cli.workspace import Workspace, open_workspace
from sapo_edge.control.client import ControlClient, connect
from sapo_edge.errors import ConfigError, ExitCode, NoNodeError
from sapo_edge.plain import counted, printable

if TYPE_CHECKING:
    from sapo_edge.node.person import PersonAnswers, Question, Verdict

MAX_CHARACTERS = 8000
"""Most characters of all answers together: they fit into one line of the control socket."""
_SECONDS = 60.0


class _Examiner(Protocol):
    """Asks a question and verifies answers: the running node, or this process without one."""

    def question(self) -> Question: ...

    def verdict(self, answers: PersonAnswers) -> Verdict: ...


class _RunningNode:
    """Asks the node, which shares the answers immediately."""

    def __init__(self, client: ControlClient) -> None:
        self._client = client

    def question(self) -> Question:
        from sapo_edge.node.person import Question

        return Question.from_dict(self._client.request("question", timeout=_SECONDS))

    def verdict(self, answers: PersonAnswers) -> Verdict:
        from sapo_edge.node.person import Verdict

        reply = self._client.request("share_answers", answers.as_dict(), timeout=_SECONDS)
        verdict = Verdict.from_dict(reply, len(answers.answers))
        narrate("shared with the swarm" if verdict.shared else "the running node works alone: nothing is shared")
        return verdict


class _NoNode:
    """Draws the question and verifies the answers itself; they wait in the outbox for the next node."""

    def __init__(self, workspace: Workspace) -> None:
        from sapo_edge.node.person import Outbox
        from sapo_edge.state.secret import SECRET_BYTES, read_secret, seed_from_secret
        from sapo_edge.tasks.source import TaskSource

        self._source = TaskSource(workspace.require_manifest())
        self._paths = workspace.paths
        self._outbox = Outbox(workspace.paths.state / "outbox.json", narrate)
        # Without an identity any seed will do: the first answer to be kept creates the directories.
        has_identity = workspace.paths.identity.exists()
        secret = read_secret(workspace.paths.identity) if has_identity else secrets.token_bytes(SECRET_BYTES)
        self._seed = seed_from_secret(secret)

    def question(self) -> Question:
        from sapo_edge.node.person import draw_question

        return draw_question(self._source, self._seed)

    def verdict(self, answers: PersonAnswers) -> Verdict:
        from sapo_edge.node.person import Verdict, verify_answers

        task, rewards = verify_answers(self._source, answers)
        self._paths.create()
        waiting = self._outbox.add(answers)
        narrate(f"no node runs: {counted(waiting, 'set')} of answers wait for the next `sapo run`, which shares them")
        return Verdict(rewards, task.ground_truth, False)


def answer(home: Home = None, json: Json = False) -> None:
    """Answer a question yourself, and share it like the model's answers."""
    workspace = open_workspace(home)
    try:
        client = connect(workspace.paths)
    except NoNodeError:
        raise typer.Exit(_ask(_NoNode(workspace), as_json=json)) from None
    with client:
        raise typer.Exit(_ask(_RunningNode(client), as_json=json))


def _ask(examiner: _Examiner, *, as_json: bool) -> ExitCode:
    from sapo_edge.node.person import PersonAnswers, tag_answer

    question = examiner.question()
    narrate(printable(question.text, lines=True))
    narrate("")
    narrate("Type one or more answers, one a line; an empty line ends. Peers learn the right ones; with a wrong one")
    narrate("beside them, also those peers that often get such questions right.")
    try:
        typed = _typed_answers()
    except KeyboardInterrupt:
        narrate("\nnothing was shared")
        return ExitCode.INTERRUPTED
    if not typed:
        narrate("no answer, so nothing is shared")
        return ExitCode.DONE
    answers = PersonAnswers(question.ref, tuple(tag_answer(text) for text in typed), question.manifest)
    verdict = examiner.verdict(answers)
    _print_verdict(question, typed, verdict, as_json=as_json)
    return ExitCode.DONE


def _typed_answers() -> list[str]:
    """Read lines until an empty one, the end of the input, or the most answers that a rollout holds."""
    from sapo_edge.node.person import is_too_long
    from sapo_edge.rollout import MAX_ANSWERS

    if sys.stdin is None:
        raise ConfigError("there is no input to read answers from", "run it in a terminal, or pipe answers in")
    typed: list[str] = []
    left = MAX_CHARACTERS
    while len(typed) < MAX_ANSWERS:
        if sys.stdin.isatty():
            print(f"{len(typed) + 1}> ", end="", file=sys.stderr, flush=True)
        text = sys.stdin.readline(MAX_CHARACTERS + 2).strip()
        if not text:
            break
        if is_too_long(text) or len(text) > left:
            narrate("left out: too long")
        elif not text.isprintable():
            narrate("left out: it holds control characters")
        else:
            typed.append(text)
            left -= len(text)
    return typed


def _print_verdict(question: Question, typed: list[str], verdict: Verdict, *, as_json: bool) -> None:
    if as_json:
        record = {"question": question.text, "answers": typed, **verdict.as_dict()}
        print_json(record)
        return
    for text, reward in zip(typed, verdict.rewards, strict=False):
        mark = "right" if reward == 1 else "wrong" if reward == 0 else f"{reward:.2f}"
        print(f"{mark:6} {printable(text)}")
    if verdict.expected and not any(reward == 1 for reward in verdict.rewards):
        print(f"{'expected':8} {printable(verdict.expected)}")
