"""What a node remembers of others' conduct: who may send how much, and who is ignored for a time.

A peer's *penalty* grows with each offence and halves every `HALF_LIFE` seconds. Its rate falls with it; at `IGNORE_AT`
the peer is ignored, longer at each repetition. Nothing here is shared with others: there is nobody to believe about it.

Identities cost nothing, so a new one has no rate of its own. All newcomers that one neighbour brings share a budget,
the neighbour's *door*, and all doors of strangers share another one: a thousand identities get no more than one. Who
sent enough good rollouts is *established*, with a rate of its own, and is forgotten last. Through one door only so many
are established.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sapo_edge.swarm.bucket import TokenBucket
from sapo_edge.swarm.wire.rejection import Rejection

RATE, BURST = 600.0, 256.0
"""Rollouts a minute of an established author, and of all newcomers of a neighbour together; and how many at once."""
STRANGERS_BURST = 1024.0
"""Newcomers' rollouts at once through all neighbours that are not established themselves; they share `RATE`, too."""
HALF_LIFE = 600.0
"""Seconds in which half of a penalty is forgiven."""
RATE_HALVED_BY = 5.0
"""Penalty that halves a peer's rate."""
IGNORE_AT = 20.0
"""Penalty at which a peer is ignored; it comes back with half of it."""
FIRST_IGNORED, LONGEST_IGNORED = 60.0, 3600.0
"""Seconds for which a peer is ignored the first time; they double with each strike, up to the second figure."""
STRIKE_HALF_LIFE = 3600.0
"""Seconds in which half of a peer's strikes are forgotten."""
ESTABLISHED_AFTER, ESTABLISHED_SECONDS = 16, 300.0
"""Good rollouts and acquaintance that make a newcomer established."""
MAX_PER_DOOR = 32
"""Established authors that came through one neighbour."""
MAX_NEWCOMERS, MAX_ESTABLISHED = 1024, 512
"""Peers remembered of either kind."""
IGNORED_SCORE, SCORE_PER_PENALTY = -100.0, -0.2
"""GossipSub's application-specific score of an ignored peer, and of one unit of penalty."""

WEIGHTS: Mapping[Rejection, float] = {
    # What no honest program sends, whatever its version.
    Rejection.SIZE: 4.0,
    Rejection.SHAPE: 4.0,
    Rejection.SIGNATURE: 4.0,
    Rejection.SWARM: 4.0,
    Rejection.FORGED: 10.0,
    Rejection.HELD_OUT: 10.0,
    Rejection.SLOW: 10.0,
    # Useless, but a sign of another version rather than of malice.
    Rejection.VERSION: 0.02,
    Rejection.TASK: 0.25,
    # Happens to honest peers that were away, or are fast; a flood of it is none of theirs.
    Rejection.RATE: 0.1,
    Rejection.DUPLICATE: 0.2,
    Rejection.AGE: 0.2,
    # An ignored peer that goes on is not ignored for longer: it would never come back.
    Rejection.IGNORED: 0.0,
}
"""Penalty of each offence."""


@dataclass(frozen=True, slots=True)
class PeerRecord:
    """What is known of a peer, for people.

    Attributes:
        peer_id: of an author, a neighbour, or both.
        accepted: rollouts of it that passed every check, and messages of it that were good.
        rejections: what was refused, by reason.
        penalty: as it is now.
        rate: rollouts a minute that it may send; 0 while it is ignored.
        ignored_for: seconds for which it is still ignored.
        established: whether it has a rate of its own.
        last_seen: Unix seconds.
    """

    peer_id: str
    accepted: int
    rejections: Mapping[Rejection, int]
    penalty: float
    rate: float
    ignored_for: float
    established: bool
    last_seen: float


def _budget_bucket() -> TokenBucket:
    return TokenBucket(RATE / 60.0, BURST)


