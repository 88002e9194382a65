"""Two nodes with a real (tiny, random) model train on each other's rollouts, in one process."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

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
    own=6,
    external=2,
    answers=4,
    max_tokens=8,
    held_out=0,
    rank=2,
    learning_rate=1e-2,
    warmup=0,
    threads=1,
)
"""Six own rollouts a round: among so many rollouts two have a gradient for the other node."""


@dataclass
class Member:
    """A node, and all that it was told and trained on."""

    node: Node
    events: list[Event]
    groups: list[TrainingGroup] = field(default_factory=list)

    @property
    def rounds(self) -> list[RoundFinished]:
        return [event for event in self.events if isinstance(event, RoundFinished)]


def start(directory: Path, model: Path, secret: str, transport: Transport, stack: ExitStack) -> Member:
    paths = Paths.default(directory / secret)
    paths.create()
    paths.identity.write_text(secret * 64 + "\n")
    paths.identity.chmod(0o600)
    store = stack.enter_context(Store(paths))
    lora = LoraSettings(SETTINGS.rank, SETTINGS.alpha, adapter_seed(store.seed))
    policy = LlamaCppPolicy(OpenOptions(model, paths.cache, paths.runtime, lora=lora, threads=1))
    stack.callback(policy.close)
    told: list[Event] = []
    source = LengthScored(load_manifest("starter"))
    member = Member(Node(SETTINGS, source, store, policy, transport, told.append), told)
    update = policy.update

    def recorded(
        groups: tuple[TrainingGroup, ...], settings: UpdateSettings, handle: CallHandle | None = None
    ) -> UpdateStatistics:
        member.groups += groups
        return update(groups, settings, handle)

    policy.update = recorded  # type: ignore[method-assign, assignment]
    member.node.open()
    return member


def test_two_nodes_train_on_each_others_rollouts(tmp_path: Path) -> None:
    swarm, model = MemorySwarm(), write_model(tmp_path / "tiny.gguf", SHAPES["llama-gqa"])
    with ExitStack() as stack:
        one, two = (start(tmp_path, model, secret, swarm.join(), stack) for secret in "12")
        for _ in range(3):
            for member in (one, two):
                member.node.step()
        assert [event.external for event in one.rounds][1:] == [2, 2], "the first of all has nobody to read from"
        assert [event.external for event in two.rounds] == [2, 2, 2]
        for member, other in ((one, two), (two, one)):
            read = [group for group in member.groups if group.external]
            assert read and all(group.informative for group in read)
            written = {
                tuple(answer.text for answer in scored.rollout.answers)
                for number in (1, 2, 3)
                for scored in other.node.store.journal.rollouts(number)
                if scored.own
            }
            # Text that was not made of whole characters takes more tokens when it is read, and is cut at the limit,
            # which may be within a character.
            for texts in ([answer.text.removesuffix("\ufffd") for answer in group.answers] for group in read):
                assert any(all(map(str.startswith, full, texts)) for full in written)
            for event in member.rounds:
                assert event.groups == event.own + event.external == 8
                assert (event.reward_external is None) == (event.external == 0)
            assert any(event.statistics["steps"] for event in member.rounds)
