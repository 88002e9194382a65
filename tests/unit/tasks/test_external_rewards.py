"""The reward of another node's answer is that of the text that is trained on, for every text that it may write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sapo_edge.backends.common.packing import encode_group
from sapo_edge.policy import STOP_TEXT, ExternalRule
from sapo_edge.rollout import Answer, Rollout, Task
from sapo_edge.sapo import training_group
from sapo_edge.swarm.judging.external import ExternalScorer
from sapo_edge.tasks.manifest import load_manifest
from sapo_edge.tasks.readings import OPEN_TAG
from sapo_edge.tasks.source import TaskSource
from tests.models import SHAPES, decode_ids, opening, question, write_model
from tests.tag_soup import answers

pytest.importorskip("torch")

from sapo_edge.backends.pytorch.policy import TorchPolicy

SOURCE = TaskSource(load_manifest("arithmetic"))
TASK: Task = SOURCE.training_tasks(3, 0, 1)[0][0]
RIGHT = TASK.ground_truth
# The same task, read by its last number.
IN_WORDS = TaskSource(
    replace(SOURCE.manifest, tasks=tuple(replace(entry, reading="number") for entry in SOURCE.manifest.tasks))
)
TEXTS = answers((RIGHT, f"<answer>{RIGHT}</answer>", f"<answer>{RIGHT}", f"<answer>{RIGHT}1</answer>"))
LIMITS = st.one_of(st.integers(1, 40), st.integers(41, 9000))
Received = Callable[[str, bool, int], tuple[float, str]]

for_every_text = settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchPolicy]:
    path: Path = write_model(tmp_path_factory.mktemp("model") / "llama.gguf", SHAPES["llama"])
    policy = TorchPolicy(opening(path, trainable=False))
    yield policy
    policy.close()


@pytest.fixture(scope="module", params=[SOURCE, IN_WORDS], ids=["tags", "number"])
def source(request: pytest.FixtureRequest) -> TaskSource:
    assert isinstance(request.param, TaskSource)
    return request.param


@pytest.fixture(scope="module")
def received(policy: TorchPolicy, source: TaskSource) -> Received:
    """(text, ended, max_tokens) -> the reward of another node's answer, and the text of the ids that are trained on."""

    def receive(text: str, ended: bool, limit: int) -> tuple[float, str]:
        # A second answer gives the group an advantage whatever the first one earns.
        other = Answer(f"<answer>{RIGHT if source.score(TASK, text) != 1.0 else 'x'}</answer>", True)
        rollout = Rollout(TASK.ref, TASK.question, RIGHT, (Answer(text, ended), other), "other", 1, 1, 1.0)
        scorer = ExternalScorer(source, lambda text, ended: policy.cut(text, ended, limit))
        scored = scorer(rollout, 8)
        assert scored is not None
        group = training_group(scorer.cut(scored), question, ExternalRule())
        trained = encode_group(policy.vocabulary, replace(group, answers=group.answers[:1]), limit).answers
        ids = trained[0].token_ids if trained else ()
        assert len(ids) <= limit
        return scored.rewards[0], decode_ids(ids).decode(errors="replace")

    return receive


@for_every_text
@example(f"<answer>x</answer>\n<answer>{RIGHT}</answer>", True, 64)
@example(f"<answer>{RIGHT}</answer>\n<answer>x</answer>", True, 64)
@example(f"</answer><answer>{RIGHT}</answer>", True, 64)
@example("a" * 5 + f"<answer>{RIGHT}</answer>", True, 22)
@given(TEXTS, st.booleans(), LIMITS)
def test_the_reward_is_that_of_what_is_trained_on_and_an_inversion_is_impossible(
    source: TaskSource, received: Received, text: str, ended: bool, limit: int
) -> None:
    """An own answer has the text at which the sampler stopped, and is scored as it is."""
    reward, trained = received(text, ended, limit)
    assert reward == source.score(TASK, trained)
    assert received(trained, ended, limit) == (reward, trained)
    if reward == 1.0:
        assert trained.count(STOP_TEXT) <= 1, "another pair of tags than the right one"
        assert source.score(TASK, trained[trained.rindex(OPEN_TAG) :] if source is SOURCE else trained) == 1.0


@for_every_text
@given(TEXTS, TEXTS, st.booleans())
def test_what_fits_earns_what_its_author_says_and_nothing_after_the_first_close_counts(
    source: TaskSource, received: Received, text: str, after: str, ended: bool
) -> None:
    assert received(text, ended, 9000)[0] == source.score(TASK, text)
    closed = text + STOP_TEXT
    if len((closed + after).encode()) <= 8192:
        assert received(closed + after, ended, 9000) == received(closed, ended, 9000)
