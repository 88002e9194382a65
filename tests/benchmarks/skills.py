"""What the test questions of a manifest are worth without learning, beside what an adapter makes of them.

`python -m tests.benchmarks.skills --manifest home [--model FILE.gguf ...] [--adapter DIR ...] [--questions 200]`

On the same test questions, greedily and judged alike: each model with the manifest's prompt alone and with eight worked
examples; the answer of the most similar of 20,000 training questions, by character n-grams (needs scikit-learn); and
the embedded model with each adapter. Prints the share that is right, and for objects the share of right fields.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from sapo_edge.backends.llama.policy import LlamaCppPolicy
from sapo_edge.backends.model.find import find_model
from sapo_edge.evaluate import SHOWN, evaluate
from sapo_edge.events import WRONG
from sapo_edge.policy import Policy
from sapo_edge.rollout import Task
from sapo_edge.tasks.manifest import Manifest, load_manifest
from sapo_edge.tasks.skills import SKILLS
from sapo_edge.tasks.source import TaskSource
from tests.benchmarks.measure import machine
from tests.benchmarks.work import embedded

NEIGHBOURS = 20_000
"""Training questions among which the most similar one is looked for."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.skills", description=__doc__)
    parser.add_argument("--manifest", action="append", required=True)
    parser.add_argument("--model", type=Path, action="append", default=[], help="beside the embedded one")
    parser.add_argument("--adapter", type=Path, action="append", default=[], help="of the embedded model")
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--threads", type=int, default=0)
    arguments = parser.parse_args()
    print(f"machine: {machine()}\n\n| manifest | answered by | right | fields |\n|---|---|---|---|", flush=True)
    for name in arguments.manifest:
        source = TaskSource(load_manifest(name))
        tasks = source.held_out("test", arguments.questions)
        partial = _with_partial_credit(source.manifest)

        def tell(who: str, texts: Sequence[str], source: TaskSource = source, tasks: Sequence[Task] = tasks,
                 partial: TaskSource | None = partial, name: str = name) -> None:  # fmt: skip
            right = sum(source.judge(task, text) != WRONG for task, text in zip(tasks, texts, strict=True))
            fields = "" if partial is None else f"{_mean(partial.score, tasks, texts):.2f}"
            print(f"| {name} | {who} | {right / len(tasks):.2f} | {fields} |", flush=True)

        tell("the most similar training question", _neighbours(source, tasks))
        for model in (find_model(""), *arguments.model):
            with tempfile.TemporaryDirectory() as workspace:
                policy = LlamaCppPolicy(embedded(workspace, model, threads=arguments.threads, trainable=False))
                for shown in (0, SHOWN):
                    tell(f"{model.stem}, {shown} examples", _answers(policy, source, tasks, shown))
                for adapter in arguments.adapter if model == find_model("") else ():
                    policy.load(adapter)
                    tell(f"{model.stem}, {adapter}", _answers(policy, source, tasks, 0, use_adapter=True))
                policy.close()


def _mean(score: Callable[[Task, str], float], tasks: Sequence[Task], texts: Sequence[str]) -> float:
    return sum(score(task, text) for task, text in zip(tasks, texts, strict=True)) / len(tasks)


def _with_partial_credit(manifest: Manifest) -> TaskSource | None:
    """The same tasks, of which an object earns its share of right fields; None if none asks for objects."""
    if not all(entry.generator in SKILLS for entry in manifest.tasks):
        return None
    return TaskSource(replace(manifest, tasks=tuple(replace(e, partial_credit=True, form=0.0) for e in manifest.tasks)))


def _neighbours(source: TaskSource, tasks: Sequence[Task]) -> list[str]:
    from sklearn.feature_extraction.text import TfidfVectorizer

    known: dict[str, str] = {}
    cursor = 0
    while len(known) < NEIGHBOURS and cursor < 2 * NEIGHBOURS:
        drawn, cursor = source.training_tasks(1, cursor, 100)
        known.update({task.question: answer for task in drawn if (answer := source.right_answer(task)) is not None})
    vectors = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True)
    questions = vectors.fit_transform(known)
    nearest = (vectors.transform(task.question for task in tasks) @ questions.T).argmax(axis=1)
    answers = list(known.values())
    return [answers[int(index)] for index in nearest.ravel().tolist()[0]]


def _answers(
    policy: Policy, source: TaskSource, tasks: Sequence[Task], shown: int, *, use_adapter: bool = False
) -> tuple[str, ...]:
    manifest = source.manifest
    drawn, _ = source.training_tasks(source.shown_seed, 0, 4 * shown) if shown else ((), 0)
    pairs = [(task.question, answer) for task in drawn if (answer := source.right_answer(task)) is not None]
    asked = replace(manifest, examples=(*manifest.examples, *pairs[:shown]))
    return evaluate(policy, tasks, asked.prompt_for, source.judge, manifest.max_tokens, use_adapter=use_adapter).texts


if __name__ == "__main__":
    main()
