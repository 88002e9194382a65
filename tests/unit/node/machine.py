"""A state directory on which nodes with scripted policies run one after the other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sapo_edge.config.settings import Settings
from sapo_edge.events import Event, NodeStopped, Notice, RoundFinished
from sapo_edge.node.rounds import Node
from sapo_edge.policy import Policy
from sapo_edge.rollout import Answer, Rollout, Task
from sapo_edge.room import Room
from sapo_edge.state.checkpoint import Checkpoint
from sapo_edge.state.checkpoints import Checkpoints
from sapo_edge.state.paths import Paths
from sapo_edge.state.store import Store
from sapo_edge.tasks.source import TaskSource
from sapo_edge.transport import Solo, Transport
from tests.fakes import FakePolicy

SETTINGS = Settings(
    head_start="0", own=2, external=0, answers=3, rounds=3, held_out=4, evaluate_every=0, keep_checkpoints=50, seed=5
)
Kind = TypeVar("Kind", bound=Event)


class Machine:
    """One state directory; `during` is called with each event."""

    def __init__(self, home: Path, source: TaskSource) -> None:
        self.paths = Paths.default(home)
        self.source = source
        self.policy: Any = FakePolicy()
        self.node: Node
        self.events: list[Event] = []
        self.during: Callable[[Event], object] = lambda event: None

    def start(
        self, settings: Settings = SETTINGS, policy: Policy | None = None,
        prepare: Callable[[Node], object] = lambda node: None, transport: Transport | None = None,
        room: Room | None = None, **options: Any,
    ) -> NodeStopped:  # fmt: skip
        """Run a new node to its end; `prepare` is called with it before."""
        self.policy, self.events = policy or FakePolicy(**options), []
        with Store(self.paths, keep_checkpoints=settings.keep_checkpoints) as store:
            wire = transport or Solo()
            self.node = Node(settings, self.source, store, self.policy, wire, self._receive, ("r",), room=room)
            prepare(self.node)
            return self.node.run()

    def _receive(self, event: Event) -> None:
        self.events.append(event)
        self.during(event)

    def then(self, act: Callable[[Event], object]) -> None:
        """Act at each event, after what was to be done so far."""
        before = self.during
        self.during = lambda event: (before(event), act(event))

    def at(self, kind: type[Event], act: Callable[[], object], round: int | None = None) -> None:
        """Act so at the first event of a kind, or at the first of it in a round."""
        left = [act]

        def look(event: Event) -> None:
            if left and isinstance(event, kind) and round in (None, getattr(event, "round", None)):
                left.pop()()

        self.then(look)

    def of(self, kind: type[Kind]) -> list[Kind]:
        return [event for event in self.events if isinstance(event, kind)]

    def notices(self, *levels: str) -> list[str]:
        """The notices of these levels; of all by default."""
        return [event.text for event in self.of(Notice) if not levels or event.level in levels]

    def best(self) -> Checkpoint | None:
        return Checkpoints(self.paths.checkpoints).best()

    @property
    def rounds(self) -> list[int]:
        return [event.round for event in self.of(RoundFinished)]

    @property
    def asked(self) -> list[list[str]]:
        return [[prompt[-1].content for prompt in prompts] for prompts in self.policy.prompts]


def offered(task: Task, author: str, number: int, texts: Sequence[str] = ("x", "xx")) -> Rollout:
    """Another node's rollout of a task; by default it has a wrong answer and a right one."""
    answers = tuple(Answer(text, True) for text in texts)
    return Rollout(task.ref, task.question, task.ground_truth, answers, author, 1, number, 1.5)


def at_call(number: int, act: Callable[[], object]) -> Callable[[FakePolicy], None]:
    """A hook of a policy that acts at the call of this number."""
    calls = itertools.count(1)

    def hook(_policy: FakePolicy) -> None:
        if next(calls) == number:
            act()

    return hook
