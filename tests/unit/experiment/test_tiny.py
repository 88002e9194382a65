"""The tiny models: those behind the tables, no held-out question in their warm-up, mistakes that are mistakes."""

from __future__ import annotations

import hashlib
import os
import random
from pathlib import Path

import pytest

from sapo_edge.backends.model.hf_directory import HfDirectory
from sapo_edge.backends.model.vocabularies import HfVocabulary
from sapo_edge.backends.pytorch.policy import TorchPolicy
from sapo_edge.experiment.scene import fix_instructions, harder_manifest, tiny_manifest, tiny_model, unseen_manifest
from sapo_edge.policy import LoraSettings
from sapo_edge.rollout import Task
from sapo_edge.tasks.manifest import Manifest
from sapo_edge.tasks.questions import SPLIT_QUESTIONS
from sapo_edge.tasks.readings import extract_answer
from sapo_edge.tasks.source import TaskSource
from tests.benchmarks import tiny_models
from tests.models import opening

MANIFESTS = (tiny_manifest(), harder_manifest(), unseen_manifest())
WEIGHTS = {
    "mixed": "72cc80e2659432503baaa1760233f4096e35f843406d1a1ccbef98fefef67177",
    "hard": "499739db3c59ce10a4abef2ed8e8538dbfa7a18fa509e7ce9bc780227718c558",
    "small": "ea15d9b37c4c17e9481dc73f1249cdee00b7bf7222a8361dca0038c45fdbf6f0",
    "trained": "fa05e0f6aa0ea6e4f4afc4dfcd60a81a8805d5176f0d6c54f4fb0a9c70927f61",
}
"""SHA-256 of those with which the tables of docs/results.md were made."""

each_manifest = pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda manifest: manifest.name)


@pytest.mark.parametrize("flags", ["fpu avx avx2 avx512f", "fpu avx", None])
def test_sums_are_made_without_avx512_where_they_can_be(monkeypatch: pytest.MonkeyPatch, flags: str | None) -> None:
    def read(path: Path) -> str:
        assert path == Path("/proc/cpuinfo")
        if flags is None:
            raise FileNotFoundError
        return f"processor : 0\nflags : {flags}\n"

    monkeypatch.setattr(Path, "read_text", read)
    monkeypatch.setattr(os, "environ", {})
    fix_instructions()
    assert os.environ.get("ATEN_CPU_CAPABILITY") == ("avx2" if flags and "avx2" in flags else None)


def some_tasks(manifest: Manifest, count: int = 400) -> tuple[Task, ...]:
    return TaskSource(manifest).training_tasks(5, 0, count)[0]


def vocabulary() -> HfVocabulary:
    return HfVocabulary(HfDirectory(tiny_model("base")))


@pytest.mark.parametrize("kind", WEIGHTS)
def test_the_models_are_those_behind_the_tables(kind: str, tmp_path: Path) -> None:
    (network,) = (network for network, kinds in tiny_models.KINDS.items() if kind in kinds)
    tiny_models.write(tiny_models.new_model(network), tiny_models.make_tokenizer(), tmp_path / kind)
    files = {path.name: path.read_bytes() for path in tiny_model(kind).iterdir()}
    assert hashlib.sha256(files["model.safetensors"]).hexdigest() == WEIGHTS[kind]
    # What their maker writes beside the weights.
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / kind / name).read_bytes() == files[name]


def test_the_torch_backend_samples_from_it() -> None:
    policy = TorchPolicy(opening(tiny_model("base"), lora=LoraSettings(8, 16.0)), device="cpu")
    manifest = tiny_manifest()
    task = some_tasks(manifest, 1)[0]
    (samples,) = policy.generate([manifest.prompt_for(task.question)], 4, manifest.max_tokens, 1.0, 0)
    assert len(samples) == 4 and all(1 <= len(sample.token_ids) <= manifest.max_tokens for sample in samples)


def test_a_text_is_its_tokens_bytes_and_cannot_forge_the_end_of_a_turn() -> None:
    words = vocabulary()
    text = "Keep all numbers larger than ünïque 7\n<answer>['12', '3']</answer> \N{SNOWMAN}"
    assert b"".join(words.piece(token) for token in words.tokenize(text, special=False)) == text.encode()
    assert len(words.tokenize("<answer></answer>", special=False)) == 2
    assert not any(words.ends(token) for token in words.tokenize("<|im_end|>", special=False))


@each_manifest
def test_questions_are_short_and_right_answers_fit(manifest: Manifest) -> None:
    words = vocabulary()
    for task in some_tasks(manifest):
        assert len(words.encode_prompt(manifest.prompt_for(task.question))) <= 25
        assert len(words.tokenize(tiny_models.tagged(task.ground_truth), special=False)) <= manifest.max_tokens


@each_manifest
def test_mistakes_are_wrong_and_as_frequent_as_they_should_be(manifest: Manifest) -> None:
    source, rng = TaskSource(manifest), random.Random(0)
    right = attempts = 0
    for task in some_tasks(manifest):
        parts = tiny_models.parts_of(task)
        assert parts.join(parts.right) == task.ground_truth
        assert extract_answer(tiny_models.broken(task.ground_truth, rng)) is None
        if parts.differing:
            assert source.score(task, tiny_models.tagged(parts.join(parts.wrong))) == 0.0
            right += sum(tiny_models.attempt(parts, 0.1, 0.7, rng) == task.ground_truth for _ in range(20))
            attempts += 20
    assert right / attempts == pytest.approx(0.1, abs=0.015)


def test_held_out_sets_are_full_and_not_in_the_warm_up() -> None:
    questions = {task.question for task in tiny_models.warm_up_tasks(2000)}
    assert len(questions) > 3000
    for manifest in MANIFESTS:
        source = TaskSource(manifest)
        for split in ("validation", "test"):
            held_out = source.held_out(split, SPLIT_QUESTIONS)
            assert len(held_out) == SPLIT_QUESTIONS or manifest.name == "tiny-unseen"
            assert not questions & {task.question for task in held_out}
