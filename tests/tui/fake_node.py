"""A scripted node with a real control socket: 40 finished rounds, hostile peers and texts, fixed times.

    node = ScriptedNode(Paths.default(tmp_path))
    node.start()
    node.emit(node.finished(41))      # a client sees an event, and a status that follows
    node.die()                        # as after kill -9: no goodbye, and the socket file remains
    node.stop()

The journal is real, so `history`, `rollouts`, `rollout` and the replay of events are those of a real node.
"""

from __future__ import annotations

import contextlib
import math
import socket
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from sapo_edge import events
from sapo_edge.config.settings import SETTINGS, Settings
from sapo_edge.control.journal_view import JournalReader, past_events
from sapo_edge.control.protocol import claim_socket_path
from sapo_edge.control.server import ControlServer
from sapo_edge.errors import ConfigError, UnknownTaskError
from sapo_edge.node.controlled import NodeControl
from sapo_edge.node.methods import handlers
from sapo_edge.node.person import PersonAnswers, Question, Verdict
from sapo_edge.rollout import Answer, Rollout, TaskRef
from sapo_edge.state.detail import Detail, Example
from sapo_edge.state.journal import WORKED, Journal, JournaledRollout
from sapo_edge.state.lock import StateLock
from sapo_edge.state.paths import Paths
from sapo_edge.swarm.joining.identity import readable_name
from sapo_edge.swarm.status import PeerInfo, SwarmStatus

BEGAN = 1_800_000_000.0
"""When the node was started, Unix seconds: 2027-01-15 08:00:00 UTC."""
ROUND_SECONDS = 60.0
"""Time between the ends of two rounds."""
ROUNDS = 40
"""Rounds that are finished at its start."""
BEST = 30
"""The round of the best evaluation."""
KEPT_FROM = 31
"""The first round with rollouts in the journal."""
VERSION = "0.1.0"
MODEL = "llama.cpp + torch on the CPU, SmolLM2-135M-Instruct"
MANIFEST_DIGEST = "5a" * 32
SHOWN = ("reward_own", "reward_external", "own", "external", "informative")
"""What the status has of the last round."""

OWN = "12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo"
FRIEND = "12D3KooWLRPJAA5o6e9oTCN5vPUQ1hKs9rbXJ4HhjVRJmHJ2Ln4f"
STRANGER = "12D3KooWJWoaqZhDaoEFshF7Rh1bpY9ohihFhzcW6d69Lr2NASuq"
HOSTILE = "12D3KooWEVIL\x1b[2J[bold red]\u202e"
"""An author's id of a dishonest node; a real node would not store it."""

PEERS = (
    PeerInfo(FRIEND, readable_name(FRIEND), "/ip4/192.0.2.17/tcp/4001/p2p/" + FRIEND, "out", BEGAN, True, True,
             1_234_567, 987_654, {}, 0.5),
    PeerInfo(STRANGER, readable_name(STRANGER), "/ip6/2001:db8::1234:5678:9abc:def0/tcp/44321/p2p/" + STRANGER, "in",
             BEGAN + 600, True, True, 54_321, 65_432, {"rate": 3, "forged": 1}, -2.25),
    PeerInfo("12D3KooWRELAY", "quiet-heron-007",
             "/ip4/198.51.100.7/tcp/443/p2p/12D3KooWRELAY/p2p-circuit/p2p/12D3KooWBEHIND", "out", BEGAN + 1200, False,
             False, 12, 34, {}, 0.0),
    PeerInfo(HOSTILE, "evil\x1b]0;owned\x07\x1b[31m-name\u202e",
             "/ip4/[link=file:///etc/passwd]1[/link]/tcp/\x1b[5m/p2p/x",
             "in", BEGAN + 1800, False, True, 0, 9_999_999_999_999, {"signature": 4096}, -900.0),
    PeerInfo("\U0001f980" * 12, "\u8d85\u7ea7\u957f\u7684\u540d\u5b57" * 12, "/dns4/" + "a" * 253 + "/tcp/4001",
             "unknown", BEGAN + 2400, False, True, 1, 1, {}, 0.0),
)  # fmt: skip
"""Connected peers: one honest, one with rejected rollouts, one behind a relay, two hostile."""

