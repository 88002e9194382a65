"""Makes the models of the scale `tiny` of `sapo experiment`: `python -m tests.benchmarks.tiny_models DIRECTORY`.

Real ones of Llama's architecture, so small that four minutes of one core make all. A warm-up with labels teaches them
their tasks, and then to answer most questions with mistakes. So a fresh node knows the right rules but seldom follows
them, as a language model before reinforcement learning does. Held-out questions are not in the warm-up.

A model that half knows something errs by rules, not at random. So each part of an answer, such as a letter or a number,
has a wrong value that follows from the question by a wrong rule. Reinforcement learning has to move probability to the
right rule, which the model knows as well.

The same bytes come from one version of torch on processors with the same instructions. Those that ship in
`sapo_edge/experiment/models/`, on which the tables of docs/results.md were made, are of torch 2.13 with AVX-512.
"""

from __future__ import annotations

import copy
import itertools
import json
import random
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from sapo_edge.experiment.scene import harder_manifest, tiny_manifest, unseen_manifest
from sapo_edge.rollout import Task
from sapo_edge.tasks.readings import CLOSE_TAG, OPEN_TAG
from sapo_edge.tasks.source import TaskSource, derive_seed

START, END = "<|im_start|>", "<|im_end|>"
START_ID, END_ID = 256, 257
"""They come after the 256 bytes."""
CHAT_TEMPLATE = (
    "{% for message in messages %}" + START + "{{ message['content'] }}" + END + "{% endfor %}"
    "{% if add_generation_prompt %}" + START + "{% endif %}"
)
"""ChatML without the roles: a turn costs two tokens."""
PHRASES = (
    "Spell this word backward (example: sun -> nus): ", "State the final answer to the following arithmetic problem: ",
    " all numbers ", " than ", " in this list: ", "\nReturn the new list in the same format.", " + ", " - ", " =",
    "Keep", "Remove", "larger", "smaller", "['", "', '", "']", "[]",
    "Given a square matrix, your job is to rotate it clockwise.\n\n"
    "Your output should be a matrix in the same format as the input.\n\nRotate the matrix below by ",
    " degrees clockwise:\n",
    "Your task is to sort words in ascending or descending order using ASCII/Unicode ordering.\n\n"
    "Your output should be a comma-separated list of words, e.g. word_1, word_2, word_3\n\nNow, sort these words in ",
    "ascending", "descending",
    " order (using ASCII/Unicode ordering) and return them as a comma-separated list: ", ", ",
)  # fmt: skip
"""Parts of the questions that are one token each; everything else is one token a byte."""
PRACTICE = {"sums": 4.0, "filters": 2.0}
"""How often the model practises an entry in the first part, relative to the others: what is harder to learn, more."""
WARMING, COOLING = 100, 0.95
"""Steps in which the learning rate rises, and the share of it that it falls by until the end."""
BATCHES, BATCH = 16, 64
"""Batches that are drawn together and sorted by length, because padding costs time; answers in each."""
QUESTIONS = 16000
"""Questions of the warm-up: of the manifest, and half as many of the harder and of the unseen one each."""


@dataclass(frozen=True, slots=True)
class Network:
    width: int = 64
    heads: int = 4
    inner: int = 192


@dataclass(frozen=True, slots=True)
class Mistakes:
    """What determines the mistakes that the model then learns to make; for right and later see `attempt`.

    A share of answers is broken, without complete tags, and one is careful: right ones to questions behind a mark that
    no prompt has. Without them the model would forget the right rules; with them it only needs to learn to follow them
    without the mark. The more last steps, the drill, have none, the less of their skill shows.
    """

    right: float = 0.05
    later: float = 0.7
    broken: float = 0.05
    steps: int = 600
    careful: float = 0.4
    drill: int = 100


KINDS = {
    Network(): {
        "mixed": Mistakes(),
        "hard": Mistakes(right=0.003, drill=250),
        "trained": Mistakes(right=0.65, later=0.95),
    },
    Network(width=40, inner=96): {"small": Mistakes()},
}


def make_all(directory: Path, questions: int = QUESTIONS, steps: int = 3200) -> None:
    """Make the models of all kinds: those of one size learn their tasks once, in so many steps."""
    torch.set_num_threads(1)
    tasks = warm_up_tasks(questions)
    for network, kinds in KINDS.items():
        torch.manual_seed(0)
        lessons, knowing = Lessons(tasks), new_model(network)
        fit(knowing, lessons.right(steps), steps, 4e-3)
        for kind, mistakes in kinds.items():
            model = copy.deepcopy(knowing)
            fit(model, lessons.mistaken(mistakes), mistakes.steps, 1e-3)
            write(model, make_tokenizer(), directory / kind)


