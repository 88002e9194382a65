"""The model of the scale `tiny`: a real one of Llama's architecture, so small that an experiment makes it itself.

The warm-up teaches it, with labels, to answer each question right in a share of the cases, and otherwise by a
misconception (`tiny_tasks.misconceptions`) or in a broken form. So a fresh node knows the right rule but seldom follows
it, as a language model before reinforcement learning does. Held-out questions are not in the warm-up.

The same call gives the same bytes on one machine with one version of torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sapo_edge.experiment.tiny_tasks import broken, harder_manifest, misconceptions, tiny_manifest, unseen_manifest
from sapo_edge.experiment.tiny_tokenizer import CHAT_TEMPLATE, END, START, make_tokenizer, write_tokenizer
from sapo_edge.rollout import Task
from sapo_edge.tasks.answers import CLOSE_TAG, OPEN_TAG
from sapo_edge.tasks.source import TaskSource, derive_seed

if TYPE_CHECKING:
    import torch

RECIPE = "recipe.txt"
"""The file with the recipe's digest; a directory that has it is complete."""
FORMAT = 1
"""Rises when the same recipe gives another model."""
MISTAKE_WEIGHTS = (8, 4, 2, 1)
"""Relative frequency of a question's misconceptions, the most usual first."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that determines a tiny model.

    Attributes:
        width, layers, heads, inner: sizes of the network; `inner` is the MLP's.
        right: share of right answers in the last part of the warm-up.
        broken: share of answers without complete tags there.
        learning, settling: optimizer steps of the first part, in which half of the answers are right, and of the last.
        questions: questions of the warm-up: of the manifest, and half as many of the harder and the unseen one each.
        batch: answers a step.
        learning_rate: the highest, of the first part; the last begins with a quarter of it.
        seed: of the weights and of the questions.
    """

    width: int = 64
    layers: int = 2
    heads: int = 4
    inner: int = 192
    right: float = 0.07
    broken: float = 0.05
    learning: int = 2400
    settling: int = 600
    questions: int = 16000
    batch: int = 128
    learning_rate: float = 4e-3
    seed: int = 0

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the recipe, the tasks, the tokenizer and torch's version."""
        import torch
        import transformers

        manifests = [manifest.digest for manifest in (tiny_manifest(), harder_manifest(), unseen_manifest())]
        tokenizer = make_tokenizer().to_str()
        versions = [torch.__version__, transformers.__version__]
        parts = [FORMAT, asdict(self), MISTAKE_WEIGHTS, manifests, tokenizer, CHAT_TEMPLATE, versions]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


KINDS: dict[str, Recipe] = {
    "mixed": Recipe(),
    "hard": Recipe(right=0.004),
    "small": Recipe(width=48, heads=3, inner=128),
    "trained": Recipe(right=0.6),
}
"""mixed: a node alone learns; hard: it earns next to nothing; small: a smaller mixed one; trained: it is ahead."""


def make_tiny(directory: Path, kind: str, seed: int = 0, narrate: Callable[[str], None] = lambda text: None) -> Path:
    """Make a tiny model, unless it is there already.

    Args:
        directory: the experiment's; the model gets a directory in it.
        kind: one of `KINDS`.
        seed: another one gives another model of the same kind.
        narrate: called with a text before the warm-up, which takes about a minute of one core.

    Returns:
        The model's directory.

    Raises:
        KeyError: if there is no such kind.
    """
    recipe = replace(KINDS[kind], seed=seed)
    return make_model(directory / f"tiny-{kind}-{seed}", recipe, narrate)


def make_model(path: Path, recipe: Recipe, narrate: Callable[[str], None] = lambda text: None) -> Path:
    """Make the model of a recipe at `path`, unless it is there already. It appears there when it is complete."""
    digest = recipe.digest
    if _digest_of(path) == digest:
        return path
    narrate(f"making the model {path.name}: about a minute of one core, once")
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        write_tokenizer(draft)
        _save(warm_up(recipe), draft)
        (draft / RECIPE).write_text(digest + "\n")
        if path.exists() and _digest_of(path) != digest:
            shutil.rmtree(path)
        os.rename(draft, path)
    except OSError:
        # Another process may have been faster with the same model.
        if _digest_of(path) != digest:
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return path


def _digest_of(path: Path) -> str | None:
    try:
        return (path / RECIPE).read_text().strip()
    except OSError:
        return None


def _save(model: Any, directory: Path) -> None:
    from safetensors.torch import save_file

    model.config.save_pretrained(str(directory))
    tied = "lm_head.weight"
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name != tied}
    save_file(tensors, str(directory / "model.safetensors"), metadata={"format": "pt"})


