"""What clients of the control socket can ask of a running node."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import sapo_edge
from sapo_edge.care.sensors import peak_memory
from sapo_edge.config.settings import SETTINGS
from sapo_edge.control.journal_view import JournalReader, RolloutQuery, in_full
from sapo_edge.control.protocol import ControlError
from sapo_edge.errors import ConfigError
from sapo_edge.events import RoundFinished, as_dict
from sapo_edge.node.person import PersonAnswers, Verdict, draw_question, person_rollout, verify_answers
from sapo_edge.node.rollback import find_target
from sapo_edge.node.rounds import RECENT, Node
from sapo_edge.swarm.joining.identity import readable_name
from sapo_edge.swarm.status import SwarmStatus

STATUS_VERSION = 1
"""Version of the status object."""
_OF_LAST_ROUND = ("reward_own", "reward_external", "own", "external", "informative")


class NodeControl:
    """One node as the control socket's methods see it. Thread-safe; each call returns soon.

    `swarm` gives the transport's status; None for a node that works alone.
    """

    def __init__(self, node: Node, swarm: Callable[[], SwarmStatus] | None) -> None:
        self.node = node
        self._swarm = swarm
        self._started = time.time()
        self._changing = threading.Lock()
        self._reader = JournalReader(node.store.journal.path)

    def status(self) -> Mapping[str, Any]:
        """The object of `sapo status --json`, described in `docs/interface.md`."""
        node = self.node
        swarm = self._swarm() if self._swarm else None
        recent = tuple(node.recent) or tuple(node.store.journal.rounds(RECENT))
        last = recent[-1] if recent else None
        step, best = node.progress, node.best
        base, held_out = node.store.journal.held_out_course() or (None, None)
        comparison = node.comparison
        return {
            "v": STATUS_VERSION,
            "version": sapo_edge.__version__,
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
            **{name: getattr(last, name, None) for name in _OF_LAST_ROUND},
            "informative_share": _informative_share(recent),
            "tokens_per_second": None
            if last is None or not last.seconds_generate
            else last.tokens / last.seconds_generate,
            "last_round": None if last is None else as_dict(last),
            "held_out": None if held_out is None else as_dict(held_out),
            "held_out_base": None if base is None else as_dict(base),
            "comparison": None if comparison is None else as_dict(comparison),
            "head_start": None if node.head_start is None else as_dict(node.head_start),
            "best": None if best is None else {"round": best.round, "accuracy": best.accuracy},
            "reduced": self._reduced(),
            "pool": {"rollouts": len(node.pool), "bytes": node.pool.bytes},
            "memory": _memory(),
            "limits": {"threads": node.policy.threads, "others": node.others()},
            "swarm": None if swarm is None else swarm.as_dict(),
            "rejections": {} if swarm is None else dict(swarm.rejections),
        }

    def peers(self) -> Sequence[Mapping[str, Any]]:
        """One object for each connected peer."""
        return [] if self._swarm is None else self._swarm().as_dict()["peers"]

    def history(self, points: int) -> Mapping[str, Any]:
        """The whole run in at most so many points."""
        return self._reader.history(points)

    def rollouts(self, query: RolloutQuery) -> Mapping[str, Any]:
        """A page of rollouts, newest first, and where the next page begins."""
        page, after = self._reader.rollouts(query)
        return {"rollouts": page, "next": None if after is None else list(after)}

    def rollout(self, round: int, position: int) -> Mapping[str, Any] | None:
        """One rollout with all its answers; None if the journal does not hold it."""
        scored = self._reader.rollout(round, position)
        return None if scored is None else in_full(round, position, scored)

    def pause(self) -> None:
        """Pause until resumed; the node still receives rollouts."""
        if self.node.stop.finish.is_set():
            raise ControlError("the node is stopping already", "start it with `sapo run` once it has ended", "refused")
        self.node.stop.pause("asked to pause")

    def resume(self) -> None:
        """Resume, whatever the reason of the pause."""
        self.node.stop.resume()

    def stop_after_round(self) -> None:
        """Finish the round, save and stop."""
        self.node.stop.after_round()

    def stop_immediately(self) -> None:
        """Stop now; the round in progress is lost."""
        self.node.stop.immediately()

    def roll_back(self, round: int | None) -> Mapping[str, Any]:
        """Return to a checkpoint after the round in progress: the best one, or that of a round.

        Gives `from`, the last finished round now, and `to`; equal if there is nothing to return from.
        """
        node = self.node
        if not node.trains:
            raise ControlError("a generator does not learn", "stop it before you return to an earlier checkpoint")
        target, last = find_target(node.store.checkpoints, round).round, node.round
        if target < last:
            node.store.checkpoints.reserved.append(target)
        return {"from": last, "to": target}

    def change_settings(self, values: Mapping[str, str | int | float]) -> Mapping[str, Any]:
        """Change settings from the next round on, all or none; the configuration file stays as it is.

        Returns the value of every setting, by name.
        """
        changes: dict[str, Any] = {}
        for name, value in values.items():
            setting = SETTINGS.get(name)
            if setting is None or not setting.live:
                live = ", ".join(name for name, setting in SETTINGS.items() if setting.live)
                raise ConfigError(
                    "that setting can't be changed while the node runs", f"change one of {live}, or restart"
                )
            changes[name] = setting.check(value, "asked of the running node")
        # Requests run in threads of their own.
        with self._changing:
            self.node.settings = replace(self.node.settings, **changes)
            return self.node.settings.as_dict()

    def question(self) -> Mapping[str, Any]:
        """A question for a person to answer."""
        return draw_question(self.node.source, self.node.seed).as_dict()

    def share_answers(self, given: PersonAnswers) -> Mapping[str, Any]:
        """Verify a person's answers and publish them as a rollout of the node."""
        node = self.node
        task, rewards = verify_answers(node.source, given)
        # Peers learn from the text: tags would teach a form that nobody asked for.
        asked = replace(given, answers=tuple(node.source.as_asked(task, text) for text in given.answers))
        sequence = node.store.journal.reserve_sequences(1)
        node.transport.publish([person_rollout(task, asked, author=node.author, round=node.round, sequence=sequence)])
        return Verdict(rewards, task.ground_truth, self._swarm is not None).as_dict()

    def _reduced(self) -> dict[str, int] | None:
        """How many external rollouts an update takes; None while as many as the setting says."""
        settings = self.node.settings
        taken = self.node.guard.external(settings)
        if settings.network == "solo" or taken == settings.external:
            return None
        return {"external": taken, "setting": settings.external}

    def _state(self) -> str:
        if self.node.stop.finish.is_set():
            return "stopping"
        if self.node.stop.reasons:
            return "paused"
        return "running" if self.node.phase else "starting"


def _informative_share(recent: Sequence[RoundFinished]) -> float | None:
    """Share of the groups that had a gradient; None without groups."""
    groups = sum(event.groups for event in recent)
    return sum(event.informative for event in recent) / groups if groups else None


def _memory() -> dict[str, int]:
    """Resident bytes of this process, now and at most."""
    import psutil

    resident = psutil.Process().memory_info().rss
    return {"rss": resident, "peak": max(resident, peak_memory())}
