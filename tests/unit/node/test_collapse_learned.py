"""A real collapse, of a tiny model that learns requests for a home at far too high a rate."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from sapo_edge import events
from sapo_edge.backends.pytorch.place import CPU
from sapo_edge.backends.pytorch.policy import TorchPolicy
from sapo_edge.config.settings import Settings
from sapo_edge.node import collapse
from sapo_edge.node.rounds import Node
from sapo_edge.policy import CallHandle, LoraSettings, TrainingGroup, UpdateSettings, UpdateStatistics
from sapo_edge.state.paths import Paths
from sapo_edge.state.store import Store
from sapo_edge.tasks.checks import Json
from sapo_edge.tasks.manifest import Manifest, TaskEntry
from sapo_edge.tasks.questions import OwnQuestion
from sapo_edge.tasks.source import TaskSource
from sapo_edge.transport import Solo
from tests.benchmarks.tiny_models import END, START, Batch, Network, Row, fit, make_tokenizer, new_model, write
from tests.models import opening

pytestmark = pytest.mark.slow

ROOMS = ("hall", "bath", "attic", "den", "porch", "office", "garage", "kitchen", "lobby", "study")
PARTS = (*ROOMS, "heat", "on", "off", '{"', '":"', '"}')
"""One token each, so that the model learns within seconds; other text is one token a byte."""
ENDINGS = ("", " please", " now", ", thanks", "!", " again")
REQUESTS = {
    f"{room} {state}{ending}": f'{{"{room}":"{state}"}}'
    for room in ROOMS
    for state in ("on", "off")
    for ending in ENDINGS
}
SOURCE = TaskSource(
    Manifest(
        "home",
        (TaskEntry("home", questions=tuple(OwnQuestion(*pair, Json()) for pair in REQUESTS.items()), reading="fit"),),
        max_tokens=8,
    )
)
LORA = LoraSettings(rank=8, alpha=128.0, seed=3)
SETTINGS = Settings(
    own=8, external=0, rounds=12, held_out=24, evaluate_every=2, seed=1, network="solo", head_start="0",
    learning_rate=1e-2, decay_after=0, corrections="off",
)  # fmt: skip


class Watched(TorchPolicy):
    """Remembers the learning rates of its updates."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.rates: list[float] = []

    def update(
        self, groups: Sequence[TrainingGroup], settings: UpdateSettings, handle: CallHandle | None = None
    ) -> UpdateStatistics:
        self.rates.append(settings.learning_rate)
        return super().update(groups, settings, handle)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A model that gives the right call to a quarter of the requests, and one for the heating to nearly half."""
    import torch

    path, rng = tmp_path_factory.mktemp("home") / "model", random.Random(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        torch.set_num_threads(1)
        tokenizer = make_tokenizer(PARTS)

        def row(request: str) -> Row:
            call = rng.choices([REQUESTS[request], '{"heat":"on"}', rng.choice(list(REQUESTS.values()))], [25, 45, 30])[
                0
            ]
            return Row(
                tuple(tokenizer.encode(f"{START}{request}{END}{START}").ids), tuple(tokenizer.encode(call + END).ids)
            )

        steps, network = 150, new_model(Network(width=48, heads=2, inner=96), tokenizer.get_vocab_size())
        batches = (Batch.of([row(request) for request in rng.choices(list(REQUESTS), k=48)]) for _ in range(steps))
        fit(network, batches, steps, 6e-3)
        write(network, tokenizer, path)
    yield path


@dataclass
class Run:
    """What a run of a node told: its rounds, validations and returns, and the learning rate of each update."""

    rounds: list[events.RoundFinished]
    validations: list[events.HeldOut]
    returns: list[events.RolledBack]
    notices: list[str]
    rates: list[float]

    def teaching(self) -> list[int]:
        """Own groups of each round whose answers earned different rewards."""
        return [event.informative - event.corrected for event in self.rounds]


@pytest.fixture
def run(model: Path, tmp_path: Path) -> Callable[[Settings], Run]:
    def started(settings: Settings) -> Run:
        policy = Watched(opening(model, lora=LORA), place=CPU)
        emitted: list[events.Event] = []
        with Store(Paths.default(tmp_path)) as store:
            Node(settings, SOURCE, store, policy, Solo(), emitted.append).run()
        return Run(
            [event for event in emitted if isinstance(event, events.RoundFinished)],
            [event for event in emitted if isinstance(event, events.HeldOut)],
            [event for event in emitted if isinstance(event, events.RolledBack)],
            [event.text for event in emitted if isinstance(event, events.Notice)],
            policy.rates,
        )

    return started


def test_without_the_cure_nothing_teaches_any_more(
    run: Callable[[Settings], Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collapse, "FALL", 0.0)
    fallen = run(SETTINGS)
    assert min(fallen.teaching()[:2]) > 0 and fallen.validations[1].accuracy >= 0.2, "it begins to learn"
    assert sum(fallen.teaching()[-3:]) == 0 and sum(event.reward_own for event in fallen.rounds[-3:]) == 0
    assert fallen.validations[-1].accuracy == 0


def test_it_is_noticed_within_three_rounds_and_the_run_ends_higher_than_before_the_fall(
    run: Callable[[Settings], Run],
) -> None:
    cured = run(SETTINGS)
    (returned,) = cured.returns
    (told,) = (text for text in cured.notices if "a collapse" in text)
    assert returned.from_round - 3 <= cured.teaching().index(0) < returned.from_round, "the first round without"
    assert f"round {returned.to_round}, at half the learning rate" in told
    assert cured.rates == [0.01] * returned.from_round + [0.005] * (SETTINGS.rounds - returned.to_round)
    before = max(event.accuracy for event in cured.validations[: 1 + returned.from_round // 2])
    assert cured.validations[-1].accuracy > before and cured.teaching()[-1] > 0


def test_with_corrections_the_same_run_never_falls(run: Callable[[Settings], Run]) -> None:
    kept = run(replace(SETTINGS, corrections="on"))
    assert not kept.returns and min(kept.teaching()) > 0 and kept.validations[-1].accuracy > 0
    assert all(event.informative == event.groups for event in kept.rounds), "what earns nothing is corrected"