@dataclass(slots=True)
class _Peer:
    """Conduct of one peer. Times are Unix seconds, and may jump when the owner sets the clock.

    Attributes:
        first, last: seen.
        at: when the penalty was worked out.
        door: the neighbour that brought it first; None if it is one itself.
        own: budget of an established author.
        newcomers: budget of all newcomers that it brings.
        announced: budget of digests that it brings without rollouts.
    """

    first: float
    last: float
    at: float
    door: str | None = None
    penalty: float = 0.0
    strikes: float = 0.0
    ignored_until: float = 0.0
    accepted: int = 0
    established: bool = False
    rejections: dict[Rejection, int] = field(default_factory=dict)
    own: TokenBucket = field(default_factory=_budget_bucket)
    newcomers: TokenBucket = field(default_factory=_budget_bucket)
    announced: TokenBucket = field(default_factory=_budget_bucket)

    def forgive(self, now: float) -> None:
        elapsed = max(0.0, now - self.at)
        self.at = now
        self.penalty *= 0.5 ** (elapsed / HALF_LIFE)
        self.strikes *= 0.5 ** (elapsed / STRIKE_HALF_LIFE)
        # The clock was set back: nobody stays ignored for the hours that it lost.
        self.ignored_until = min(self.ignored_until, now + LONGEST_IGNORED)

    def offend(self, weight: float, now: float) -> None:
        self.penalty += weight
        if self.penalty >= IGNORE_AT:
            self.ignored_until = now + min(FIRST_IGNORED * 2**self.strikes, LONGEST_IGNORED)
            self.strikes += 1
            self.penalty = IGNORE_AT / 2

    @property
    def share(self) -> float:
        """What its penalty leaves of a rate."""
        return float(0.5 ** (self.penalty / RATE_HALVED_BY))

    @property
    def rate(self) -> float:
        """Rollouts a second."""
        return RATE / 60.0 * self.share


