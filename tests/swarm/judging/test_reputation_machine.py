"""Reputation and admission of two honest nodes, one behind the other, while attackers send whatever they like.

Invariants: an honest author or relay gets no penalty by what others do, what an established author publishes always
arrives, and an attacker is ignored for exactly as long as stated.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest import mock

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sapo_edge.swarm.joining.identity import peer_id_of
from sapo_edge.swarm.judging import reputation as module
from sapo_edge.swarm.judging.admission import HONEST_REPEATS, Admission, CheckResult
from sapo_edge.swarm.judging.reputation import ESTABLISHED_AFTER, ESTABLISHED_SECONDS, FIRST_IGNORED, Reputation
from sapo_edge.swarm.wire.messages import encode_message
from sapo_edge.swarm.wire.record import RawRecord, SignedRollout, read_author
from sapo_edge.swarm.wire.rejection import Rejection
from tests.fakes import Clock
from tests.machines import machine_settings
from tests.swarm.judging.sums import HELD_OUT, OTHER, SWARM, TODAY, Sums, peer, signed_rollout

RELAY, AUTHOR, NEWCOMER, LAST, ATTACKERS = 1, 2, 3, 4, tuple(range(5, 9))
ROUNDING = 1e-3
"""Seconds by which the sums of decayed strikes, here and there, may differ."""
SMALL_BURST = 7
"""In place of `BURSTS`, so that a few messages use them up."""
BURSTS = ("BURST", "NEWCOMERS_BURST", "NETWORK_BURST")
KINDS = ("new", "old", "false signature", "other swarm", "false task", "held out", "stolen", "aged")
"""What an attacker's record may be; "old" is one that was sent before, "stolen" one of an honest author."""
Message = tuple[tuple[str, ...], int]
MESSAGES: tuple[Message, ...] = (
    (("new",), 0), (("new", "new"), 1), (("old",), 0), (("old",), 1), (("old", "new"), 0), ((), 1), (("aged",), 0),
    (("false task",), 0), (("held out",), 0), (("new", "false signature"), 0), (("new", "other swarm"), 0),
    (("old", "stolen"), 0), (("new", "stolen"), 1), (("new",) * 5, 0),
)  # fmt: skip
"""An attacker's messages: kinds of the records, and number of announced digests, which are new ones each time."""


class HonestNode:
    """A node's admission, the records that it serves, and its clocks."""

    def __init__(self, number: int, wall: float, steady: Clock) -> None:
        self.peer_id = peer(number)
        self.wall, self.steady = Clock(), steady
        self.wall.now = wall
        self.records: list[RawRecord] = []
        self.start()

    def start(self) -> None:
        """Start, without what an earlier run remembered."""
        self.reputation = Reputation(self.steady)
        self.admission = Admission(SWARM, Sums(), self.reputation, self.wall, self.steady, self.peer_id)

    def receive(self, data: bytes, sender: str, publisher: str) -> CheckResult:
        result = self.admission.check_message(data, sender, publisher)
        self.keep(result)
        return result

    def keep(self, result: CheckResult) -> None:
        for signed in result.accepted:
            if self.admission.check_task(signed) is None:
                self.records.append(signed.record)


