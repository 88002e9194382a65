"""A head start: what is learned before the first round, when, and that its gradient is that of cross-entropy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sapo_edge import events
from sapo_edge.backends.common.loss import token_losses, trust_in_answer
from sapo_edge.config.settings import Settings
from sapo_edge.errors import ManifestError
from sapo_edge.node.head_start import HeadStart, _supervised
from sapo_edge.node.rounds import Node
from sapo_edge.policy import CallHandle, UpdateSettings
from sapo_edge.state.paths import Paths
from sapo_edge.state.store import Store
from sapo_edge.tasks.checks import Number, Pattern
from sapo_edge.tasks.manifest import Manifest, TaskEntry
from sapo_edge.tasks.questions import OwnQuestion
from sapo_edge.tasks.source import TaskSource
from sapo_edge.transport import Solo
from tests.fakes import FakePolicy

SETTINGS = Settings(own=4, external=0, answers=2, rounds=2, held_out=4, evaluate_every=0, seed=5, network="solo")
OWN = tuple(OwnQuestion(f"{number} + 1?", str(number + 1), Number()) for number in range(20))


def source(*questions: OwnQuestion, max_tokens: int = 64) -> TaskSource:
    return TaskSource(Manifest("own", (TaskEntry("mine", questions=questions),), max_tokens=max_tokens))


def run(home: Path, settings: Settings, tasks: TaskSource, policy: FakePolicy) -> list[events.Event]:
    emitted: list[events.Event] = []
    with Store(Paths.default(home)) as store:
        Node(settings, tasks, store, policy, Solo(), emitted.append).run()
    return emitted


def notices(emitted: list[events.Event]) -> list[str]:
    found = [event.text for event in emitted if isinstance(event, events.Notice)]
    return [text for text in found if "head start" in text]


def test_right_answers_of_training_questions_are_learned_first(tmp_path: Path) -> None:
    tasks, policy = source(*OWN), FakePolicy()
    emitted = run(tmp_path, replace(SETTINGS, head_start=3), tasks, policy)
    before = policy.log.index("generate")
    assert policy.log[:before] == ["evaluate", "update", "update", "update", "evaluate"]
    learned = [group for groups in policy.updates[:3] for group in groups]
    assert len({group.prompt for group in learned}) == 12, "a pass over own questions asks each once"
    for group in learned:
        (answer,) = group.answers
        question = group.prompt[-1].content
        number = int(question.split()[0])
        assert (answer.text, answer.ended, answer.advantage) == (f"<answer>{number + 1}</answer>", True, 1.0)
        assert group.external and not tasks.is_held_out(question)
    begun, ended = notices(emitted)
    assert "3 updates on the right answers of training questions" in begun
    assert "learned from 12 questions; held-out validation 0." in ended and "-> 0." in ended


def test_without_it_nothing_changes_and_rounds_ask_the_same_questions(tmp_path: Path) -> None:
    plain, ahead = FakePolicy(), FakePolicy()
    emitted = run(tmp_path / "plain", SETTINGS, source(*OWN), plain)
    run(tmp_path / "ahead", replace(SETTINGS, head_start=2), source(*OWN), ahead)
    assert not notices(emitted) and plain.log[:2] == ["evaluate", "generate"]
    assert (plain.prompts, plain.seeds) == (ahead.prompts, ahead.seeds)


def test_it_is_made_once_and_again_if_no_checkpoint_has_it(tmp_path: Path) -> None:
    settings = replace(SETTINGS, head_start=2)
    stopped, emitted = FakePolicy(), list[events.Event]()
    with Store(Paths.default(tmp_path)) as store:
        node = Node(settings, source(*OWN), store, stopped, Solo(), emitted.append)
        stopped.before_update = lambda policy: node.stop.after_round()
        node.run()
    assert stopped.log == ["evaluate", "update"], "it stops between two updates"
    assert notices(emitted)[1:] == ["head start: stopped; the next start begins it again"]
    again = FakePolicy()
    assert len(notices(run(tmp_path, settings, source(*OWN), again))) == 2
    assert again.updates[0] == stopped.updates[0]
    resumed = FakePolicy()
    assert not notices(run(tmp_path, replace(settings, rounds=3), source(*OWN), resumed))
    late = run(tmp_path, replace(settings, head_start=5), source(*OWN), FakePolicy())
    (warning,) = (event.text for event in late if isinstance(event, events.Notice) and event.level == "warning")
    assert "head_start = 5 has no effect" in warning and "`sapo runs new`" in warning
    assert not notices(run(tmp_path / "generator", replace(settings, role="generator"), source(*OWN), FakePolicy()))


def test_answers_that_are_wrong_or_too_long_are_left_out() -> None:
    wrong = tuple(OwnQuestion(f"Date {number}?", "x", Pattern(r"\d+"), "train") for number in range(4))
    long = tuple(OwnQuestion(f"Long {number}?", "y" * 80, split="train") for number in range(4))
    for questions, learned in (((*wrong, *long, *OWN[:4]), {"0 + 1?", "1 + 1?", "2 + 1?", "3 + 1?"}), (wrong, set())):
        policy = FakePolicy()
        tasks = source(*(replace(question, split="train") for question in questions))
        head_start = HeadStart(policy, tasks, 1, len(questions), UpdateSettings(max_tokens=64))
        if learned:
            assert head_start.run(1, CallHandle, lambda: True) == 4
            assert {group.prompt[-1].content for group in policy.updates[0]} == learned
        else:
            with pytest.raises(ManifestError, match="no right answers to learn"):
                head_start.run(1, CallHandle, lambda: True)


def test_the_gradient_is_that_of_cross_entropy() -> None:
    settings = _supervised(UpdateSettings(epochs=3, kl_coefficient=0.1))
    logprobs = -np.random.default_rng(0).exponential(8.0, 200)
    advantages, unknown = np.ones(200), np.full(200, np.nan)
    tails, rule = np.exp(logprobs).tolist(), settings.external_rule
    trust = np.array(trust_in_answer(logprobs.tolist(), tails, 1.0, float("nan"), rule)[0])
    _, slopes, clipped = token_losses(
        np, logprobs, logprobs, unknown, advantages, trust, np.ones(200), None, settings
    )  # fmt: skip
    assert settings.epochs == 1 and not clipped.any()
    assert np.array_equal(slopes, np.full(200, -1.0)), "the derivative of minus a log-probability"