HOSTILE_ANSWERS = (
    "\x1b[2J\x1b[31mred\x1b[0m \x1b]8;;https://example.com\x07link\x1b]8;;\x07 <answer>1</answer>",
    "[bold red]markup[/bold red] [link=file:///etc/passwd]x[/link] [/nope] \\[escaped\\] <answer>2</answer>",
    "\u202eesrever\u202c zero\u200bwidth a\x00b\r\x08\x7f\u0301\u0301 \U0001f980\u8d85\u7ea7 <answer>3</answer>",
    "long " * 1600,
)
"""Answers of the external rollout at `HOSTILE_PLACE`."""
HOSTILE_PLACE = (40, 4)
"""Round and position of that rollout."""
QUESTION = Question(TaskRef("chain_sum", "0.1.25", 7, 4242), "State the final answer to: 17 + 25 =", MANIFEST_DIGEST)
EXPECTED = "42"


def finished(round: int) -> events.RoundFinished:
    """The event of a round. Rewards rise with a ripple; the first two and every seventh have no external rollouts."""
    rise = 0.72 * (1 - math.exp(-round / 15))
    others = None if round < 3 or round % 7 == 0 else round_to(rise * 0.9 + 0.05 * math.cos(round))
    external = 0 if others is None else 4
    return events.RoundFinished(
        round=round, reward_own=round_to(rise + 0.06 * math.sin(1.7 * round)), reward_external=others, groups=8,
        informative=3 + (round * 5) % 6, own=8 - external, external=external, tokens=3000 + 37 * (round % 11),
        seconds_generate=3.0 + 0.1 * (round % 5), seconds_update=4.0 + 0.1 * (round % 3), shared=2, received=5,
        answers=32, time=BEGAN + ROUND_SECONDS * round,
        statistics={
            "loss": round_to(0.05 * math.sin(round)), "gradient_norm": 0.4, "clip_fraction": 0.01, "entropy": 0.8,
            "mismatch_kl": 0.001, "reference_kl": 0.0, "answer_tokens": 40.0, "ended": 0.9, "groups": 8,
            "informative": 3 + (round * 5) % 6, "tokens": 2500, "steps": 1, "learning_rate": 0.0002,
        },
    )  # fmt: skip


def evaluated(round: int) -> events.HeldOut:
    """The event of an evaluation; the best is after round 30."""
    correct = {0: 4, 10: 19, 20: 55, 30: 68, 40: 66}.get(round, 60)
    share = correct / 100
    return events.HeldOut(
        round=round, accuracy=share, correct=correct, questions=100, low=round_to(max(0, share - 0.09)),
        high=round_to(min(1, share + 0.09)), time=BEGAN + ROUND_SECONDS * round + 5, split="validation",
        answers="1" * correct + "0" * (100 - correct),
    )  # fmt: skip