class ReputationMachine(RuleBasedStateMachine):
    """Messages reach the node `last` directly or through `relay`."""

    @initialize()
    def start(self) -> None:
        self.patches = [mock.patch.object(module, name, SMALL_BURST) for name in BURSTS]
        for patch in self.patches:
            patch.start()
        self.steady = Clock()
        self.today = TODAY
        self.relay = HonestNode(RELAY, self.today, self.steady)
        self.last = HonestNode(LAST, self.today, self.steady)
        self.sequence = 0
        self.restarts = 0
        self.old: dict[int, list[RawRecord]] = {number: [] for number in (RELAY, AUTHOR, NEWCOMER, *ATTACKERS)}
        self.honest_messages: list[tuple[bytes, int]] = []
        self.strikes: dict[str, list[float]] = {peer(number): [] for number in ATTACKERS}
        self.until: dict[str, float] = dict.fromkeys(self.strikes, 0.0)
        self.establish()

    def establish(self) -> None:
        for _ in range(ESTABLISHED_AFTER + 1):
            self.publish(AUTHOR, RELAY)
            self.pass_time(ESTABLISHED_SECONDS / ESTABLISHED_AFTER)

    # What honest nodes do.

    def pass_time(self, seconds: float) -> None:
        self.steady.now += seconds
        self.today += seconds
        for node in (self.relay, self.last):
            node.wall.now += seconds

    def publish(self, author: int, way: int) -> bool:
        """An honest node publishes one rollout, directly or through the relay; whether it arrives."""
        # The rate is 10 a second.
        self.pass_time(0.1)
        record = self.make("new", author)
        data = encode_message(SWARM, [record], [])
        self.honest_messages.append((data, author))
        return any(item.record == record for item in self.send(data, author, way))

    @rule(way=st.sampled_from([AUTHOR, RELAY]))
    def an_established_author_publishes(self, way: int) -> None:
        arrived = self.publish(AUTHOR, way)
        # By a clock that is wrong, what others bring seems old or from tomorrow.
        assert arrived or (way == RELAY and abs(self.last.wall.now - self.today) > 3600)

    @rule()
    def the_last_pulls(self) -> None:
        with self.noting_bans():
            self.last.keep(self.last.admission.check_records(self.relay.records[-20:], self.relay.peer_id))

    @precondition(lambda self: self.restarts < HONEST_REPEATS - 1)
    @rule()
    def the_relay_restarts(self) -> None:
        self.restarts += 1
        self.relay.start()
        self.establish()

    # What attackers do.

    @rule(author=st.sampled_from(ATTACKERS), messages=st.lists(st.sampled_from(MESSAGES), min_size=1, max_size=4))
    def an_attacker_publishes(self, author: int, messages: list[Message]) -> None:
        for kinds, announced in messages:
            for way in (RELAY, author):
                # Budgets that earlier attacks used up are full again.
                self.pass_time(1.0)
                for _ in range(9):
                    records = [self.make(kind, author) for kind in kinds]
                    digests = [secrets.token_bytes(32) for _ in range(announced)]
                    self.send(encode_message(SWARM, records, digests), author, way)
            self.newcomers_publish()

    def newcomers_publish(self) -> None:
        for newcomer in (NEWCOMER, RELAY):
            self.publish(newcomer, newcomer)

    @rule()
    def all_attackers_flood(self) -> None:
        for author in ATTACKERS * 3:
            self.send(encode_message(SWARM, [self.make("new", author) for _ in range(5)], []), author, author)
        self.newcomers_publish()

    @rule(author=st.sampled_from(ATTACKERS), way=st.sampled_from([ATTACKERS[0], RELAY]))
    def an_attacker_sends_garbage(self, author: int, way: int) -> None:
        self.send(secrets.token_bytes(40), author, way)

    @rule(attacker=st.sampled_from(ATTACKERS[:2]), bans=st.integers(1, 3), rest=st.sampled_from([-30.0, 1.0, 1800.0]))
    def an_attacker_is_banned(self, attacker: int, bans: int, rest: float) -> None:
        for _ in range(bans):
            for _ in range(9):
                # An offence that only the transport sees; the last ones come while the attacker is ignored.
                with self.noting_bans():
                    self.last.reputation.penalize(peer(attacker), module.WEIGHTS[Rejection.SHAPE])
                self.attackers_are_ignored_as_long_as_stated()
                self.pass_time(0.7)
            self.pass_time(max(0.0, self.until[peer(attacker)] - self.steady.now + rest))
            self.attackers_are_ignored_as_long_as_stated()
            self.an_attacker_publishes(attacker, [((), 1)])

    @rule(sender=st.sampled_from(ATTACKERS), way=st.sampled_from([ATTACKERS[0], RELAY]), which=st.integers(0, 9))
    def an_attacker_replays(self, sender: int, way: int, which: int) -> None:
        data, publisher = self.honest_messages[which % len(self.honest_messages)]
        self.send(data, publisher, way, sender)

    @rule(attacker=st.sampled_from(ATTACKERS), kinds=st.lists(st.sampled_from(KINDS), max_size=9))
    def the_relay_pulls_from_an_attacker(self, attacker: int, kinds: list[str]) -> None:
        records = [self.make(kind, attacker) for kind in kinds]
        self.relay.keep(self.relay.admission.check_records(records, peer(attacker)))

    @rule(seconds=st.sampled_from([1.0, 30.0, 60.0, 300.0, 3600.0]))
    def time_passes(self, seconds: float) -> None:
        self.pass_time(seconds)

    @rule(days=st.sampled_from([-1, 1]), of=st.sampled_from(["relay", "last"]))
    def a_clock_is_set(self, days: int, of: str) -> None:
        getattr(self, of).wall.now += 86_400 * days

    def make(self, kind: str, author: int) -> RawRecord:
        if kind == "old" and self.old[author]:
            return self.old[author][0]
        if kind == "stolen":
            return self.old[AUTHOR][-1]
        self.sequence += 1
        record = signed_rollout(
            author, self.sequence, self.today - (7200.0 if kind == "aged" else 0.0),
            OTHER if kind == "other swarm" else SWARM, HELD_OUT if kind == "held out" else None,
            **({"ground_truth": "lie"} if kind == "false task" else {}),
        ).record  # fmt: skip
        if kind == "false signature":
            return RawRecord(record.body, bytes(64))
        if kind == "new":
            self.old[author].append(record)
        return record

    def send(self, data: bytes, publisher: int, way: int, sender: int | None = None) -> Sequence[SignedRollout]:
        """Send a message to the last node, through the relay if that is on the way; what the last node accepts."""
        first, name = peer(publisher if sender is None else sender), peer(publisher)
        if way != RELAY or publisher == RELAY:
            return self.received(self.last, data, first, name)
        if self.relay.receive(data, first, name).may_forward:
            return self.received(self.last, data, self.relay.peer_id, name)
        return ()

    def received(self, node: HonestNode, data: bytes, sender: str, publisher: str) -> Sequence[SignedRollout]:
        now = self.steady.now
        is_ignored = any(now < self.until.get(name, 0.0) - ROUNDING for name in (sender, publisher))
        with self.noting_bans():
            result = node.receive(data, sender, publisher)
        assert not is_ignored or not (result.accepted or result.may_forward)
        return result.accepted

    @contextmanager
    def noting_bans(self) -> Iterator[None]:
        """Compute for how long attackers are ignored whom the last node bans in this context."""
        is_ignored, now = self.last.reputation.is_ignored, self.steady.now
        free = [name for name in self.strikes if not is_ignored(name)]
        yield
        for name in filter(is_ignored, free):
            strikes = self.strikes[name]
            weight = sum(0.5 ** ((now - strike) / module.STRIKE_HALF_LIFE) for strike in strikes)
            self.until[name] = now + min(FIRST_IGNORED * 2**weight, module.LONGEST_IGNORED)
            strikes.append(now)

    @invariant()
    def nobody_honest_is_blamed(self) -> None:
        for node, numbers in ((self.last, (RELAY, AUTHOR, NEWCOMER)), (self.relay, (AUTHOR,))):
            for number in numbers:
                assert node.reputation.score(peer(number)) == 0.0

    @invariant()
    def attackers_are_ignored_as_long_as_stated(self) -> None:
        for name, until in self.until.items():
            if abs(self.steady.now - until) > ROUNDING:
                assert self.last.reputation.is_ignored(name) == (self.steady.now < until)

    @invariant()
    def only_true_rollouts_are_kept(self) -> None:
        for node in (self.relay, self.last):
            kept = [record.digest for record in node.records]
            assert len(kept) == len(set(kept)) or self.restarts
            assert {peer_id_of(read_author(record)) for record in node.records} <= set(map(peer, self.old))

    def teardown(self) -> None:
        for patch in getattr(self, "patches", ()):
            patch.stop()


TestReputation = ReputationMachine.TestCase
TestReputation.settings = machine_settings(examples=12, steps=20, long=3000)
