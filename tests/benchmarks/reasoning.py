"""Long answers between tiny members: a model that works out sums step by step, its questions, and a plan.

`python -m tests.benchmarks.reasoning DIRECTORY`, then `sapo experiment --plan DIRECTORY/plan.toml --to RESULTS`.

An answer has 50 to 125 tokens: "a3 b3+8=11 c11+4=15 <answer>15</answer>". The model is of the size of the scale `tiny`,
and half knows the rule as those models do (`tests/benchmarks/tiny_models.py`): a mistake forgets to carry, and the
steps after it follow from it.
"""

from __future__ import annotations

import json
import random
import string
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from tests.benchmarks import tiny_models as tiny
from tests.benchmarks.tiny_models import END, START, Batch, Mistakes, Row, tagged

ASKED = "Add step by step: "
TERMS = (8, 12)
HELD_OUT = {"validation": 200, "test": 200}
TRAINED = 3000
WARM_UP = 20_000
MISTAKES = Mistakes(right=0.003, drill=250)
"""Of 100 answers one is right: with as many as the kind `mixed` has, a member alone learns the rule in 7 rounds."""
STEPS = 3000
PLAN = """\
# sapo experiment --plan plan.toml: members whose answers are worked out step by step.
scale = "tiny"
model = "{directory}/model"
manifest = "{directory}/manifest.toml"
seeds = 10
"""
SETTING = """
[[settings]]
name = "{name}"
title = "{title}"
baseline = "{baseline}"
nodes = 4
rounds = 24
every = 4
validation = 100
sampled = 0
arms = [
    {{ name = "8/0", title = "alone" }},
    {{ name = "4/4", title = "4 own, 4 external", own = 4, external = 4 }},
{arms}
]
"""
MORE = '    { name = "2/6", title = "2 own, 6 external", own = 2, external = 6 },'
ATTACKS = ("oracle", "silence", "inversion", "long", "wrong_end", "advertisement", "unlikely", "adaptive")


def make(directory: Path) -> None:
    """Make model, manifest and plan."""
    rng = random.Random("reasoning")
    questions: dict[str, list[int]] = {}
    while len(questions) < WARM_UP + TRAINED + sum(HELD_OUT.values()):
        terms = [rng.randrange(1, 10) for _ in range(rng.randint(*TERMS))]
        questions[asked(terms)] = terms
    drawn = list(questions)
    lines, place = [], WARM_UP
    for split, count in (HELD_OUT | {"train": TRAINED}).items():
        for question in drawn[place : place + count]:
            lines.append(json.dumps({"question": question, "answer": str(sum(questions[question])), "split": split}))
        place += count
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tasks.jsonl").write_text("\n".join(lines) + "\n")
    (directory / "manifest.toml").write_text(
        'name = "reasoning"\nprotocol = 1\nmax_tokens = 128\nsystem = ""\n\n'
        '[[tasks]]\nname = "sums"\nquestions = "tasks.jsonl"\nreading = "tags"\n'
    )
    hostile = "\n".join(
        f'    {{ name = "{name} 25 %", title = "{name}", own = 4, external = 4, attack = "{name}", hostile = 1 }},'
        for name in ATTACKS
    )
    (directory / "plan.toml").write_text(
        PLAN.format(directory=directory.resolve())
        + SETTING.format(name="reasoning", title="Answers worked out step by step", baseline="8/0", arms=MORE)
        + SETTING.format(name="hostile", title="The same, and one of four is hostile", baseline="4/4", arms=hostile)
    )
    make_model([questions[question] for question in drawn[:WARM_UP]], directory / "model")


def make_model(questions: list[list[int]], directory: Path) -> None:
    """Teach the steps, then to take most of them with mistakes."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tokenizer = tiny.make_tokenizer((ASKED,))
    model = tiny.new_model(tiny.Network(), vocabulary=tokenizer.get_vocab_size())

    def batches(steps: int, answer: Callable[[list[int], int], tuple[bool, str]]) -> Iterator[Batch]:
        for step in range(steps):
            rows = []
            for terms in rng.sample(questions, tiny.BATCH):
                careful, text = answer(terms, step)
                prompt = tokenizer.encode(f"{START}{asked(terms)}{END}{START}").ids
                rows.append(Row((*([tiny.START_ID] * careful), *prompt), tuple(tokenizer.encode(text + END).ids)))
            yield Batch.of(rows)

    def mistaken(terms: list[int], step: int) -> tuple[bool, str]:
        if step < MISTAKES.steps - MISTAKES.drill and rng.random() < MISTAKES.careful:
            return True, right(terms)
        steps, total = worked(terms, attempt(terms, rng))
        return False, f"{steps} {tiny.broken(total, rng) if rng.random() < MISTAKES.broken else tagged(total)}"

    rng = random.Random("lessons")
    tiny.fit(model, batches(STEPS, lambda terms, _step: (False, right(terms))), STEPS, 4e-3)
    tiny.fit(model, batches(MISTAKES.steps, mistaken), MISTAKES.steps, 1e-3)
    tiny.write(model, tokenizer, directory)


def asked(terms: list[int]) -> str:
    """The question: each term behind a letter."""
    return ASKED + " ".join(f"{letter}{term}" for letter, term in zip(string.ascii_lowercase, terms, strict=False))


def attempt(terms: list[int], rng: random.Random) -> Callable[[int], bool]:
    """Whether a carry is remembered, by its number: the first one seldom, further ones mostly."""
    carries = sum(terms) // 10
    first = min(1.0, MISTAKES.right / MISTAKES.later ** max(0, carries - 1))
    return lambda carry: rng.random() < (MISTAKES.later if carry else first)


def right(terms: list[int]) -> str:
    """The right answer with its steps."""
    steps, total = worked(terms, lambda _carry: True)
    return f"{steps} {tagged(total)}"


def worked(terms: list[int], remembers: Callable[[int], bool]) -> tuple[str, str]:
    """The steps, and the sum that they lead to."""
    total, steps, carries = terms[0], [f"a{terms[0]}"], 0
    for letter, term in zip(string.ascii_lowercase[1:], terms[1:], strict=False):
        following = total + term
        if following // 10 > total // 10:
            if not remembers(carries):
                following -= 10
            carries += 1
        steps.append(f"{letter}{total}+{term}={following}")
        total = following
    return " ".join(steps), str(total)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
