"""Where a chat template puts each turn of a prompt.

A template comes with the model and does as it likes: it may put the system text last, reject it, leave out a turn or
write it twice. It is filled with a mark in place of each turn's text, and the marks show what it did.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, TypeAlias

from sapo_edge.errors import ModelError
from sapo_edge.policy import Message, Prompt

Turns: TypeAlias = list[dict[str, str]]
"""Turns as templates take them, each with `role` and `content`."""
Render: TypeAlias = Callable[[Turns, dict[str, Any]], str]
"""Renders turns, with variables for the template, up to where the answer begins."""

REMEDY = "use another instruction-tuned model, or a GGUF file of this one with a corrected chat template"
MARK = re.compile("\ue000([0-9]+)\ue001")
"""Stands for a turn's text; of Unicode's private use, so that no template writes or splits it."""
DAY = date(2024, 7, 26)
"""The date that templates are told: prompts must not change at midnight. Llama 3's templates have this one too."""
DATE_FIELDS = "dbBmyYaAj"
"""Of `strftime`, with which templates write a date."""
THINK_OPEN, THINK_CLOSE = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class Layout:
    """A template's text around the turns of a prompt.

    Attributes:
        parts: texts of the template, and between them the index of the turn whose text stands there.
        merged: whether the system turn became the beginning of the first user turn.
    """

    parts: tuple[str | int, ...]
    merged: bool = False

    def prompt(self, prompt: Prompt) -> Prompt:
        """The turns that `parts` refers to."""
        return _merged(prompt) if self.merged else prompt


def lay_out(render: Render, roles: Sequence[str], model: object, *, thinking: bool = False) -> Layout:
    """Find out where a model's template puts the turns of a prompt.

    A template without a place for a system turn gets its text at the beginning of the first user turn.

    Args:
        thinking: whether the model may think before it answers. If not, templates with the variable `enable_thinking`
            or `thinking` are told so, and a `<think>` that is still open at the end is closed.

    Raises:
        ModelError: if it rejects these turns, or a turn's text is missing or doubled.
    """
    merged = [message.role for message in _merged(tuple(Message(role, "") for role in roles))]
    for turns in (roles, merged) if "system" in roles else (roles,):
        try:
            return Layout(_parts(render, turns, thinking=thinking), merged=turns is merged)
        except _UnusableError as error:
            problem = error
    raise ModelError(f"the chat template of {model} {problem}", REMEDY)


def text_after_answer(render: Render, model: object) -> str:
    """What a template writes after an answer's text; "" if it takes no conversation of several turns."""
    try:
        parts = lay_out(render, ("user", "assistant", "user"), model).parts
    except ModelError:
        return ""
    after = parts[parts.index(1) + 1]
    return after if isinstance(after, str) else ""


def with_fixed_date(template: str) -> str:
    """A template with its own `strftime_now`, which always answers `DAY`.

    The sandboxes that render templates take no functions from outside, for good reasons.
    """
    fields = (f".replace('%{field}', '{DAY.strftime('%' + field)}')" for field in DATE_FIELDS)
    answer = "".join(["format", *fields])
    # trim_blocks removes this newline, and the template still begins at the beginning of a line.
    return f"{{% macro strftime_now(format) %}}{{{{ {answer} }}}}{{% endmacro %}}\n{template}"


class _UnusableError(Exception):
    """What a template did, as a predicate."""


def _parts(render: Render, roles: Sequence[str], *, thinking: bool) -> tuple[str | int, ...]:
    from jinja2 import TemplateError

    marks = [{"role": role, "content": f"\ue000{index}\ue001"} for index, role in enumerate(roles)]
    try:
        rendered = render(marks, {"enable_thinking": thinking, "thinking": thinking})
    except (
        TemplateError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError,
    ) as error:  # fmt: skip
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise _UnusableError(f"rejects a prompt of the turns {', '.join(roles)} ({reason})") from error
    # Texts at even places, indices between them.
    pieces = MARK.split(rendered)
    found = [int(piece) for piece in pieces[1::2]]
    for index, role in enumerate(roles):
        if found.count(index) != 1:
            fault = "leaves out" if index not in found else "repeats"
            raise _UnusableError(f"{fault} turn {index + 1} of {len(roles)} ({role})")
    if not thinking and pieces[-1].rstrip().endswith(THINK_OPEN):
        pieces[-1] = f"{pieces[-1].rstrip()}\n\n{THINK_CLOSE}\n\n"
    return tuple(int(piece) if place % 2 else piece for place, piece in enumerate(pieces))


def _merged(prompt: Prompt) -> Prompt:
    """The prompt with its system texts at the beginning of the first user turn."""
    texts = [message.content for message in prompt if message.role == "system"]
    turns = [message for message in prompt if message.role != "system"]
    first = next((index for index, message in enumerate(turns) if message.role == "user"), None)
    if not texts or first is None:
        return prompt
    turns[first] = Message("user", "\n\n".join([*texts, turns[first].content]))
    return tuple(turns)
