"""A real collapse, of a tiny model that learns requests for a home at far too high a rate."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from sapo_edge.backends.pytorch.place import CPU
from sapo_edge.backends.pytorch.policy import TorchPolicy
from sapo_edge.config.settings import Settings
from sapo_edge.events import HeldOut, RolledBack, RoundFinished
from sapo_edge.node import collapse
from sapo_edge.policy import LoraSettings
from sapo_edge.tasks.checks import Json
from sapo_edge.tasks.manifest import Manifest, TaskEntry
from sapo_edge.tasks.questions import OwnQuestion
from sapo_edge.tasks.source import TaskSource
from tests.benchmarks.tiny_models import END, START, Batch, Network, Row, fit, make_tokenizer, new_model, write
from tests.models import opening
from tests.unit.node.machine import Machine

pytestmark = pytest.mark.slow

ROOMS = ("hall", "bath", "attic", "den", "porch", "office", "garage", "kitchen", "lobby", "study")
PARTS = (*ROOMS, "heat", "on", "off", '{"', '":"', '"}')
"""One token each, so that the model learns within seconds; other text is one token a byte."""
ENDINGS = ("", " please", " now", ", thanks", "!", " again")
REQUESTS = {
    f"{room} {state}{ending}": f'{{"{room}":"{state}"}}'
    for room, state, ending in itertools.product(ROOMS, ("on", "off"), ENDINGS)
}
QUESTIONS = tuple(OwnQuestion(*pair, Json()) for pair in REQUESTS.items())
SOURCE = TaskSource(Manifest("home", (TaskEntry("home", questions=QUESTIONS, reading="fit"),), max_tokens=8))
LORA = LoraSettings(rank=8, alpha=128.0, seed=3)
SETTINGS = Settings(
    own=8, external=0, rounds=12, held_out=24, evaluate_every=2, seed=1, network="solo", head_start="0",
    learning_rate=1e-2, decay_after=0, corrections="off",
)  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that gives the right call to a quarter of the requests, and one for the heating to nearly half."""
    import torch

    path, rng = tmp_path_factory.mktemp("home") / "model", random.Random(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        torch.set_num_threads(1)
        tokenizer = make_tokenizer(PARTS)

        def row(request: str) -> Row:
            calls = [REQUESTS[request], '{"heat":"on"}', rng.choice(list(REQUESTS.values()))]
            (call,) = rng.choices(calls, [25, 45, 30])
            return Row(*(tuple(tokenizer.encode(text).ids) for text in (f"{START}{request}{END}{START}", call + END)))

        steps, network = 150, new_model(Network(width=48, heads=2, inner=96), tokenizer.get_vocab_size())
        batches = (Batch.of([row(request) for request in rng.choices(list(REQUESTS), k=48)]) for _ in range(steps))
        fit(network, batches, steps, 6e-3)
        write(network, tokenizer, path)
    return path


class Run(Machine):
    def __init__(self, home: Path, model: Path) -> None:
        super().__init__(home, SOURCE)
        self.learner = TorchPolicy(opening(model, lora=LORA), place=CPU)

    def teaching(self) -> list[int]:
        """Own groups of each round whose answers earned different rewards."""
        return [event.informative - event.corrected for event in self.of(RoundFinished)]

    def accuracies(self) -> list[float]:
        return [event.accuracy for event in self.of(HeldOut)]


@pytest.fixture
def run(model: Path, tmp_path: Path) -> Run:
    return Run(tmp_path, model)


def test_without_the_cure_nothing_teaches_any_more(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collapse, "FALL", 0.0)
    run.start(SETTINGS, run.learner)
    assert min(run.teaching()[:2]) > 0 and run.accuracies()[1] >= 0.2, "it begins to learn"
    assert sum(run.teaching()[-3:]) == 0 and sum(event.reward_own for event in run.of(RoundFinished)[-3:]) == 0
    assert run.accuracies()[-1] == 0


def test_it_is_noticed_within_three_rounds_and_the_run_ends_higher_than_before_the_fall(run: Run) -> None:
    with patch.object(run.learner, "update", wraps=run.learner.update) as update:
        run.start(SETTINGS, run.learner)
    rates = [call.args[1].learning_rate for call in update.mock_calls]
    (returned,) = run.of(RolledBack)
    (told,) = (text for text in run.notices() if "a collapse" in text)
    assert returned.from_round - 3 <= run.teaching().index(0) < returned.from_round, "the first round without"
    assert f"round {returned.to_round}, at half the learning rate" in told
    assert rates == [0.01] * returned.from_round + [0.005] * (SETTINGS.rounds - returned.to_round)
    assert run.accuracies()[-1] > max(run.accuracies()[: 1 + returned.from_round // 2]) and run.teaching()[-1] > 0


def test_with_corrections_the_same_run_never_falls(run: Run) -> None:
    run.start(replace(SETTINGS, corrections="on"), run.learner)
    assert not run.of(RolledBack) and min(run.teaching()) > 0 and run.accuracies()[-1] > 0
    assert all(event.informative == event.groups for event in run.of(RoundFinished)), "what earns nothing is corrected"
