"""What sampling and learning need of a tokenizer, whichever library it comes from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from sapo_edge.policy import Prompt


class Vocabulary(Protocol):
    """A tokenizer with a chat template."""

    @property
    def end_token(self) -> int:
        """The id that ends a turn of the chat template."""
        ...

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        """Token ids of a text; `special` parses control tokens such as `<|im_start|>` (templates only, never data)."""
        ...

    def piece(self, token: int) -> bytes:
        """Bytes of one token; control tokens are empty."""
        ...

    def ends(self, token: int) -> bool:
        """Whether the token ends a completion."""
        ...

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt, rendered with the model's own chat template.

        Raises:
            ModelError: if the model has none.
        """
        ...

    def close(self) -> None:
        """Free native memory."""
        ...


def encode_turns(
    prompt: Prompt, render: Callable[[list[dict[str, str]]], str], tokenize: Callable[[str, bool], list[int]]
) -> list[int]:
    """Token ids of a prompt.

    The template is filled with placeholders first and the texts are tokenised apart, without control tokens: a
    question can't forge a turn.

    Args:
        prompt: the turns.
        render: messages to the template's text, with the head of the answer's turn.
        tokenize: (text, whether control tokens are parsed) to ids.
    """
    marks = [f"\ue000{index}\ue001" for index in range(len(prompt))]
    rendered = render([{"role": m.role, "content": mark} for m, mark in zip(prompt, marks, strict=True)])
    ids: list[int] = []
    for mark, message in zip(marks, prompt, strict=True):
        before, found, rendered = rendered.partition(mark)
        ids += tokenize(before, True)
        if found:
            ids += tokenize(message.content, False)
    return ids + tokenize(rendered, True)
