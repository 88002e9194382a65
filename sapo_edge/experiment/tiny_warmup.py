"""The warm-up of the tiny model: it learns its tasks from right answers, then to make mistakes in most of them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sapo_edge.experiment.tiny_tasks import attempt, broken, harder_manifest, parts_of, tiny_manifest, unseen_manifest
from sapo_edge.experiment.tiny_tokenizer import END, START, make_tokenizer
from sapo_edge.rollout import Task
from sapo_edge.tasks.answers import CLOSE_TAG, OPEN_TAG
from sapo_edge.tasks.source import TaskSource, derive_seed

if TYPE_CHECKING:
    import torch

PRACTICE: Mapping[str, float] = {"sums": 4.0, "filters": 2.0}
"""How often the model practises an entry in the first part, relative to the others: what is harder to learn, more."""
WARMING, COOLING = 100, 0.95
"""Steps in which the learning rate rises, and the share of it that it falls by until the end."""
BATCHES = 16
"""Batches that are drawn together and sorted by length, because padding costs time."""


@dataclass(frozen=True, slots=True)
class Network:
    """What determines a model that knows its tasks.

    Attributes:
        width, layers, heads, inner: sizes; `inner` is the MLP's.
        questions: questions of the warm-up: of the manifest, and half as many of the harder and the unseen one each.
        steps: optimizer steps.
        batch: answers a step.
        learning_rate: the highest.
        seed: of weights, questions and order.
    """

    width: int = 64
    layers: int = 2
    heads: int = 4
    inner: int = 192
    questions: int = 16000
    steps: int = 3200
    batch: int = 64
    learning_rate: float = 4e-3
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Mistakes:
    """What determines the mistakes that the model then learns to make.

    Attributes:
        right: probability of a right answer.
        later: probability that a part of an answer, after the first, is right; see `tiny_tasks.attempt`.
        broken: share of answers without complete tags.
        steps: optimizer steps.
        careful: share of careful answers: right ones to questions behind a mark that no prompt has. Without them the
            model would forget the right rules; with them it only needs to learn to follow them without the mark.
        drill: last steps without careful answers: the more, the less of their skill shows.
        learning_rate: the highest.
    """

    right: float = 0.05
    later: float = 0.7
    broken: float = 0.05
    steps: int = 600
    careful: float = 0.4
    drill: int = 100
    learning_rate: float = 1e-3


@dataclass(frozen=True, slots=True)
class Question:
    task: Task
    prompt: tuple[int, ...]


class Lessons:
    """The questions of the warm-up and the tokenizer."""

    def __init__(self, count: int, seed: int) -> None:
        self._tokenizer = make_tokenizer()
        self._questions = [
            Question(task, tuple(self._encode(f"{START}{task.question}{END}{START}")))
            for task in warm_up_tasks(count, seed)
        ]

    def right(self, network: Network) -> Iterator[Batch]:
        """Batches of right answers, the harder kinds of questions more often."""
        weights = [PRACTICE.get(question.task.ref.entry, 1.0) for question in self._questions]

        def draw(question: Question, rng: random.Random, step: int) -> Row:
            return self._row(question.prompt, _tagged(question.task.ground_truth))

        return self._batches(network.steps, network.batch, weights, draw, f"{network.seed} right")

    def mistaken(self, network: Network, mistakes: Mistakes) -> Iterator[Batch]:
        """Batches of answers of which most have mistakes."""
        weights = [1.0] * len(self._questions)

        mark = self._tokenizer.token_to_id(START)

        def draw(question: Question, rng: random.Random, step: int) -> Row:
            if step < mistakes.steps - mistakes.drill and rng.random() < mistakes.careful:
                return self._row((mark, *question.prompt), _tagged(question.task.ground_truth))
            if rng.random() < mistakes.broken:
                return self._row(question.prompt, broken(question.task.ground_truth, rng))
            answer = attempt(parts_of(question.task), mistakes.right, mistakes.later, rng)
            return self._row(question.prompt, _tagged(answer))

        return self._batches(mistakes.steps, network.batch, weights, draw, f"{network.seed} mistaken")

    def _batches(
        self,
        steps: int,
        size: int,
        weights: list[float],
        draw: Callable[[Question, random.Random, int], Row],
        seed: str,
    ) -> Iterator[Batch]:
        rng = random.Random(seed)
        cumulative = list(itertools.accumulate(weights))
        for step in range(0, steps, BATCHES):
            drawn = rng.choices(self._questions, cum_weights=cumulative, k=size * BATCHES)
            rows = [draw(question, rng, step) for question in drawn]
            rows.sort(key=lambda row: len(row.prompt) + len(row.answer))
            batches = [rows[start : start + size] for start in range(0, len(rows), size)]
            rng.shuffle(batches)
            for batch in batches[: steps - step]:
                yield Batch.of(batch, self._tokenizer.token_to_id(END))

    def _row(self, prompt: tuple[int, ...], answer: str) -> Row:
        return Row(prompt, tuple(self._encode(answer + END)))

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids


@dataclass(frozen=True, slots=True)
class Row:
    prompt: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """Answers of one step.

    Attributes:
        tokens: (answers, length) questions and answers, padded on the right.
        answered: (answers, length - 1) whether the token behind each position belongs to the answer.
    """

    tokens: torch.Tensor
    answered: torch.Tensor

    @classmethod
    def of(cls, rows: list[Row], padding: int) -> Batch:
        """Pad some rows to the longest one's length."""
        import torch

        length = max(len(row.prompt) + len(row.answer) for row in rows)
        ids = [[*row.prompt, *row.answer] for row in rows]
        tokens = torch.tensor([row + [padding] * (length - len(row)) for row in ids])
        starts = torch.tensor([[len(row.prompt)] for row in rows])
        ends = torch.tensor([[len(row)] for row in ids])
        places = torch.arange(1, length)
        return cls(tokens, (places >= starts) & (places < ends))


