"""A node whose policy's whole state is the list of what it was trained on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from sapo_edge.config.settings import Settings
from sapo_edge.node.rounds import Node
from sapo_edge.policy import CallHandle, TrainingGroup, UpdateSettings, UpdateStatistics
from sapo_edge.rollout import Rollout, Task, TaskRef
from sapo_edge.state.store import Store
from sapo_edge.tasks.held_out import Split
from sapo_edge.tasks.manifest import load_manifest
from sapo_edge.tasks.source import TaskSource
from tests.fakes import RIGHT, WRONG, FakePolicy, FakeTransport, first_is_right
from tests.unit.node.machine import offered

MANIFEST = load_manifest("starter")
SETTINGS = Settings(
    head_start="0", own=1, external=2, answers=2, rounds=0, held_out=0, evaluate_every=0, keep_checkpoints=3, seed=5,
    network="swarm", strategy="uniform", protect="off",
)  # fmt: skip


class Numbered(TaskSource):
    """Tasks without a library: right is `RIGHT`."""

    def __init__(self) -> None:
        super().__init__(MANIFEST)

    def regenerate(self, ref: TaskRef) -> Task:
        return Task(ref, f"question {ref.seed} {ref.index}?", "")

    def training_tasks(self, seed: int, cursor: int, count: int) -> tuple[tuple[Task, ...], int]:
        refs = (TaskRef("sums", "1", seed, index) for index in range(cursor, cursor + count))
        return tuple(map(self.regenerate, refs)), cursor + count

    def held_out(self, split: Split, count: int) -> tuple[Task, ...]:
        return ()

    def is_drawn(self, ref: TaskRef) -> bool:
        return True

    def is_held_out(self, question: str) -> bool:
        return False

    def score(self, task: Task, text: str) -> float:
        return float(text == RIGHT)


class Ledger(FakePolicy):
    """A policy whose state is the questions that it was trained on."""

    def update(
        self, groups: Sequence[TrainingGroup], settings: UpdateSettings, handle: CallHandle | None = None
    ) -> UpdateStatistics:
        self.state = json.dumps([*self.trained, *(group.prompt[-1].content for group in groups)])
        return UpdateStatistics(groups=len(groups), informative=len(groups), steps=1)

    @property
    def trained(self) -> list[str]:
        return [] if self.state == "fresh" else list(json.loads(self.state))


def peers_rollout(number: int) -> Rollout:
    task = Numbered().regenerate(TaskRef("sums", "1", 1, number))
    made = offered(task, f"peer {number % 3}", number, (RIGHT, WRONG, f"{number}"))
    return replace(made, digest=f"{number:064x}")


def open_node(store: Store, wire: FakeTransport) -> tuple[Node, Ledger]:
    """A node on an open state directory, as it continues, and its policy."""
    policy = Ledger(script=first_is_right)
    node = Node(SETTINGS, Numbered(), store, policy, wire, lambda event: None)
    node.open()
    return node, policy
