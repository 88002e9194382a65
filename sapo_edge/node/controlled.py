"""What a running node offers on its control socket."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sapo_edge import __version__
from sapo_edge.config.settings import SETTINGS
from sapo_edge.control.journal_view import JournalReader, RolloutQuery, in_full
from sapo_edge.errors import ConfigError, UnknownTaskError
from sapo_edge.events import Notice, RoundFinished, as_dict
from sapo_edge.node.rounds import RECENT, Node
from sapo_edge.person import Given, Outbox, Verdict, draw_question, rollout_of, verify_answers
from sapo_edge.swarm.joining.identity import readable_name
from sapo_edge.swarm.status import SwarmStatus

ASKED = "asked to pause"
"""The reason of a pause that a person asked for."""
STATUS_VERSION = 1
"""Version of the status object."""


class NodeControl:
    """Meets `control_handlers.Controlled` for one node. Called from the control socket's threads.

    Args:
        node: that runs in another thread.
        swarm: gives the transport's status; None for a node that works alone.
    """

    def __init__(self, node: Node, swarm: Callable[[], SwarmStatus] | None) -> None:
        self.node = node
        self._swarm = swarm
        self._started = time.time()
        self._reader = JournalReader(node.store.journal.path)

    def status(self) -> Mapping[str, Any]:
        """The object of `sapo status --json`."""
        node = self.node
        swarm = None if self._swarm is None else self._swarm()
        recent = tuple(node.recent) or tuple(node.store.journal.rounds(RECENT))
        last = recent[-1] if recent else None
        step, best = node.progress, node.best
        held_out = next(iter(node.store.journal.held_out(1)), None)
        base = next(iter(node.store.journal.held_out(1, after=-1)), None)
        return {
            "v": STATUS_VERSION,
            "version": __version__,
            "pid": os.getpid(),
            "since": self._started,
            "state": self._state(),
            "paused": list(node.stop.reasons),
            "round": node.round,
            "rounds": node.settings.rounds,
            "phase": node.phase,
            "progress": None
            if step is None
            else {"phase": step.phase, "done": step.done, "total": step.total, "unit": step.unit},
            "role": node.settings.role,
            "manifest": node.source.manifest.name,
            "model": node.policy.name,
            "backend": node.policy.backend,
            "peer_id": node.author,
            "name": readable_name(node.author),
            "reward_own": None if last is None else last.reward_own,
            "reward_external": None if last is None else last.reward_external,
            "own": None if last is None else last.own,
            "external": None if last is None else last.external,
            "informative": None if last is None else last.informative,
            "informative_share": _informative_share(recent),
            "tokens_per_second": None
            if last is None or not last.seconds_generate
            else last.tokens / last.seconds_generate,
            "last_round": None if last is None else as_dict(last),
            "held_out": None if held_out is None else as_dict(held_out),
            "held_out_base": None if base is None else as_dict(base),
            "best": None if best is None else {"round": best.round, "accuracy": best.accuracy},
            "pool": {"rollouts": len(node.pool), "bytes": node.pool.bytes},
            "memory": _memory(),
            "limits": {"threads": node.policy.threads},
            "swarm": None if swarm is None else swarm.as_dict(),
            "rejections": {} if swarm is None else dict(swarm.rejections),
        }

    def peers(self) -> Sequence[Mapping[str, Any]]:
        """One object for each connected peer."""
        return [] if self._swarm is None else self._swarm().as_dict()["peers"]

    def history(self, points: int) -> Mapping[str, Any]:
        """The course of the whole run.

        Raises:
            StateError: if the journal can't be read.
        """
        return self._reader.history(points)

    def rollouts(self, query: RolloutQuery) -> Mapping[str, Any]:
        """A page of rollouts.

        Raises:
            StateError: if the journal can't be read.
        """
        found, after = self._reader.rollouts(query)
        return {"rollouts": [item.as_dict() for item in found], "next": None if after is None else list(after)}

    def rollout(self, round: int, position: int) -> Mapping[str, Any] | None:
        """One rollout with all its answers; None if there is none.

        Raises:
            StateError: if the journal can't be read.
        """
        scored = self._reader.rollout(round, position)
        return None if scored is None else in_full(round, position, scored)

    def pause(self) -> None:
        """Rest until resumed; the swarm goes on."""
        self.node.stop.pause(ASKED)

    def resume(self) -> None:
        """Go on, whatever the reason to rest was."""
        self.node.stop.resume()

    def stop_after_round(self) -> None:
        """Finish the round, save, and end."""
        self.node.stop.after_round()

    def stop_at_once(self) -> None:
        """End now; the round in progress is lost."""
        self.node.stop.immediately()

    def all_settings(self) -> Mapping[str, Any]:
        """Every setting by name, as the node has it now."""
        return self.node.settings.as_dict()

    def set_live(self, name: str, value: str | int | float) -> None:
        """Change a setting from the next round on; the configuration file stays as it is.

        Raises:
            ConfigError: if it can't be changed while the node runs, or the value is not allowed.
        """
        item = SETTINGS.get(name)
        if item is None or not item.live:
            live = ", ".join(name for name, item in SETTINGS.items() if item.live)
            raise ConfigError("that setting can't be changed while the node runs", f"change one of {live}, or restart")
        changed: dict[str, Any] = {name: item.check(value, "asked of the running node")}
        self.node.settings = replace(self.node.settings, **changed)

    def question(self) -> Mapping[str, Any]:
        """A question for a person."""
        return draw_question(self.node.source, self.node.seed).as_dict()

    def share_answers(self, given: Given) -> Mapping[str, Any]:
        """Verify a person's answers and hand them to the swarm.

        Raises:
            UnknownTaskError: if the question is none of this node's manifest.
        """
        return share(self.node, given, shared=self._swarm is not None).as_dict()

    def _state(self) -> str:
        if self.node.stop.finish.is_set():
            return "stopping"
        if self.node.stop.reasons:
            return "paused"
        return "running" if self.node.phase else "starting"


def _informative_share(recent: Sequence[RoundFinished]) -> float | None:
    """Share of the groups that had a gradient; None without any group."""
    groups = sum(event.groups for event in recent)
    return sum(event.informative for event in recent) / groups if groups else None


def _memory() -> dict[str, int]:
    """Bytes of memory that this process has now and had at most."""
    import psutil

    found = psutil.Process().memory_info()
    if sys.platform == "win32":
        return {"rss": found.rss, "peak": found.peak_wset}
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # In bytes on macOS, else in kilobytes.
    return {"rss": found.rss, "peak": max(found.rss, most if sys.platform == "darwin" else most * 1024)}


def share(node: Node, given: Given, *, shared: bool) -> Verdict:
    """Verify a person's answers and publish them as a rollout of the node.

    Raises:
        UnknownTaskError: if the question is none of the node's manifest.
    """
    task, rewards = verify_answers(node.source, given)
    sequence = node.store.journal.reserve_sequences(1)
    node.transport.publish([rollout_of(task, given, author=node.author, round=node.round, sequence=sequence)])
    return Verdict(rewards, task.ground_truth, shared)


class Waiting:
    """Publishes what a person answered while no node ran, once somebody is there to receive it.

    Args:
        node: that shares.
        outbox: where the answers wait.
        connected: whether the swarm has peers.
    """

    def __init__(self, node: Node, outbox: Outbox, connected: Callable[[], bool]) -> None:
        self._node, self._outbox, self._connected = node, outbox, connected

    def __call__(self) -> None:
        """Publish all that waits; called between rounds. What can't be verified is told and dropped."""
        if not self._outbox.path.exists() or not self._connected():
            return
        shared = 0
        for given in self._outbox.take(self._node.source.manifest.digest):
            try:
                share(self._node, given, shared=True)
            except UnknownTaskError as error:
                self._node.emit(Notice(level="warning", text=f"answers of a person were not shared: {error.message}"))
            else:
                shared += 1
        if shared:
            self._node.emit(Notice(level="info", text=f"shared the answers of a person to {shared} questions"))