def warm_up_tasks(count: int, seed: int) -> list[Task]:
    """Questions for the warm-up: `count` of the tiny manifest, half as many of the harder and of the unseen one.

    They come from sequences that no node has, and none is held out.
    """
    tasks: list[Task] = []
    for manifest, share in ((tiny_manifest(), 1.0), (harder_manifest(), 0.5), (unseen_manifest(), 0.5)):
        sequence = derive_seed("warm-up", manifest.name, seed)
        drawn, _ = TaskSource(manifest).training_tasks(sequence, 0, int(share * count))
        tasks += drawn
    return tasks


def new_model(network: Network) -> Any:
    """transformers' model with random weights from torch's generator."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = make_tokenizer()
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=network.width,
        intermediate_size=network.inner,
        num_hidden_layers=network.layers,
        num_attention_heads=network.heads,
        num_key_value_heads=network.heads,
        head_dim=network.width // network.heads,
        max_position_embeddings=256,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
        tie_word_embeddings=True,
        initializer_range=0.5 / network.width**0.5,
        bos_token_id=tokenizer.token_to_id(START),
        eos_token_id=tokenizer.token_to_id(END),
        dtype="float32",
    )
    return LlamaForCausalLM(config).to(torch.float32)


def fit(model: Any, batches: Iterator[Batch], steps: int, learning_rate: float) -> None:
    """Maximise the likelihood of answers, given their questions, with AdamW."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, betas=(0.9, 0.98), weight_decay=0.05)
    model.train()
    for step, batch in enumerate(batches):
        rising = min(1.0, (step + 1) / min(WARMING, max(1, steps // 10)))
        optimizer.param_groups[0]["lr"] = learning_rate * rising * (1 - COOLING * step / steps)
        states = model.model(batch.tokens[:, :-1], use_cache=False).last_hidden_state[batch.answered]
        loss = torch.nn.functional.cross_entropy(model.lm_head(states), batch.tokens[:, 1:][batch.answered])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()


def _tagged(answer: str) -> str:
    return f"{OPEN_TAG}{answer}{CLOSE_TAG}"