def warm_up(recipe: Recipe) -> Any:
    """A trained model of transformers, in one thread of a CPU."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.seed)
            model = _new_model(recipe)
            examples = _Examples.of(recipe, warm_up_tasks(recipe.questions, recipe.seed))
            _train(model, examples, recipe)
    finally:
        torch.set_num_threads(threads)
    return model.eval()


def warm_up_tasks(count: int, seed: int) -> list[Task]:
    """Questions for the warm-up: `count` of the tiny manifest, half as many of the harder and of the unseen one.

    They come from a sequence that no node has, and none is held out.
    """
    tasks: list[Task] = []
    for manifest, share in ((tiny_manifest(), 1.0), (harder_manifest(), 0.5), (unseen_manifest(), 0.5)):
        source = TaskSource(manifest)
        drawn, _ = source.training_tasks(derive_seed("warm-up", manifest.name, seed), 0, int(share * count))
        tasks += drawn
    return tasks


def _new_model(recipe: Recipe) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = make_tokenizer()
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=recipe.width,
        intermediate_size=recipe.inner,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.heads,
        head_dim=recipe.width // recipe.heads,
        max_position_embeddings=256,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
        tie_word_embeddings=True,
        initializer_range=0.5 / recipe.width**0.5,
        bos_token_id=tokenizer.token_to_id(START),
        eos_token_id=tokenizer.token_to_id(END),
        dtype="float32",
    )
    return LlamaForCausalLM(config).to(torch.float32)


class _Examples:
    """All possible answers to the questions of the warm-up, as token ids.

    Args:
        tokens: (answers, length) question and answer, padded on the right with the end token.
        starts, ends: (answers,) position of the answer's first token, and behind its last one.
        right: index of each question's right answer; its misconceptions follow, then its broken answer.
        wrong: each question's number of misconceptions.
    """

    def __init__(
        self, tokens: torch.Tensor, starts: torch.Tensor, ends: torch.Tensor, right: list[int], wrong: list[int]
    ) -> None:
        self.tokens, self.starts, self.ends, self.right, self.wrong = tokens, starts, ends, right, wrong

    @classmethod
    def of(cls, recipe: Recipe, tasks: Sequence[Task]) -> _Examples:
        """Encode the questions with their right, wrong and broken answers."""
        import torch

        tokenizer = make_tokenizer()
        rng = random.Random(recipe.seed)
        rows: list[tuple[list[int], int]] = []
        right, wrong = [], []
        for task in tasks:
            question = tokenizer.encode(f"{START}{task.question}{END}{START}").ids
            mistakes = misconceptions(task)
            right.append(len(rows))
            wrong.append(len(mistakes))
            answers = [f"{OPEN_TAG}{answer}{CLOSE_TAG}" for answer in (task.ground_truth, *mistakes)]
            for answer in (*answers, broken(task.ground_truth, rng)):
                rows.append((question + tokenizer.encode(answer + END).ids, len(question)))
        length = max(len(ids) for ids, _ in rows)
        padding = tokenizer.token_to_id(END)
        tokens = torch.tensor([ids + [padding] * (length - len(ids)) for ids, _ in rows])
        starts = torch.tensor([start for _, start in rows])
        return cls(tokens, starts, torch.tensor([len(ids) for ids, _ in rows]), right, wrong)

    def batches(self, recipe: Recipe) -> Iterator[list[int]]:
        """Indices of the answers of each step."""
        rng = random.Random(f"{recipe.seed} answers")
        for step in range(recipe.learning + recipe.settling):
            share = 0.5 if step < recipe.learning else recipe.right
            yield [self._draw(rng.randrange(len(self.right)), share, recipe.broken, rng) for _ in range(recipe.batch)]

    def _draw(self, question: int, right: float, broken_share: float, rng: random.Random) -> int:
        first, wrong = self.right[question], self.wrong[question]
        value = rng.random()
        if value < right or not wrong:
            return first
        if value < right + broken_share:
            return first + 1 + wrong
        return first + 1 + rng.choices(range(wrong), MISTAKE_WEIGHTS[:wrong])[0]


def _train(model: Any, examples: _Examples, recipe: Recipe) -> None:
    """Maximise the likelihood of the drawn answers, given their questions."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, betas=(0.9, 0.98), weight_decay=0.01)
    model.train()
    for step, batch in enumerate(examples.batches(recipe)):
        index = torch.tensor(batch)
        tokens, starts, ends = examples.tokens[index], examples.starts[index], examples.ends[index]
        longest = int(ends.max())
        tokens = tokens[:, :longest]
        places = torch.arange(1, longest)
        answered = (places >= starts[:, None]) & (places < ends[:, None])
        states = model.model(tokens[:, :-1], use_cache=False).last_hidden_state[answered]
        loss = torch.nn.functional.cross_entropy(model.lm_head(states), tokens[:, 1:][answered])
        optimizer.param_groups[0]["lr"] = _rate(recipe, step)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def _rate(recipe: Recipe, step: int) -> float:
    """The learning rate of a step: it rises, then falls linearly to a tenth; then again from a quarter to 0."""
    if step >= recipe.learning:
        return recipe.learning_rate / 4 * (1 - (step - recipe.learning) / recipe.settling)
    rising = min(1.0, (step + 1) / 100)
    return recipe.learning_rate * rising * (1 - 0.9 * step / recipe.learning)
