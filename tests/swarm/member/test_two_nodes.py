"""Two nodes with a real (tiny, random) model train on each other's rollouts, in one process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sapo_edge.backends.backend import OpenOptions
from sapo_edge.backends.llama.policy import LlamaCppPolicy
from sapo_edge.config.settings import Settings
from sapo_edge.events import Event, RoundFinished
from sapo_edge.node.rounds import Node, adapter_seed
from sapo_edge.policy import CallHandle, LoraSettings, TrainingGroup, UpdateSettings, UpdateStatistics
from sapo_edge.state.paths import Paths
from sapo_edge.state.store import Store
from sapo_edge.swarm.memory import MemorySwarm
from sapo_edge.tasks.manifest import load_manifest
from sapo_edge.transport import Transport
from tests.fakes import LengthScored
from tests.models import SHAPES, write_model

SETTINGS = Settings(
    own=2,
    external=2,
    questions=6,
    answers=4,
    max_tokens=8,
    held_out=0,
    rank=2,
    learning_rate=1e-2,
    warmup=0,
    threads=1,
)
"""Six questions a round: among so many rollouts two have a gradient for the other node."""


@dataclass
class Member:
    """A node, its state directory, and all that it was told and trained on."""

    name: str
    node: Node
    policy: LlamaCppPolicy
    events: list[Event]
    groups: list[tuple[TrainingGroup, ...]] = field(default_factory=list)

    @property
    def rounds(self) -> list[RoundFinished]:
        return [event for event in self.events if isinstance(event, RoundFinished)]


class Lab:
    """Starts nodes and closes them again."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.model = write_model(directory / "tiny.gguf", SHAPES["llama-gqa"])
        self.source = LengthScored(load_manifest("starter"))
        self.stack = ExitStack()

    def start(self, name: str, transport: Transport, settings: Settings = SETTINGS, secret: str = "") -> Member:
        paths = Paths.default(self.directory / name)
        paths.create()
        if secret:
            paths.identity.write_text(secret * 64 + "\n")
            paths.identity.chmod(0o600)
        store = self.stack.enter_context(Store(paths))
        options = OpenOptions(
            self.model,
            paths.cache,
            paths.runtime,
            lora=LoraSettings(settings.rank, settings.alpha, adapter_seed(store.seed)),
            threads=1,
        )
        policy = LlamaCppPolicy(options)
        self.stack.callback(policy.close)
        told: list[Event] = []
        member = Member(name, Node(settings, self.source, store, policy, transport, told.append), policy, told)
        update = policy.update

        def recorded(
            groups: tuple[TrainingGroup, ...], settings: UpdateSettings, handle: CallHandle | None = None
        ) -> UpdateStatistics:
            member.groups.append(tuple(groups))
            return update(groups, settings, handle)

        policy.update = recorded  # type: ignore[method-assign, assignment]
        member.node.open()
        return member


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path)
    with lab.stack:
        yield lab


def externals(group: TrainingGroup) -> bool:
    return group.external


def test_two_nodes_train_on_each_others_rollouts(lab: Lab) -> None:
    swarm = MemorySwarm()
    members = [lab.start(name, swarm.join(), secret=secret) for name, secret in (("one", "1"), ("two", "2"))]
    for _ in range(3):
        for member in members:
            member.node.step()
    one, two = members
    assert [event.external for event in one.rounds][1:] == [2, 2], "the first of all has nobody to read from"
    assert [event.external for event in two.rounds] == [2, 2, 2]
    for member, other in ((one, two), (two, one)):
        read = [group for groups in member.groups for group in groups if externals(group)]
        assert read and all(group.informative for group in read)
        written = {
            tuple(answer.text for answer in scored.rollout.answers)
            for number in (1, 2, 3)
            for scored in other.node.store.journal.rollouts(number)
            if scored.own
        }
        # Text that was not made of whole characters takes more tokens when it is read, and is cut at the limit, which
        # may be within a character.
        for texts in ([answer.text.removesuffix("\ufffd") for answer in group.answers] for group in read):
            assert any(all(map(str.startswith, full, texts)) for full in written)
        for event in member.rounds:
            assert event.groups == event.own + event.external == 4
            assert (event.reward_external is None) == (event.external == 0)
        assert any(event.statistics["steps"] for event in member.rounds)


def test_the_update_depends_on_what_others_shared(lab: Lab) -> None:
    """The same node, with the same seed and the same own rollouts, reads from one swarm and from another."""
    outcomes = {}
    for peer, secret in (("first", "5"), ("second", "6")):
        swarm = MemorySwarm()
        reader = lab.start(f"reader-{peer}", swarm.join(), secret="1")
        writer = lab.start(f"writer-{peer}", swarm.join(), secret=secret)
        writer.node.step()
        writer.node.step()
        reader.node.step()
        (event,) = reader.rounds
        assert event.external == 2
        own = [scored.rollout.answers for scored in reader.node.store.journal.rollouts(1) if scored.own]
        assert reader.policy.learner is not None
        weights = {name: value.tobytes() for name, value in reader.policy.learner.weights().items()}
        outcomes[peer] = (own, weights)
    first, second = outcomes["first"], outcomes["second"]
    assert first[0] == second[0], "the node itself did the same"
    # Losses may be equal: with one epoch they depend on advantages and lengths, not on texts.
    assert first[1] != second[1]


def test_a_node_alone_replaces_external_rollouts_by_own_ones(lab: Lab) -> None:
    member = lab.start("alone", MemorySwarm().join(), secret="1")
    member.node.step()
    (event,) = member.rounds
    assert (event.own, event.external, event.reward_external) == (4, 0, None)
