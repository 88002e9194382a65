"""Held-out evaluation: greedy answers to fixed questions that are never trained on (pass@1).

Each answer is right in the form that the manifest asks for, right in another form, or wrong. Accuracy and gain are of
content, in whatever form; form is counted apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING

from sapo_edge.events import FORMED, WRONG, count_right
from sapo_edge.tasks.texts import MAX_TEXT_BYTES

if TYPE_CHECKING:
    from sapo_edge.policy import CallHandle, Policy, Prompt
    from sapo_edge.rollout import Task
    from sapo_edge.tasks.source import TaskSource

SHOWN = 8
"""Worked examples in the second way to ask a base model, those of the manifest included."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The result of one evaluation.

    Attributes:
        marks: for each question, `WRONG`, `FORMED` or `OTHERWISE`.
        entries: the manifest's entry of each question, by name.
        too_long: questions that were not asked, because the model's context has no room for them and an answer. They
            count as wrong.
    """

    marks: str
    texts: tuple[str, ...]
    entries: tuple[str, ...]
    too_long: int = 0

    @property
    def questions(self) -> int:
        return len(self.marks)

    @property
    def right(self) -> int:
        """Number of questions answered right, in whatever form."""
        return count_right(self.marks)

    @property
    def formed(self) -> int:
        """Number of questions answered right in the form that the manifest asks for."""
        return self.marks.count(FORMED)

    @property
    def accuracy(self) -> float:
        """Share of questions answered right: pass@1 of the greedy policy."""
        return self.right / self.questions if self.questions else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the accuracy."""
        return wilson_interval(self.right, self.questions)

    def marks_by_entry(self) -> dict[str, str]:
        """Entry -> the marks of its questions, in their order."""
        marks: dict[str, str] = {}
        for entry, mark in zip(self.entries, self.marks, strict=True):
            marks[entry] = marks.get(entry, "") + mark
        return marks


def wilson_interval(right: int, questions: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a share (JASA 22:209, 1927), which stays accurate near 0 and 1."""
    if questions == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    share = right / questions
    scale = 1 + z * z / questions
    centre = (share + z * z / (2 * questions)) / scale
    spread = z / scale * math.sqrt(share * (1 - share) / questions + z * z / (4 * questions**2))
    # Rounding must not exclude the share from the interval, nor extend the interval beyond [0, 1].
    return min(share, max(0.0, centre - spread)), max(share, min(1.0, centre + spread))


@dataclass(frozen=True, slots=True)
class Gain:
    """The rise of the accuracy from the base model to the adapter on the same questions.

    Attributes:
        low, high: 95 % interval of it.
        gained, lost: questions that only the adapter, and only the base model, answered right.
    """

    value: float
    low: float
    high: float
    gained: int
    lost: int


def paired_gain(base: str, adapter: str) -> Gain:
    """The gain, from the marks of the same questions, with its interval for paired shares.

    Newcombe, Statistics in Medicine 17:2635 (1998), method 10.

    The method combines the Wilson intervals of both shares with the correlation of the pairs, so that questions which
    both answer alike narrow the interval.
    """
    pairs = [(first != WRONG, second != WRONG) for first, second in zip(base, adapter, strict=True)]
    both, gained, lost, neither = (
        pairs.count(pair) for pair in ((True, True), (False, True), (True, False), (False, False))
    )
    questions, base_right, right = len(pairs), both + lost, both + gained
    if not questions:
        return Gain(0.0, -1.0, 1.0, 0, 0)
    (low, high), (base_low, base_high) = wilson_interval(right, questions), wilson_interval(base_right, questions)
    product = both * neither - gained * lost
    # Newcombe's correction for continuity, for positive correlations only.
    numerator = max(product - questions / 2, 0.0) if product > 0 else product
    denominator = math.sqrt(right * base_right * (questions - right) * (questions - base_right))
    correlation = numerator / denominator if denominator else 0.0
    down, up = right / questions - low, high - right / questions
    base_down, base_up = base_right / questions - base_low, base_high - base_right / questions
    below = math.sqrt(max(0.0, down**2 - 2 * correlation * down * base_up + base_up**2))
    above = math.sqrt(max(0.0, base_down**2 - 2 * correlation * base_down * up + up**2))
    value = (gained - lost) / questions
    return Gain(value, max(-1.0, value - below), min(1.0, value + above), gained, lost)


def evaluate_base(
    policy: Policy,
    source: TaskSource,
    tasks: Sequence[Task],
    max_tokens: int,
    handle: Callable[[], CallHandle | None] = lambda: None,
) -> tuple[Evaluation, int]:
    """The base model's answers, asked in the better of two ways: by the manifest's prompt, or with `SHOWN` examples.

    A base model that answers poorly only because it was shown too little would make any adapter look good. Returns the
    evaluation, and the number of worked examples beyond those of the manifest.
    """
    manifest = source.manifest
    plain = evaluate(policy, tasks, manifest.prompt_for, source.judge, max_tokens, handle(), use_adapter=False)
    missing = SHOWN - len(manifest.examples)
    if missing <= 0:
        return plain, 0
    drawn, _ = source.training_tasks(source.shown_seed, 0, 4 * missing)
    answers = {task.question: answer for task in drawn if (answer := source.right_answer(task)) is not None}
    short = [pair for pair in answers.items() if max(len(text.encode()) for text in pair) <= MAX_TEXT_BYTES]
    examples = (*manifest.examples, *short[:missing])
    if len(examples) == len(manifest.examples):
        return plain, 0
    prompt_for = replace(manifest, examples=examples).prompt_for
    shown = evaluate(policy, tasks, prompt_for, source.judge, max_tokens, handle(), use_adapter=False)
    return (shown, len(examples) - len(manifest.examples)) if shown.right > plain.right else (plain, 0)


def evaluate(
    policy: Policy,
    tasks: Sequence[Task],
    prompt_for: Callable[[str], Prompt],
    judge: Callable[[Task, str], str],
    max_tokens: int,
    handle: CallHandle | None = None,
    *,
    use_adapter: bool = True,
) -> Evaluation:
    """Answer each task once, greedily, by adapter or base model. One that is too long for the model counts as wrong."""
    prompts = [prompt_for(task.question) for task in tasks]
    asked = [index for index, prompt in enumerate(prompts) if policy.room(prompt) >= max_tokens]
    groups = policy.generate(
        [prompts[index] for index in asked], 1, max_tokens, 0.0, 0, handle, use_adapter=use_adapter
    )
    texts, marks = [""] * len(tasks), [WRONG] * len(tasks)
    for index, (sample,) in zip(asked, groups, strict=True):
        texts[index], marks[index] = sample.text, judge(tasks[index], sample.text)
    entries = tuple(task.ref.entry for task in tasks)
    return Evaluation("".join(marks), tuple(texts), entries, len(tasks) - len(asked))
