"""What the app knows about its node, from the control socket, with the clock of its round. Independent of Textual."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from sapo_edge import events
from sapo_edge.node.background import Ended
from sapo_edge.plain import format_time, printable
from sapo_edge.tui.node.history import Evaluation, History
from sapo_edge.tui.node.machine import Load

STEPS = ("generate", "update", "evaluate")
"""Phases of a round in order; not every round has an evaluation."""
NOT_ENDED = Ended("", expected=True)


@dataclass(slots=True)
class RoundClock:
    """Tracks `progress` events and finished rounds, and how many `seconds` each phase took last time."""

    phase: str | None = None
    done: int = 0
    total: int = 0
    unit: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    clock: Callable[[], float] = time.monotonic
    _phase_start: float = 0.0
    # More than 0 if the app connected in the middle of the phase.
    _first_done: int = 0
    _paused: float = 0.0
    _paused_since: float | None = None

    def progress(self, phase: str, done: int, total: int, unit: str) -> None:
        if phase != self.phase or done < self.done:
            self._phase_start, self._paused, self._first_done = self.clock(), 0.0, done
        self.phase, self.done, self.total, self.unit = phase, done, total, unit
        if total and done >= total and not self._first_done:
            self.seconds[phase] = self._elapsed()

    def round_finished(self, seconds_generate: float, seconds_update: float) -> None:
        self.seconds["generate"], self.seconds["update"] = seconds_generate, seconds_update

    def set_paused(self, paused: bool) -> None:
        """Exclude the time from a pause to its end from the time of a phase."""
        if paused and self._paused_since is None:
            self._paused_since = self.clock()
        elif not paused and self._paused_since is not None:
            self._paused += self.clock() - self._paused_since
            self._paused_since = None

    def left(self) -> float | None:
        """Estimated seconds until the end of the round, without a following evaluation; None if unknown."""
        if self.phase not in STEPS:
            return None
        seconds = self._left_in_phase()
        later = STEPS[STEPS.index(self.phase) + 1 : 2]
        if seconds is None or any(step not in self.seconds for step in later):
            return None
        return seconds + sum(self.seconds[step] for step in later)

    def share(self, step: str) -> float:
        if self.phase not in STEPS or step not in STEPS:
            return 0.0
        current, index = STEPS.index(self.phase), STEPS.index(step)
        if index != current:
            return 1.0 if index < current else 0.0
        return min(1.0, self.done / self.total) if self.total else 0.0

    def _left_in_phase(self) -> float | None:
        assert self.phase is not None
        elapsed = self._elapsed()
        if self.total and self.done >= self.total:
            return 0.0
        seen = self.done - self._first_done
        if self.total and seen / self.total > 0.1:
            return elapsed * (self.total - self.done) / seen
        last_time = self.seconds.get(self.phase)
        if last_time is None:
            return None
        to_see = 1 - self._first_done / self.total if self.total else 1.0
        return max(0.0, last_time * to_see - elapsed)

    def _elapsed(self) -> float:
        pause = 0.0 if self._paused_since is None else self.clock() - self._paused_since
        return max(0.0, self.clock() - self._phase_start - self._paused - pause)


class Standing(StrEnum):
    """Whether the app is connected to a node."""

    LOOKING = "looking"
    STARTING = "starting"
    ATTACHED = "attached"
    ENDED = "ended"


@dataclass(slots=True)
class NodeState:
    """The state of the node.

    Attributes:
        starting_since: when the node was started, in seconds of a monotonic clock.
        status: the last reply to `status`; empty before the first.
        settings: values by name, from the time of the connection.
        paused: why the node is paused; empty if it isn't.
        head_start: the newest validation of the head start; None without one.
        ending: how the last node ended; without a reason while one runs.
        ended_at: when it ended, in Unix seconds.
    """

    standing: Standing = Standing.LOOKING
    starting_since: float = 0.0
    status: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    history: History = field(default_factory=History)
    clock: RoundClock = field(default_factory=RoundClock)
    load: Load = field(default_factory=Load)
    paused: tuple[str, ...] = ()
    head_start: events.HeadStart | None = None
    ending: Ended = NOT_ENDED
    ended_at: float = 0.0

    @property
    def stopping(self) -> bool:
        return self.standing is Standing.ATTACHED and self.status.get("state") == "stopping"

    @property
    def round(self) -> int:
        """The last finished round."""
        return max(int(self.status.get("round") or 0), self.history.last_round)

    @property
    def ended_text(self) -> str:
        """Why and when the last node ended; empty while one runs."""
        return f"{printable(self.ending.reason)} ({format_time(self.ended_at)[11:16]})" if self.ending.reason else ""

    def no_node_text(self, expected: str) -> str:
        """Why there is no node and what to do; else what is expected to appear once it runs."""
        if self.standing is Standing.ENDED:
            return f"No node runs: {self.ended_text}.\n\nPress s to start one."
        return f"{expected} as soon as the node runs."

    @property
    def rounds_to_evaluation(self) -> int | None:
        """Rounds to finish before the next held-out evaluation; None if there is none to come, or it is unknown."""
        every, limit = int(self.settings.get("evaluate_every") or 0), int(self.status.get("rounds") or 0)
        if not self.settings.get("held_out") or self.status.get("role") != "trainer":
            return None
        waits = [every - self.round % every] if every else []
        if limit > self.round:
            # The last round is always evaluated.
            waits.append(limit - self.round)
        return min(waits, default=None)

    @property
    def seconds_to_end(self) -> float | None:
        """Estimated seconds until the last round of the run; None if it has no end, or the pace is unknown."""
        limit, pace = int(self.status.get("rounds") or 0), self.history.curves.pace()
        if self.standing is not Standing.ATTACHED or limit <= self.round or pace is None:
            return None
        return pace * (limit - self.round)

    def attach(self, status: Mapping[str, Any], settings: Mapping[str, Any], history: History) -> None:
        """Start with a node that the app has just connected to."""
        self.standing = Standing.ATTACHED
        self.ending = NOT_ENDED
        self.history = history
        self.clock = RoundClock()
        self.settings = settings
        self.head_start = None
        self.set_status(status)
        if last := status.get("last_round"):
            self.clock.round_finished(float(last.get("seconds_generate") or 0), float(last.get("seconds_update") or 0))
        if step := status.get("progress"):
            self.clock.progress(str(step["phase"]), int(step["done"]), int(step["total"]), str(step["unit"]))

    def set_status(self, status: Mapping[str, Any]) -> None:
        self.status = status
        self._set_paused(tuple(str(reason) for reason in status.get("paused") or ()))
        last = events.from_dict(status["head_start"]) if status.get("head_start") else None
        self.head_start = last if isinstance(last, events.HeadStart) else self.head_start

    def apply(self, event: events.Event) -> None:
        """Update the state from an event, in bounded time and memory."""
        match event:
            case events.Progress():
                self.clock.progress(event.phase, event.done, event.total, event.unit)
            case events.NodeStarted():
                self.history.forget_after(event.round)
            case events.RolledBack():
                self.history.forget_after(event.to_round)
            case events.RoundFinished():
                share = event.informative / event.groups if event.groups else 0.0
                speed = event.tokens / event.seconds_generate if event.seconds_generate else 0.0
                own, external = event.reward_own, event.reward_external
                self.history.curves.add(event.round, own, external, share, speed, event.time)
                self.clock.round_finished(event.seconds_generate, event.seconds_update)
            case events.HeldOut():
                evaluation = Evaluation(
                    event.round, event.accuracy, event.low, event.high, event.questions, event.split, event.question_set
                )
                self.history.add_evaluation(evaluation)
            case events.HeadStart():
                self.head_start = event
                if event.is_validation:
                    self.history.add_ahead(event.updates, event.accuracy)
            case events.Paused():
                self._set_paused(event.reasons)

    def _set_paused(self, reasons: tuple[str, ...]) -> None:
        self.paused = reasons
        self.clock.set_paused(bool(reasons))
