"""What `sapo tasks` prints as JSON, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from rich.text import Text

from sapo_edge.plain import counted, printable
from sapo_edge.tasks.about import SKILL_WORDS

MAX_REMARKS = 50
"""Most remarks and mistakes shown."""
MAX_ANSWERS = 6
"""Most different answers shown of a question."""
START = """\
A model learns from questions whose answers a program can check.

n  writes a folder with a few questions to begin with, or takes a file that you have.
e  edits them.
r  checks them: mistakes, and what may be wrong.
y  lets the model try them: is there something to learn?
u  trains on them.

Your questions stay on this machine until you create a swarm for them.
"""


def is_offered(row: Mapping[str, Any]) -> bool:
    """Whether to list a manifest: not one that only continues what an earlier version has begun."""
    return bool(row.get("used")) or row.get("from") != "shipped" or row.get("use") == row.get("name")


def manifest_line(row: Mapping[str, Any]) -> str:
    own = row.get("own_questions") or 0
    named = printable(row.get("name", ""))
    use = printable(row.get("use", ""))
    kind = {"shipped": "comes with sapo", "kept": "of a swarm or run"}.get(str(row.get("from")), "your file")
    tasks = SKILL_WORDS.get(str(row.get("use"))) or counted(int(row.get("tasks") or 0), "task")
    parts = [tasks, *([f"{counted(own, 'question')} of your own"] if own else []), kind]
    return f"{'*' if row.get('used') else ' '} {named:18} {', '.join(parts)}" + (f"  {use}" if use != named else "")


def mistakes_text(record: Mapping[str, Any]) -> Text:
    mistakes = record["mistakes"]
    text = Text().append(f"✗ {counted(len(mistakes), 'mistake')}\n\n", "bold red")
    for mistake in mistakes[:MAX_REMARKS]:
        text.append(f"{printable(mistake['text'])}\n").append(f"  {printable(mistake['remedy'])}\n", "dim")
    return text


def check_text(record: Mapping[str, Any], notes: tuple[str, ...]) -> Text:
    """What `sapo tasks check` found in a file without mistakes."""
    text = Text().append("✓ no mistakes\n\n", "bold green")
    for task in record["tasks"]:
        text.append(f"{printable(task['name'])}: {counted(task['train'], 'question')} to train on")
        held_out = f"{task['validation']} to choose the best checkpoint, {task['test']} to report the gain"
        text.append(f", {held_out}\n", "dim")
        if not task["test"]:
            text.append("with fewer than 6 questions no gain can be reported\n", "yellow")
    if examples := record.get("examples"):
        text.append(
            f"the model sees {counted(examples, 'more question')} with the answer, as a worked example\n", "dim"
        )
    if not record["tasks"]:
        text.append("it has no questions of your own\n")
    if warnings := record["warnings"]:
        text.append(f"\n{counted(len(warnings), 'thing')} may be wrong\n", "bold yellow")
        for warning in warnings[:MAX_REMARKS]:
            text.append(f"{printable(warning['where'])}: ", "dim").append(f"{printable(warning['text'])}\n")
    for note in notes:
        if note.startswith("lengths are not checked"):
            text.append(f"\n{printable(note)}\n", "dim")
    return text


def preview_text(record: Mapping[str, Any]) -> Text:
    questions = record["questions"]
    answers = sum(len(question["answers"]) for question in questions)
    text = Text().append(f"{printable(record['advice'])}\n\n", "bold")
    text.append(f"right answers: {record['success']:.0%} of {answers}\n")
    asked = counted(len(questions), "question")
    text.append(f"something to learn from: {record['informative'] + record['corrected']} of {asked}")
    text.append(", by better and worse answers, or by the known right one\n", "dim")
    for question in questions:
        text.append(f"\n{printable(question['question'], lines=True)}\n", "bold")
        text.append(f"  expected: {printable(question['expected'])}\n", "dim")
        kinds = Counter((answer["text"], answer["reward"]) for answer in question["answers"])
        for (answer, reward), number in kinds.most_common(MAX_ANSWERS):
            mark = ("✓", "green") if reward == 1 else ("✗", "red") if not reward else ("•", "yellow")
            text.append("  ").append(*mark).append(f" {number} x  {' '.join(printable(answer, lines=True).split())}\n")
    text.append("\nThe prompt of the first question, as the model gets it\n", "bold")
    return text.append(printable(record["prompt"], lines=True), "dim")