class Reputation:
    """Conduct of authors and neighbours, by peer id. Thread-safe; bounded however many identities appear.

    Args:
        now: Unix seconds.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._newcomers: OrderedDict[str, _Peer] = OrderedDict()
        self._established: OrderedDict[str, _Peer] = OrderedDict()
        self._through: Counter[str] = Counter()
        self._strangers = TokenBucket(RATE / 60.0, STRANGERS_BURST)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._newcomers) + len(self._established)

    def record(
        self,
        peer: str,
        outcome: Rejection | None,
        now: float,
        *,
        times: int = 1,
        weight: float | None = None,
        door: str | None = None,
    ) -> None:
        """Remember what came of something that a peer sent.

        Args:
            peer: to whom it is put down: only for what is certainly its own doing.
            outcome: why it was refused; None if it was good.
            now: Unix seconds.
            times: how often.
            weight: penalty of all of them together; without it that of `WEIGHTS`, each time.
            door: the neighbour that brought it.
        """
        with self._lock:
            known = self._remember(peer, now)
            if known.door is None:
                known.door = door
            if outcome is None:
                known.accepted += times
                self._establish(peer, known)
            else:
                known.rejections[outcome] = known.rejections.get(outcome, 0) + times
                if now >= known.ignored_until:
                    known.offend(times * WEIGHTS[outcome] if weight is None else weight, now)
                if known.established and now < known.ignored_until:
                    self._demote(peer)

    def ignored(self, peer: str, now: float) -> bool:
        """Whether a peer is ignored for now."""
        with self._lock:
            known = self._find(peer)
            if known is None:
                return False
            known.forgive(now)
            return now < known.ignored_until

    def established(self, peer: str) -> bool:
        """Whether a peer has sent enough good rollouts to have a rate of its own."""
        with self._lock:
            return peer in self._established

    def allows(self, author: str, door: str, now: float) -> bool:
        """Whether an author's rate, or as a newcomer its neighbour's, has something left.

        Asked before a signature is verified, so it costs the author nothing: anybody can write its name.
        """
        with self._lock:
            bucket, reserve = self._budget(author, door, now)
            if self._strange(author, door) and self._strangers.level(now) <= 0:
                return False
            return bucket.level(now) > reserve

    def allows_announced(self, door: str, now: float, digests: int) -> bool:
        """Whether a neighbour's budget for announcements has something left; charges them if so.

        It is apart from the others, so that announcements, which nobody signs, silence no author.
        """
        with self._lock:
            neighbour = self._remember(door, now)
            neighbour.announced.rate = neighbour.rate
            if neighbour.announced.level(now) <= 0:
                return False
            neighbour.announced.charge(digests, now)
            return True

    def spend(self, author: str, door: str, now: float, rollouts: int = 1) -> None:
        """Charge rollouts that an author did send."""
        with self._lock:
            bucket, _ = self._budget(author, door, now)
            bucket.charge(rollouts, now)
            if self._strange(author, door):
                self._strangers.charge(rollouts, now)

    def rate(self, peer: str) -> float:
        """Rollouts a minute that a peer may send, 0 while it is ignored."""
        now = self._now()
        with self._lock:
            known = self._find(peer)
            if known is None:
                return RATE
            known.forgive(now)
            return 0.0 if now < known.ignored_until else RATE * known.share

    def score(self, peer: str) -> float:
        """GossipSub's application-specific score: 0 for no reason to complain, else negative."""
        now = self._now()
        with self._lock:
            known = self._find(peer)
            if known is None:
                return 0.0
            known.forgive(now)
            return IGNORED_SCORE if now < known.ignored_until else SCORE_PER_PENALTY * known.penalty

    def table(self) -> list[PeerRecord]:
        """What is known of each peer, those seen last first."""
        now = self._now()
        with self._lock:
            peers = [*self._newcomers.items(), *self._established.items()]
            records = []
            for peer, known in peers:
                known.forgive(now)
                waiting = max(0.0, known.ignored_until - now)
                records.append(
                    PeerRecord(
                        peer,
                        known.accepted,
                        dict(known.rejections),
                        known.penalty,
                        0.0 if waiting else RATE * known.share,
                        waiting,
                        known.established,
                        known.last,
                    )
                )
        return sorted(records, key=lambda record: -record.last_seen)

    def _strange(self, author: str, door: str) -> bool:
        """Whether neither is established: connecting under a thousand names must not give a thousand budgets."""
        return author not in self._established and door not in self._established

    def _find(self, peer: str) -> _Peer | None:
        return self._established.get(peer) or self._newcomers.get(peer)

    def _remember(self, peer: str, now: float) -> _Peer:
        known = self._find(peer)
        if known is None:
            known = self._newcomers[peer] = _Peer(now, now, now)
        known.forgive(now)
        known.last = now
        (self._established if known.established else self._newcomers).move_to_end(peer)
        while len(self._newcomers) > MAX_NEWCOMERS:
            self._newcomers.popitem(last=False)
        return known

    def _budget(self, author: str, door: str, now: float) -> tuple[TokenBucket, float]:
        """The bucket that an author draws on, and what must be left in it."""
        known = self._established.get(author)
        if known is not None:
            known.forgive(now)
            known.own.rate = known.rate
            return known.own, 0.0
        neighbour = self._remember(door, now)
        newcomer = self._newcomers.get(author)
        # The others at the door don't pay for a newcomer's offences: it just has to wait until the bucket is fuller.
        reserve = BURST * (1.0 - newcomer.share) if newcomer is not None and newcomer is not neighbour else 0.0
        neighbour.newcomers.rate = neighbour.rate
        return neighbour.newcomers, reserve

    def _establish(self, peer: str, known: _Peer) -> None:
        acquainted = known.last - known.first >= ESTABLISHED_SECONDS
        door = known.door or peer
        if known.established or known.accepted < ESTABLISHED_AFTER or not acquainted:
            return
        if known.last < known.ignored_until or self._through[door] >= MAX_PER_DOOR:
            return
        del self._newcomers[peer]
        self._established[peer] = known
        known.established = True
        self._through[door] += 1
        if len(self._established) > MAX_ESTABLISHED:
            self._demote(next(iter(self._established)))

    def _demote(self, peer: str) -> None:
        known = self._established.pop(peer)
        known.established, known.accepted, known.first = False, 0, known.last
        door = known.door or peer
        self._through[door] -= 1
        if not self._through[door]:
            del self._through[door]
        self._newcomers[peer] = known
        while len(self._newcomers) > MAX_NEWCOMERS:
            self._newcomers.popitem(last=False)
