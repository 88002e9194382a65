"""The tiny model: same bytes from the same recipe, no held-out question in its warm-up, mistakes that are mistakes."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from sapo_edge.backends.model.hf_directory import HfDirectory
from sapo_edge.backends.model.vocabularies import HfVocabulary
from sapo_edge.backends.pytorch.policy import TorchPolicy
from sapo_edge.experiment import tiny
from sapo_edge.experiment.tiny_tasks import attempt, broken, harder_manifest, parts_of, tiny_manifest, unseen_manifest
from sapo_edge.experiment.tiny_warmup import Mistakes, Network, warm_up_tasks
from sapo_edge.policy import LoraSettings
from sapo_edge.rollout import Task
from sapo_edge.tasks.answers import extract_answer
from sapo_edge.tasks.manifest import Manifest
from sapo_edge.tasks.questions import SPLIT_QUESTIONS
from sapo_edge.tasks.source import TaskSource
from tests.models import opening

NETWORK = Network(width=16, heads=2, inner=32, questions=120, steps=6, batch=16)
SHORT = tiny.Recipe(NETWORK, Mistakes(steps=3))
MANIFESTS = (tiny_manifest(), harder_manifest(), unseen_manifest())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_model(tmp_path_factory.mktemp("tiny") / "model", SHORT)


def some_tasks(manifest: Manifest, count: int = 400) -> tuple[Task, ...]:
    return TaskSource(manifest).training_tasks(5, 0, count)[0]


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}


def test_the_same_recipe_gives_the_same_bytes(model: Path, tmp_path: Path) -> None:
    again = tiny.make_model(tmp_path / "model", SHORT)

    assert contents(again) == contents(model)


def test_another_seed_gives_another_model(model: Path, tmp_path: Path) -> None:
    other = tiny.make_model(tmp_path / "model", replace(SHORT, network=replace(NETWORK, seed=1)))

    assert (other / "model.safetensors").read_bytes() != (model / "model.safetensors").read_bytes()


def test_a_complete_model_is_left_alone_and_one_of_another_recipe_made_again(tmp_path: Path) -> None:
    words: list[str] = []
    path = tiny.make_model(tmp_path / "model", SHORT, words.append)
    made = (path / "model.safetensors").stat().st_mtime_ns
    tiny.make_model(path, SHORT, words.append)
    assert (path / "model.safetensors").stat().st_mtime_ns == made and len(words) == 1

    before = (path / "model.safetensors").read_bytes()
    tiny.make_model(path, replace(SHORT, mistakes=Mistakes(right=0.9, steps=3)), words.append)

    assert (path / "model.safetensors").read_bytes() != before and len(words) == 2


def test_what_kinds_have_in_common_is_learnt_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = tiny.make_model(tmp_path / "first", SHORT)
    other = tiny.make_model(tmp_path / "other", replace(SHORT, mistakes=Mistakes(right=0.9, steps=3)))
    shutil.rmtree(first)

    # The weights that were read give what the weights that were learnt gave.
    again = tiny.make_model(tmp_path / "again", SHORT)
    alone = tiny.make_model(tmp_path / "elsewhere" / "again", SHORT)

    assert len(list(tmp_path.glob("tiny-knowing-*"))) == 1
    assert contents(again) == contents(alone) != contents(other)


def test_an_interrupted_warm_up_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tiny, "_save", fail)
    with pytest.raises(KeyboardInterrupt):
        tiny.make_model(tmp_path / "model", SHORT)

    assert list(tmp_path.iterdir()) == []


def test_the_torch_backend_samples_from_it(model: Path) -> None:
    policy = TorchPolicy(opening(model, lora=LoraSettings(8, 16.0)), device="cpu")
    manifest = tiny_manifest()
    task = some_tasks(manifest, 1)[0]

    (samples,) = policy.generate([manifest.prompt_for(task.question)], 4, manifest.max_tokens, 1.0, 0)

    assert len(samples) == 4 and all(1 <= len(sample.token_ids) <= manifest.max_tokens for sample in samples)


def test_a_text_is_its_tokens_bytes(model: Path) -> None:
    vocabulary = HfVocabulary(HfDirectory(model))
    text = "Keep all numbers larger than ünïque 7\n<answer>['12', '3']</answer> \N{SNOWMAN}"

    ids = vocabulary.tokenize(text, special=False)

    assert b"".join(vocabulary.piece(token) for token in ids) == text.encode()
    assert len(vocabulary.tokenize("<answer></answer>", special=False)) == 2


def test_text_can_not_forge_the_end_of_a_turn(model: Path) -> None:
    vocabulary = HfVocabulary(HfDirectory(model))

    assert not any(vocabulary.ends(token) for token in vocabulary.tokenize("<|im_end|>", special=False))


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda manifest: manifest.name)
def test_questions_are_short_and_right_answers_fit(manifest: Manifest, model: Path) -> None:
    vocabulary = HfVocabulary(HfDirectory(model))

    for task in some_tasks(manifest):
        assert len(vocabulary.encode_prompt(manifest.prompt_for(task.question))) <= 25
        answer = f"<answer>{task.ground_truth}</answer>"
        assert len(vocabulary.tokenize(answer, special=False)) <= manifest.max_tokens


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda manifest: manifest.name)
def test_right_parts_are_the_right_answer_and_wrong_ones_are_wrong(manifest: Manifest) -> None:
    source = TaskSource(manifest)

    for task in some_tasks(manifest):
        parts = parts_of(task)
        assert parts.join(parts.right) == task.ground_truth
        if parts.differing:
            assert source.score(task, f"<answer>{parts.join(parts.wrong)}</answer>") == 0.0


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda manifest: manifest.name)
def test_attempts_are_right_as_often_as_they_should_be(manifest: Manifest) -> None:
    rng = random.Random(0)
    tasks = [task for task in some_tasks(manifest) if parts_of(task).differing]

    right = sum(attempt(parts_of(task), 0.1, 0.7, rng) == task.ground_truth for task in tasks for _ in range(20))

    assert right / (20 * len(tasks)) == pytest.approx(0.1, abs=0.015)


@pytest.mark.parametrize("manifest", MANIFESTS[:2], ids=lambda manifest: manifest.name)
def test_each_held_out_set_is_full(manifest: Manifest) -> None:
    source = TaskSource(manifest)

    assert len(source.held_out("validation", SPLIT_QUESTIONS)) == SPLIT_QUESTIONS
    assert len(source.held_out("test", SPLIT_QUESTIONS)) == SPLIT_QUESTIONS


def test_no_held_out_question_is_in_the_warm_up() -> None:
    questions = {task.question for task in warm_up_tasks(2000, 0)}

    assert len(questions) > 3000
    for manifest in MANIFESTS:
        source = TaskSource(manifest)
        held_out = source.held_out("validation", SPLIT_QUESTIONS) + source.held_out("test", SPLIT_QUESTIONS)
        assert not questions & {task.question for task in held_out}


def test_a_broken_answer_earns_nothing() -> None:
    rng = random.Random(0)

    assert all(extract_answer(broken("7", rng)) is None for _ in range(50))
