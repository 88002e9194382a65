"""`sapo answer`: a person answers a question of the running node, which shares the answers like a model's."""

from __future__ import annotations

import sys

from sapo_edge.cli.options import Home, Json
from sapo_edge.cli.output import print_json, read_line
from sapo_edge.control.client import connect
from sapo_edge.errors import ConfigError
from sapo_edge.plain import narrate, printable
from sapo_edge.state.paths import Paths

MAX_CHARACTERS = 8000
"""Most characters of all answers together: they fit into one line of the control socket."""
_SECONDS = 60.0
_HOW = """Type one or more answers, one a line; an empty line ends. Peers learn the right ones; with a wrong one
beside them, also those peers that often get such questions right."""


def answer(home: Home = None, json: Json = False) -> None:
    """Answer a question of the running node yourself, and share it like the model's answers."""
    from sapo_edge.node.person import PersonAnswers, Question, Verdict, tag_answer

    with connect(Paths.default(home)) as client:
        question = Question.from_dict(client.request("question", timeout=_SECONDS))
        narrate(f"{question.text}\n\n{_HOW}")
        try:
            typed = typed_answers()
        except KeyboardInterrupt:
            narrate("\nnothing was shared")
            raise
        if not typed:
            narrate("no answer, so nothing is shared")
            if json:
                print_json({"question": question.text, "answers": [], **Verdict((), "", False).as_dict()})
            return
        answers = PersonAnswers(question.ref, tuple(map(tag_answer, typed)), question.manifest)
        reply = client.request("share_answers", answers.as_dict(), timeout=_SECONDS)
    verdict = Verdict.from_dict(reply, len(typed))
    narrate("shared with the swarm" if verdict.shared else "the running node works alone: nothing is shared")
    if json:
        print_json({"question": question.text, "answers": typed, **verdict.as_dict()})
        return
    for text, reward in zip(typed, verdict.rewards, strict=True):
        mark = "right" if reward == 1 else "wrong" if reward == 0 else f"{reward:.2f}"
        print(f"{mark:6} {printable(text)}")
    if verdict.expected and not any(reward == 1 for reward in verdict.rewards):
        print(f"{'expected':8} {printable(verdict.expected)}")


def typed_answers() -> list[str]:
    """Read lines until an empty one, the end of the input, or the most answers that a rollout holds."""
    from sapo_edge.node.person import is_too_long
    from sapo_edge.rollout import MAX_ANSWERS

    if sys.stdin is None:
        raise ConfigError("there is no input to read answers from", "run it in a terminal, or pipe answers in")
    typed: list[str] = []
    left = MAX_CHARACTERS
    while len(typed) < MAX_ANSWERS:
        text = read_line(f"{len(typed) + 1}> ", MAX_CHARACTERS).strip()
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
