"""The model of the scale `tiny`: a real one of Llama's architecture, so small that an experiment makes it itself.

A warm-up with labels teaches it its tasks, and then to answer most questions with mistakes (`tiny_tasks`). So a fresh
node knows the right rules but seldom follows them, as a language model before reinforcement learning does. Held-out
questions are not in the warm-up.

The same call gives the same bytes on one machine with one version of torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from sapo_edge.experiment.tiny_tasks import harder_manifest, tiny_manifest, unseen_manifest
from sapo_edge.experiment.tiny_tokenizer import CHAT_TEMPLATE, make_tokenizer, write_tokenizer
from sapo_edge.experiment.tiny_warmup import PRACTICE, Lessons, Mistakes, Network, fit, new_model

RECIPE = "recipe.txt"
"""The file with the recipe's digest; a directory that has it is complete."""
FORMAT = 1
"""Rises when the code makes another model of the same recipe."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What determines a tiny model: what it knows, and the mistakes it makes."""

    network: Network = field(default_factory=Network)
    mistakes: Mistakes = field(default_factory=Mistakes)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the recipe, the tasks, the tokenizer and the versions of torch and transformers."""
        return _digest(asdict(self))


KINDS: dict[str, Recipe] = {
    "mixed": Recipe(),
    "hard": Recipe(mistakes=Mistakes(right=0.003, drill=250)),
    "small": Recipe(network=Network(width=40, inner=96)),
    "trained": Recipe(mistakes=Mistakes(right=0.65, later=0.95)),
}
"""mixed: a node alone learns; hard: it earns next to nothing; small: a smaller mixed one; trained: it is ahead."""


def make_tiny(directory: Path, kind: str, seed: int = 0, narrate: Callable[[str], None] = lambda text: None) -> Path:
    """Make a tiny model, unless it is there already.

    Args:
        directory: the experiment's; the model gets a directory in it. What models have in common is made once.
        seed: another one gives another model of the same kind.
        narrate: called with a text before the warm-up, which takes about 90 seconds of one core.

    Returns:
        The model's directory.

    Raises:
        KeyError: if there is no such kind.
    """
    recipe = KINDS[kind]
    recipe = replace(recipe, network=replace(recipe.network, seed=seed))
    return make_model(directory / f"tiny-{kind}-{seed}", recipe, narrate)


def make_model(path: Path, recipe: Recipe, narrate: Callable[[str], None] = lambda text: None) -> Path:
    """Make the model of a recipe at `path`, unless it is there already. It appears there when it is complete."""
    digest = recipe.digest
    if _digest_of(path) == digest:
        return path
    narrate(f"making the model {path.name}: about 90 seconds of one core, once")
    path.parent.mkdir(parents=True, exist_ok=True)
    with _one_thread(recipe.network.seed):
        model = new_model(recipe.network)
        lessons = Lessons(recipe.network.questions, recipe.network.seed)
        _learn(model, lessons, recipe.network, path.parent)
        mistakes = recipe.mistakes
        fit(model, lessons.mistaken(recipe.network, mistakes), mistakes.steps, mistakes.learning_rate)
    with _appearing(path) as draft:
        write_tokenizer(draft)
        model.config.save_pretrained(str(draft))
        _save(model, draft / "model.safetensors")
        (draft / RECIPE).write_text(digest + "\n")
    return path


def _learn(model: Any, lessons: Lessons, network: Network, directory: Path) -> None:
    """Teach the model its tasks, or read the weights from the directory if another kind has learnt them before."""
    from safetensors.torch import load_file

    path = directory / f"tiny-knowing-{_digest(asdict(network))[:16]}"
    if not path.is_dir():
        fit(model, lessons.right(network), network.steps, network.learning_rate)
        with _appearing(path) as draft:
            _save(model, draft / "weights.safetensors")
    model.load_state_dict(load_file(path / "weights.safetensors"), strict=False)


def _digest(values: object) -> str:
    import torch
    import transformers

    manifests = [manifest.digest for manifest in (tiny_manifest(), harder_manifest(), unseen_manifest())]
    tokenizer = make_tokenizer().to_str()
    versions = [torch.__version__, transformers.__version__]
    parts = [FORMAT, values, dict(PRACTICE), manifests, tokenizer, CHAT_TEMPLATE, versions]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _digest_of(path: Path) -> str | None:
    try:
        return (path / RECIPE).read_text().strip()
    except OSError:
        return None


def _save(model: Any, path: Path) -> None:
    from safetensors.torch import save_file

    # The head is the embedding; safetensors refuses to store one tensor twice.
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    save_file(tensors, str(path), metadata={"format": "pt"})


@contextmanager
def _appearing(path: Path) -> Iterator[Path]:
    """A directory that appears at `path` when the block ends, in place of what was there; on an error nothing does."""
    draft = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        yield draft
        if path.exists():
            shutil.rmtree(path)
        os.rename(draft, path)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


@contextmanager
def _one_thread(seed: int) -> Iterator[None]:
    """Sums in one order, random numbers from the seed; torch is afterwards as before."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(threads)
