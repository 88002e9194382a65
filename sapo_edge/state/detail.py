"""What an evaluation keeps beside its accuracy: the marks of all answers by task, and a few answers in full."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field

from sapo_edge.fields import check_flag, check_list, check_map, check_text

EXAMPLES = 40
"""Most answers that are kept: enough that some of them change where one in ten does. Short ones take 5 KB together."""
TRAINED = "train"
"""In place of a held-out set: own questions that were trained on."""
AHEAD = ", head start"
"""Behind a held-out set's name: as the adapter of a head start answered it, which has no round of its own."""
MAX_CHARACTERS = 600
"""Most characters that are kept of a question, of the expected answer, and of an answer."""


@dataclass(frozen=True, slots=True)
class Example:
    """One answer; texts are cut at `MAX_CHARACTERS`.

    Attributes:
        entry: the manifest's entry of the question, by name.
        expected: the right answer; "" if there are several.
        right: whether it is right, in whatever form.
        formed: whether it is right in the form that the manifest asks for.
    """

    entry: str
    question: str
    expected: str
    answer: str
    right: bool
    formed: bool = False


@dataclass(frozen=True, slots=True)
class Detail:
    """The details of one evaluation.

    Attributes:
        marks: entry -> the mark of each of its questions (`events.HeldOut.answers`).
        examples: the answers to the first questions, in their order.
    """

    marks: Mapping[str, str] = field(default_factory=dict)
    examples: tuple[Example, ...] = ()

    def to_json(self) -> str:
        """As the journal stores it."""
        rows = [
            [value[:MAX_CHARACTERS] if isinstance(value, str) else value for value in astuple(example)]
            for example in self.examples[:EXAMPLES]
        ]
        return json.dumps({"marks": dict(self.marks), "examples": rows})

    @classmethod
    def from_json(cls, text: str) -> Detail:
        """Read what `to_json` wrote; a ValueError if it is anything else."""
        record = check_map("detail", json.loads(text))
        marks = {name: check_text("marks", text) for name, text in check_map("marks", record.get("marks")).items()}
        return cls(marks, tuple(map(_example, check_list("examples", record.get("examples")))))


def _example(value: object) -> Example:
    *texts, right, formed = check_list("example", value)
    entry, question, expected, answer = (check_text("example", text) for text in texts)
    return Example(entry, question, expected, answer, check_flag("right", right), check_flag("formed", formed))