def write(model: Any, tokenizer: Tokenizer, directory: Path) -> None:
    directory.mkdir(parents=True)
    tokenizer.save(str(directory / "tokenizer.json"), pretty=False)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "bos_token": START}
    settings["chat_template"] = CHAT_TEMPLATE
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=1, sort_keys=True))
    model.config.save_pretrained(str(directory))
    # The head is the embedding; safetensors refuses to store one tensor twice.
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    save_file(tensors, str(directory / "model.safetensors"), metadata={"format": "pt"})


def make_tokenizer(phrases: Sequence[str] = PHRASES) -> Tokenizer:
    """All bytes, phrases, the answer tags, two control tokens: a text has one encoding, every byte sequence has one."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={text: index for index, text in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in (START, END)])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in (OPEN_TAG, CLOSE_TAG, *phrases)])
    return tokenizer


def new_model(network: Network, vocabulary: int = len(PHRASES) + 260) -> Any:
    """transformers' model with random weights from torch's generator."""
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=network.width, intermediate_size=network.inner, num_hidden_layers=2,
        num_attention_heads=network.heads, num_key_value_heads=network.heads, head_dim=network.width // network.heads,
        max_position_embeddings=256, rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
        tie_word_embeddings=True, initializer_range=0.5 / network.width**0.5, bos_token_id=START_ID,
        eos_token_id=END_ID, dtype="float32",
    )  # fmt: skip
    return LlamaForCausalLM(config).to(torch.float32)


def fit(model: Any, batches: Iterable[Batch], steps: int, learning_rate: float) -> None:
    """Maximise the likelihood of answers, given their questions, with AdamW."""
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


@dataclass(frozen=True, slots=True)
class Row:
    prompt: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """Answers of one step, padded on the right, and whether the token behind each position belongs to the answer."""

    tokens: torch.Tensor
    answered: torch.Tensor

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Batch:
        length = max(len(row.prompt) + len(row.answer) for row in rows)
        ids = [[*row.prompt, *row.answer] for row in rows]
        tokens = torch.tensor([row + [END_ID] * (length - len(row)) for row in ids])
        starts = torch.tensor([[len(row.prompt)] for row in rows])
        ends = torch.tensor([[len(row)] for row in ids])
        places = torch.arange(1, length)
        return cls(tokens, (places >= starts) & (places < ends))


@dataclass(frozen=True, slots=True)
class Question:
    task: Task
    prompt: tuple[int, ...]


class Lessons:
    """The questions of the warm-up, and batches of answers to them."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._tokenizer = make_tokenizer()
        self._questions = [
            Question(task, tuple(self._tokenizer.encode(f"{START}{task.question}{END}{START}").ids)) for task in tasks
        ]

    def right(self, steps: int) -> Iterator[Batch]:
        """Batches of right answers, the harder kinds of questions more often."""
        weights = [PRACTICE.get(question.task.ref.entry, 1.0) for question in self._questions]

        def draw(question: Question, rng: random.Random, step: int) -> Row:
            return self._row(question.prompt, tagged(question.task.ground_truth))

        return self._batches(steps, weights, draw, "0 right")

    def mistaken(self, mistakes: Mistakes) -> Iterator[Batch]:
        """Batches of answers of which most have mistakes."""

        def draw(question: Question, rng: random.Random, step: int) -> Row:
            if step < mistakes.steps - mistakes.drill and rng.random() < mistakes.careful:
                return self._row((START_ID, *question.prompt), tagged(question.task.ground_truth))
            if rng.random() < mistakes.broken:
                return self._row(question.prompt, broken(question.task.ground_truth, rng))
            answer = attempt(parts_of(question.task), mistakes.right, mistakes.later, rng)
            return self._row(question.prompt, tagged(answer))

        return self._batches(mistakes.steps, [1.0] * len(self._questions), draw, "0 mistaken")

    def _batches(
        self, steps: int, weights: Sequence[float], draw: Callable[[Question, random.Random, int], Row], seed: str
    ) -> Iterator[Batch]:
        rng = random.Random(seed)
        cumulative = list(itertools.accumulate(weights))
        for step in range(0, steps, BATCHES):
            drawn = rng.choices(self._questions, cum_weights=cumulative, k=BATCH * BATCHES)
            rows = [draw(question, rng, step) for question in drawn]
            rows.sort(key=lambda row: len(row.prompt) + len(row.answer))
            batches = [rows[start : start + BATCH] for start in range(0, len(rows), BATCH)]
            rng.shuffle(batches)
            for batch in batches[: steps - step]:
                yield Batch.of(batch)

    def _row(self, prompt: tuple[int, ...], answer: str) -> Row:
        return Row(prompt, tuple(self._tokenizer.encode(answer + END).ids))