def details(round: int) -> Detail:
    """Details of an evaluation: two tasks, and answers that are wrong before training; the last one is hostile."""
    trained = round > 0
    examples = [
        Example(
            "chain_sum", f"State the final answer to the following arithmetic problem: {first} + 4 =", str(first + 4),
            f"<answer>{first + 4}</answer>" if trained else "I think that it is the sum of both, which", trained,
        )
        for first in (3, 17)
    ]  # fmt: skip
    question = "Find the \x1b[31m[bold]greatest[/bold] common divisor of 12 and 18."
    examples.append(Example("gcd", question, "6", HOSTILE_ANSWERS[0 if trained else 1], False))
    correct = evaluated(round).correct
    right = {"chain_sum": correct * 2 // 3, "gcd": correct - correct * 2 // 3}
    marks = {name: f"{'1' * number:0<50}" for name, number in right.items()}
    return Detail(marks, tuple(examples))


def round_to(value: float) -> float:
    """Round to six digits, which are equal on all processors."""
    return round(value, 6)


def rollouts(round: int) -> list[JournaledRollout]:
    """Four own and two external rollouts; the last own one has no gradient."""
    made = [_rollout(round, position, OWN, own=True) for position in range(4)]
    made += [_rollout(round, position, FRIEND if position == 5 else STRANGER, own=False) for position in (4, 5)]
    if round == HOSTILE_PLACE[0]:
        place = HOSTILE_PLACE[1]
        answers = tuple(Answer(text, True) for text in HOSTILE_ANSWERS)
        made[place] = replace(made[place], rollout=replace(made[place].rollout, author=HOSTILE, answers=answers))
    return made


def _rollout(round: int, position: int, author: str, *, own: bool) -> JournaledRollout:
    first, second = 10 + round, 3 + position
    flat = position == 3
    right = f"{first} plus {second} makes {first + second}.\n<answer>{first + second}</answer>"
    wrong = f"I add {first} and {second}: <answer>{first + second + 1}</answer>"
    texts = (right, right if flat else wrong, right if flat else "", right)
    rewards = (1.0, 1.0, 1.0, 1.0) if flat else (1.0, 0.0, 0.0, 1.0)
    rollout = Rollout(
        TaskRef("chain_sum", "0.1.25", 7, 100 * round + position),
        f"State the final answer to the following arithmetic problem: {first} + {second} =",
        str(first + second), tuple(Answer(text, bool(text)) for text in texts), author, round if own else round - 1,
        100 * round + position, BEGAN + ROUND_SECONDS * round - 30 + position,
    )  # fmt: skip
    return JournaledRollout(rollout, rewards, (0.0,) * 4 if flat else (1.0, -1.0, -1.0, 1.0), own)


@cache
def _past(rounds: int) -> bytes:
    """The file of a journal of so many rounds: written once, because that takes fifty transactions."""
    start = events.NodeStarted(
        model=MODEL, backend="llama_cpp", reasons=("llama.cpp on the CPU: it runs on every host",),
        settings=Settings().as_dict(), time=BEGAN,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as directory:
        journal = Journal(Path(directory, "past"))
        journal.record(start, counters={WORKED: round(7.3 * rounds)})
        if rounds:
            journal.record(evaluated(0))
            journal.record_detail("validation", 0, details(0))
        for number in range(1, rounds + 1):
            time = BEGAN + ROUND_SECONDS * number
            journal.record(finished(number), rollouts(number) if number >= KEPT_FROM else ())
            if number % 10 == 0:
                journal.record(evaluated(number))
                journal.record_detail("validation", number, details(number))
                path = f"/home/somebody/checkpoints/round-{number:06d}"
                journal.record(events.CheckpointSaved(round=number, path=path, best=number == BEST, time=time + 6))
            if number == 17:
                text = "a peer says \x1b[31m[bold]boo[/bold]\x1b[0m, and multicast does not work here"
                journal.record(events.Notice(level="warning", text=text, time=time + 7))
        journal.close()
        return Path(directory, "past").read_bytes()


class ScriptedNode(NodeControl):
    """A node without a model that a test controls.

    Args:
        paths: of its socket, lock and journal.
        rounds: number of finished rounds; 0 for a new node.
        alone: whether it has no swarm.

    Attributes:
        asked: the requests in order: "pause", "resume", "after_round", "set own=6" ...
        given: shared answers of the user.
        status_now: the reply to `status`; a test may change it, directly or with `tell`.
        refuse_settings: whether to refuse every change of a setting.
        ending: runs to its end after a request to stop.
    """

    def __init__(self, paths: Paths, *, rounds: int = ROUNDS, alone: bool = False) -> None:
        self.paths = paths
        self.asked: list[str] = []
        self.given: list[PersonAnswers] = []
        self.refuse_settings = False
        self.alone = alone
        self.live: dict[str, Any] = {name: value for name, value in Settings().as_dict().items() if SETTINGS[name].live}
        self._clock = BEGAN + ROUND_SECONDS * rounds + 10
        self._reasons: tuple[str, ...] = ()
        self._lock = threading.RLock()
        self._state_lock = StateLock(paths.lock)
        self.server: ControlServer | None = None
        self.ending: threading.Timer | None = None
        self.paths.create()
        if not paths.journal.exists():
            paths.journal.parent.mkdir(parents=True, exist_ok=True)
            paths.journal.write_bytes(_past(rounds))
        self.journal = Journal(paths.journal)
        self._reader = JournalReader(paths.journal)
        self.status_now: dict[str, Any] = self._status(rounds)

    def start(self) -> None:
        """Lock the state directory, and answer requests."""
        self._state_lock.acquire()
        server = ControlServer(claim_socket_path(self.paths), handlers(self), partial(past_events, self.journal))
        server.start()
        self.server = server

    def stop(self, *, killed: bool = False) -> None:
        """Stop in order: say goodbye, remove the socket."""
        server, self.server = self.server, None
        if server is not None:
            for client in list(server._clients) if killed else ():
                client.abort()
            server.stop()
            if killed:
                with socket.socket(socket.AF_UNIX) as left, contextlib.suppress(OSError):
                    left.bind(str(server.path))
        self._state_lock.release()
        self.journal.close()

    def die(self) -> None:
        """End as after kill -9: connections break without a last line, and the socket file remains."""
        self.stop(killed=True)

    finished = staticmethod(finished)

    def tick(self, seconds: float = 1.0) -> float:
        """Advance the node's clock, and return its time in Unix seconds; every event has a different one."""
        with self._lock:
            self._clock += seconds
            return self._clock

    def emit(self, event: events.Event) -> None:
        """Record an event, update the status, and send the event to all subscribers."""
        with self._lock:
            event = replace(event, time=self.tick(0.01 if isinstance(event, events.Progress) else 1.0))
            self.journal.record(event, rollouts(event.round) if isinstance(event, events.RoundFinished) else ())
            self.status_now.update(_changes(event, self.status_now))
        if self.server is not None:
            self.server.publish(event)

    def progress(self, phase: str, done: int, total: int, unit: str = "answers") -> None:
        self.emit(events.Progress(phase=phase, done=done, total=total, unit=unit))  # type: ignore[arg-type]

    def tell(self, **changes: Any) -> None:
        """Change fields of the status."""
        with self._lock:
            self.status_now.update(changes)

    def pause_for(self, *reasons: str) -> None:
        """Pause for these reasons; resume without any."""
        self._reasons = reasons
        self.emit(events.Paused(reasons=reasons))

    # What the control socket asks; `history`, `rollouts` and `rollout` are those of a real node.

    def status(self) -> Mapping[str, Any]:
        with self._lock:
            return dict(self.status_now)

    def pause(self) -> None:
        self.asked.append("pause")
        if "asked to pause" not in self._reasons:
            self.pause_for(*self._reasons, "asked to pause")

    def resume(self) -> None:
        self.asked.append("resume")
        self.pause_for()

    def stop_after_round(self) -> None:
        self.asked.append("after_round")
        self.tell(state="stopping")
        # Like a real node, answer the request first.
        self.ending = threading.Timer(0.05, self._end)
        self.ending.start()

    def change_settings(self, values: Mapping[str, str | int | float]) -> Mapping[str, Any]:
        for name, value in values.items():
            if name not in self.live or self.refuse_settings:
                raise ConfigError("that setting can't be changed while the node runs", "stop it first")
            self.live[name] = SETTINGS[name].check(value, "asked of the running node")
            self.asked.append(f"set {name}={self.live[name]}")
        return Settings().as_dict() | self.live

    def question(self) -> Mapping[str, Any]:
        return QUESTION.as_dict()

    def share_answers(self, given: PersonAnswers) -> Mapping[str, Any]:
        if given.manifest != MANIFEST_DIGEST:
            raise UnknownTaskError("the question is of another manifest", "answer a new question")
        self.given.append(given)
        rewards = tuple(float(f">{EXPECTED}<" in text) for text in given.answers)
        return Verdict(rewards, EXPECTED, not self.alone).as_dict()

    def _end(self) -> None:
        reason, adapter = "asked to stop", "/home/somebody/checkpoints/round-000030"
        self.emit(events.NodeStopped(reason=reason, rounds=3, adapter=adapter))
        self.stop()

    def _status(self, rounds: int) -> dict[str, Any]:
        last = finished(rounds) if rounds else None
        held_out = evaluated(rounds // 10 * 10) if rounds else None
        recent = [finished(number) for number in range(max(1, rounds - 9), rounds + 1)]
        swarm = SwarmStatus(
            state="connected", peer_id=OWN, name=readable_name(OWN), swarm=MANIFEST_DIGEST,
            addresses=(f"/ip4/192.0.2.1/tcp/40123/p2p/{OWN}",), reachable=False, clock_ahead=1.5, peers=PEERS,
            rollouts_out=120, rollouts_in=240, bytes_out=800_000, bytes_in=1_200_000,
            rejections={"rate": 3, "forged": 1, "signature": 4096}, counts={"pulled": 4}, time=BEGAN,
        )  # fmt: skip
        return {
            "v": 1, "version": VERSION, "pid": 4711, "since": BEGAN, "state": "running" if rounds else "starting",
            "paused": [], "round": rounds, "rounds": 0, "phase": "generate" if rounds else None,
            "progress": {"phase": "generate", "done": 12, "total": 32, "unit": "answers"} if rounds else None,
            "role": "trainer", "manifest": "starter", "model": MODEL, "backend": "llama_cpp", "peer_id": OWN,
            "name": readable_name(OWN),
            **{name: getattr(last, name, None) for name in SHOWN},
            "informative_share": sum(event.informative for event in recent) / (8 * len(recent)) if recent else None,
            "tokens_per_second": None if last is None else last.tokens / last.seconds_generate,
            "last_round": None if last is None else events.as_dict(last),
            "held_out": None if held_out is None else events.as_dict(held_out),
            "held_out_base": events.as_dict(evaluated(0)) if rounds else None, "comparison": None, "head_start": None,
            "best": {"round": 30, "accuracy": 0.68} if rounds >= 30 else None, "reduced": None,
            "pool": {"rollouts": 31, "bytes": 64_000}, "memory": {"rss": 1_400_000_000, "peak": 1_700_000_000},
            "limits": {"threads": 4, "others": None},
            "swarm": None if self.alone else swarm.as_dict(),
            "rejections": {} if self.alone else dict(swarm.rejections),
        }  # fmt: skip


def _changes(event: events.Event, status: Mapping[str, Any]) -> dict[str, Any]:
    match event:
        case events.Progress():
            step = {"phase": event.phase, "done": event.done, "total": event.total, "unit": event.unit}
            state = "running" if status["state"] == "starting" else status["state"]
            return {"phase": event.phase, "progress": step, "state": state}
        case events.RoundFinished():
            shown = {name: getattr(event, name) for name in ("round", *SHOWN)}
            speed = event.tokens / event.seconds_generate
            return {**shown, "last_round": events.as_dict(event), "tokens_per_second": speed}
        case events.HeldOut():
            base = status["held_out_base"] or events.as_dict(event)
            return {"held_out": events.as_dict(event), "held_out_base": base}
        case events.CheckpointSaved() if event.best and status["held_out"]:
            return {"best": {"round": event.round, "accuracy": status["held_out"]["accuracy"]}}
        case events.Paused():
            return {"paused": list(event.reasons), "state": "paused" if event.reasons else "running"}
        case _:
            return {}