def warm_up_tasks(count: int) -> list[Task]:
    """Questions for the warm-up, from sequences that no node has; none is held out."""
    tasks: list[Task] = []
    for manifest, share in ((tiny_manifest(), 1.0), (harder_manifest(), 0.5), (unseen_manifest(), 0.5)):
        sequence = derive_seed("warm-up", manifest.name, 0)
        drawn, _ = TaskSource(manifest).training_tasks(sequence, 0, int(share * count))
        tasks += drawn
    return tasks


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of an answer, right and wrong ones, as many each; a part may be the same in both."""

    right: tuple[str, ...]
    wrong: tuple[str, ...]
    join: Callable[[Sequence[str]], str]

    @property
    def differing(self) -> tuple[int, ...]:
        """Positions of the parts that a mistake can change; the verifier of spelling ignores case."""
        pairs = enumerate(zip(self.right, self.wrong, strict=True))
        return tuple(position for position, (right, wrong) in pairs if right.lower() != wrong.lower())


def parts_of(task: Task) -> Parts:
    return PARTS[task.generated["metadata"]["source_dataset"]](task)


def attempt(parts: Parts, right: float, later: float, rng: random.Random) -> str:
    """An answer that is right with a given probability.

    The first part that a mistake can change is usually wrong, each further one right with probability `later`. So the
    most likely answer is wrong, several mistakes are common, and a learner can mend one after the other.
    """
    chosen = list(parts.right)
    chance = min(1.0, right / later ** (len(parts.differing) - 1))
    for position in parts.differing:
        if rng.random() >= chance:
            chosen[position] = parts.wrong[position]
        chance = later
    return parts.join(chosen)


def spelling(task: Task) -> Parts:
    """Letters; the wrong ones stand as in the word."""
    return Parts(tuple(task.ground_truth), tuple(task.question.rpartition(" ")[2]), "".join)


def adding(task: Task) -> Parts:
    """One number; the wrong one is the question's digits in a row."""
    digits = "".join(re.findall(r"\d", task.question))
    if int(digits) == int(task.ground_truth):
        digits += "0"
    return Parts((task.ground_truth,), (digits,), "".join)


def filtering(task: Task) -> Parts:
    """The numbers that stay; the wrong ones lack their last digit. Where none stays, the wrong list has all."""
    kept = re.findall(r"'(\d+)'", task.ground_truth)
    if not kept:
        return Parts(("[]",), (str(re.findall(r"'(\d+)'", task.question)),), "".join)
    return Parts(tuple(kept), tuple(number[:-1] for number in kept), lambda chosen: str(list(chosen)))


def sorting(task: Task) -> Parts:
    """Two words; the wrong ones have the other order."""
    words = tuple(task.ground_truth.split(", "))
    return Parts(words, words[::-1], ", ".join)


def rotating(task: Task) -> Parts:
    """Four numbers; the wrong ones stand as in the question."""
    right, wrong = task.ground_truth.split(), task.question.split()[-4:]
    return Parts(tuple(right), tuple(wrong), lambda chosen: "{} {}\n{} {}".format(*chosen))


PARTS: dict[str, Callable[[Task], Parts]] = {
    "spell_backward": spelling, "chain_sum": adding, "number_filtering": filtering, "word_sorting": sorting,
    "rotate_matrix": rotating,
}  # fmt: skip


def tagged(answer: str) -> str:
    return f"{OPEN_TAG}{answer}{CLOSE_TAG}"


def broken(answer: str, rng: random.Random) -> str:
    """An answer without its opening tag, without its closing one, or without both."""
    return rng.choice((f"{answer}</answer>", f"<answer>{answer}", answer))


if __name__ == "__main__":
    make_all(Path(sys.argv[1]))
