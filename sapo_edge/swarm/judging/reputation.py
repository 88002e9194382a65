"""Reputation: how much each peer may send, and who is ignored for a time. It is never shared with other nodes.

**Weights.** An offence adds the weight of its reason (`WEIGHTS`) to the peer's *penalty*. Half of a penalty is forgiven
every `HALF_LIFE` seconds.

**Rates.** An author may send `RATE` rollouts a minute, in bursts of `BURST`. Each `RATE_HALVED_BY` of penalty halves
its rate. In a large swarm it may send less: `sapo_edge/room.py` says how much, and each rollout then costs as many as
the rate has to shrink by.

**Ignored peers.** At a penalty of `IGNORE_AT` a peer is ignored for `FIRST_IGNORED` seconds. Each repetition doubles
the time, up to `LONGEST_IGNORED`.

**Newcomers.** Identities cost nothing, so a new author's own rate is not all that bounds it. The newcomers that arrive
through one neighbour share that neighbour's budget, and all newcomers share another one, beside which each network and
each established neighbour has a small part to itself, and another one for what it publishes itself. A thousand
identities therefore get no more than one, and keep nobody of another network from becoming established. In a large
swarm, those of whom a rollout was accepted before share a budget apart from the others': keys that are used once can't
fill it, and keys that are used again have an author's rate. A newcomer that finds no room there waits as long as an
author whose rounds are like this node's takes to send a rollout, and `ESTABLISHED_SECONDS` at least, so that who tries
more often is hardly heard earlier. It waits for the source whose room was used up, not for others: whoever brings what
is refused may have chosen the message and the moment.

**Established authors.** After `ESTABLISHED_AFTER` good rollouts over at least `ESTABLISHED_SECONDS`, an author has a
rate of its own and is forgotten last. Of them, at most `MAX_ESTABLISHED_PER_SOURCE` came through one source, or half of
them all. An established author that has to be ignored becomes a newcomer again.

**Sources.** The source of a peer is the neighbour through which it first arrived: its network where that has a public
address, so that one machine under many names is one source. Where room is short, the source with most peers loses the
one seen longest ago, of those with one good rollout or none apart from those with more. So a crowd makes room for
itself, and in a swarm of thousands authors are remembered until they are heard again.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from sapo_edge.recent import Recent
from sapo_edge.room import GENEROUS, Room
from sapo_edge.swarm.bucket import Shares, TokenBucket
from sapo_edge.swarm.wire.rejection import Rejection

RATE, BURST = 600.0, 256.0
"""Rollouts a minute, and most at one moment: of an established author, and of all newcomers through one neighbour."""
ROLLOUT_BYTES = 4096
"""Size of a rollout by which these count: what is larger counts as several."""
NEWCOMERS_BURST = 1024.0
"""Most rollouts of all newcomers at one moment; their rate is `RATE`, too."""
NETWORK_RATE, NETWORK_BURST = 120.0, 128.0
"""The same, of those that come from one network or through one established neighbour: what others can't use up. It is
beyond what all have in common."""
BEYOND_ROOM = 0.01
"""Penalty for a message beyond a rate that is not that of a small swarm: its author doesn't know this node's rounds."""
HALF_LIFE = 600.0
RATE_HALVED_BY = 5.0
IGNORE_AT = 20.0
"""Penalty at which a peer is ignored. Half of it remains afterwards."""
FIRST_IGNORED, LONGEST_IGNORED = 60.0, 3600.0
STRIKE_HALF_LIFE = 3600.0
"""Seconds in which half of a peer's strikes are forgotten."""
ESTABLISHED_AFTER, ESTABLISHED_SECONDS = 4, 300.0
"""Good rollouts, and seconds between the first and the last of them, that make a newcomer established.

In a swarm of thousands a node hears each author every hour or two.
"""
MAX_ESTABLISHED_PER_SOURCE = 32
MAX_NEWCOMERS, MAX_ESTABLISHED, MAX_POSTPONED = 8192, 4096, 4096
"""Peers remembered of each kind, and newcomers that wait until they are heard; together some 16 MiB."""
IGNORED_SCORE, SCORE_PER_PENALTY = -100.0, -0.2
"""GossipSub's application-specific score of an ignored peer, and per unit of penalty."""

WEIGHTS: Mapping[Rejection, float] = {
    # No honest program sends this, whatever its version.
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
    # Honest peers do this now and then, but do not flood others with it.
    Rejection.RATE: 0.1,
    Rejection.DUPLICATE: 0.2,
    # Whoever forwards a rollout can't know what this node knows of its author's clock.
    Rejection.AGE: 0.0,
    # An ignored peer that keeps sending is not ignored for longer: it would never come back.
    Rejection.IGNORED: 0.0,
}
"""Penalty of each offence."""

_Use = Literal["own", "newcomers", "announced"]
"""What a budget is for: an author's own rollouts, those of all newcomers that arrive through a neighbour, and digests
that it announces without rollouts."""


def cost(rollouts: int, size: int) -> float:
    """What is charged for rollouts, or announcements of them, that have `size` bytes together."""
    return max(rollouts, size / ROLLOUT_BYTES)


def _factor(rate: float) -> float:
    """How many rollouts one counts as, so that of `RATE` only so many a second remain."""
    return max(1.0, RATE / 60.0 / rate)


@dataclass(slots=True)
class _Peer:
    """Conduct of one peer. Times are steady seconds, which do not jump when the user sets the clock.

    Attributes:
        source: see the head of this file; "" while it is unknown.
        first_seen, last_seen: of anything from it; `first_seen` starts over when it loses its established status.
        updated: when the penalty was last computed.
        budgets: those that were used.
        is_author: whether `source` is that of its rollouts.
        was_heard: whether a rollout of it was accepted.
        strikes: how often it was ignored; decays.
        accepted: rollouts of it that passed every check, and messages of it that were good.
    """

    source: str
    first_seen: float
    last_seen: float
    updated: float
    budgets: dict[_Use, TokenBucket] = field(default_factory=dict)
    is_author: bool = False
    was_heard: bool = False
    penalty: float = 0.0
    strikes: float = 0.0
    ignored_until: float = 0.0
    accepted: int = 0
    is_established: bool = False

    def forgive(self, now: float) -> None:
        elapsed = now - self.updated
        self.updated = now
        self.penalty *= 0.5 ** (elapsed / HALF_LIFE)
        self.strikes *= 0.5 ** (elapsed / STRIKE_HALF_LIFE)

    def penalize(self, weight: float, now: float) -> None:
        self.penalty += weight
        if self.penalty >= IGNORE_AT:
            self.ignored_until = now + min(FIRST_IGNORED * 2**self.strikes, LONGEST_IGNORED)
            self.strikes += 1
            self.penalty = IGNORE_AT / 2

    @property
    def share(self) -> float:
        """Part of a full rate that its penalty leaves, up to 1."""
        return float(0.5 ** (self.penalty / RATE_HALVED_BY))

    @property
    def queue(self) -> tuple[bool, str]:
        """The queue that it is in: those with one good rollout or none are apart from the others of their source."""
        return self.is_established or self.accepted > 1, self.source

    def budget(self, use: _Use, now: Callable[[], float]) -> TokenBucket:
        """The budget for a use, at the rate that its penalty leaves."""
        budget = self.budgets.get(use)
        if budget is None:
            budget = self.budgets[use] = TokenBucket(0.0, BURST, now)
        budget.rate = RATE / 60.0 * self.share
        return budget


class _Shelf:
    """Peers, bounded in number; each queue of them in the order in which they were seen."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.peers: dict[str, _Peer] = {}
        self.queues: dict[tuple[bool, str], OrderedDict[str, None]] = {}

    def put(self, peer_id: str, peer: _Peer) -> None:
        """Add a peer as the one of its queue that was seen last."""
        self.peers[peer_id] = peer
        queue = self.queues.setdefault(peer.queue, OrderedDict())
        queue[peer_id] = None
        queue.move_to_end(peer_id)

    def take(self, peer_id: str) -> _Peer | None:
        """Remove a peer whose queue has not changed since it was put there; None if it is not there."""
        peer = self.peers.pop(peer_id, None)
        if peer is not None:
            del self.queues[peer.queue][peer_id]
            if not self.queues[peer.queue]:
                del self.queues[peer.queue]
        return peer

    def surplus(self) -> str | None:
        """The peer to remove: of the longest queue, the one seen longest ago; None within the limit."""
        if len(self.peers) <= self.limit:
            return None
        longest = max(self.queues.values(), key=len)
        return next(iter(longest))


class Reputation:
    """Conduct of authors and neighbours, by peer id. Thread-safe; its memory is bounded.

    Attributes:
        network_of: the public network of a connected neighbour; "" if it has none or is not connected.

    Args:
        now: steady seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic, room: Room | None = None) -> None:
        self.network_of: Callable[[str], str] = lambda peer_id: ""
        self._now = now
        self._room = room or Room()
        self._newcomers = _Shelf(MAX_NEWCOMERS)
        self._established = _Shelf(MAX_ESTABLISHED)
        self._postponed: Recent[tuple[str, str], float] = Recent(MAX_POSTPONED)
        self._all_newcomers, self._heard_newcomers = (
            Shares(NETWORK_RATE / 60.0, NETWORK_BURST, RATE / 60.0, NEWCOMERS_BURST, now) for _ in range(2)
        )
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._newcomers.peers) + len(self._established.peers)

    def credit(self, peer_id: str, count: int = 1, neighbour: str | None = None) -> None:
        """Record good rollouts or messages of an author or a neighbour; a count of 0 only remembers it.

        Args:
            neighbour: through which an author's rollouts arrived.
        """
        with self._lock:
            peer = self._remember(peer_id)
            self._shelf_of(peer).take(peer_id)
            if neighbour is not None and not peer.is_author:
                peer.is_author, peer.source = True, self.network_of(neighbour) or neighbour
            peer.accepted += count
            peer.is_established = peer.is_established or self._deserves_a_rate(peer)
            self._put(peer_id, peer)

    def penalize(self, peer_id: str, weight: float) -> None:
        """Add one of `WEIGHTS` to a peer's penalty, for what is certainly its own doing; 0 only remembers the peer."""
        with self._lock:
            peer = self._remember(peer_id)
            now = peer.updated
            if now >= peer.ignored_until:
                peer.penalize(weight, now)
            if peer.is_established and now < peer.ignored_until:
                self._demote(peer_id)

    def is_ignored(self, peer_id: str) -> bool:
        with self._lock:
            peer = self._find(peer_id)
            return peer is not None and peer.updated < peer.ignored_until

    def is_established(self, peer_id: str) -> bool:
        """Whether a peer has sent enough good rollouts to have a rate of its own."""
        with self._lock:
            return peer_id in self._established.peers

    def allows(self, author: str, neighbour: str) -> bool:
        """Whether an author's budget is not used up; for a newcomer, also that of its neighbour and of all newcomers.

        This runs before the signature is verified and charges nothing: anybody could name another author.
        """
        with self._lock:
            peer = self._find(author)
            if peer is not None and "own" in peer.budgets and peer.budget("own", self._now).level() <= 0:
                return False
            if peer is not None and peer.is_established:
                return True
            source = self._source(author, neighbour)
            if self._now() < self._postponed.get((author, source), -math.inf):
                return False
            if self._newcomers_budget(peer).exhausted(source):
                return False
            if author == neighbour:
                return True
            via = self._remember(neighbour)
            # A newcomer with a penalty must leave part of the budget, so that the other newcomers don't pay for it.
            reserve = BURST * (1.0 - peer.share) if peer is not None and peer is not via else 0.0
            return via.budget("newcomers", self._now).level() > reserve

    def postpone(self, author: str, neighbour: str) -> None:
        """Record that a message was refused: a newcomer waits until it is heard again from this neighbour's source."""
        with self._lock:
            if author in self._established.peers or self._room.author == math.inf:
                return
            now = self._now()
            key = (author, self._source(author, neighbour))
            until = self._postponed.get(key, -math.inf)
            # At first a node believes in few authors, and who tries most would be heard first.
            wait = max(ESTABLISHED_SECONDS, GENEROUS / self._room.author)
            # Set again in any case: whoever goes on sending is not forgotten.
            self._postponed[key] = until if now < until else now + wait

    def charge(self, author: str, neighbour: str, rollouts: float = 1.0) -> None:
        """Charge verified rollouts, by their `cost`, to an author's budget."""
        with self._lock:
            peer = self._remember(author)
            peer.budget("own", self._now).charge(rollouts * _factor(self._room.author))
            if not peer.is_established:
                price = rollouts * _factor(self._room.newcomers)
                if author != neighbour:
                    self._remember(neighbour).budget("newcomers", self._now).charge(price)
                self._newcomers_budget(peer).charge(self._source(author, neighbour), price)
            peer.was_heard = True

    def overdraws(self, author: str) -> bool:
        """Whether a neighbour that publishes beyond its budget has published too much itself; charges the attempt.

        A newcomer's budget, and that of all newcomers, is used up by others, too, which nobody is blamed for.
        """
        with self._lock:
            own = self._remember(author).budget("own", self._now)
            own.charge(1.0)
            return own.level() <= 0

    def take_announced(self, neighbour: str, digests: float) -> bool:
        """Charge announced digests, by their `cost`, to the neighbour that forwarded them.

        Returns whether its budget for them was not used up before. The budget is separate because nobody signs
        announcements: they must not use up an author's.
        """
        with self._lock:
            budget = self._remember(neighbour).budget("announced", self._now)
            if budget.level() <= 0:
                return False
            budget.charge(digests * _factor(self._room.newcomers))
            return True

    def penalize_flood(self, author: str) -> None:
        """Penalize an author that itself brings more than its budget allows."""
        is_small = self._room.author == math.inf
        self.penalize(author, WEIGHTS[Rejection.RATE] if is_small else BEYOND_ROOM)

    def score(self, peer_id: str) -> float:
        """GossipSub's application-specific score of a peer: 0 without offences, else negative."""
        with self._lock:
            peer = self._find(peer_id)
            if peer is None:
                return 0.0
            return IGNORED_SCORE if peer.updated < peer.ignored_until else SCORE_PER_PENALTY * peer.penalty

    def _source(self, author: str, neighbour: str) -> str:
        """The source of what a neighbour brings. Strangers without a public network are one: a thousand may connect.

        What neighbours publish themselves is apart from what they forward, with which others would use it up.
        """
        network = self.network_of(neighbour) or (neighbour if neighbour in self._established.peers else "")
        return f"{network} itself" if author == neighbour else network

    def _find(self, peer_id: str) -> _Peer | None:
        """A remembered peer with its penalty of this moment."""
        peer = self._established.peers.get(peer_id) or self._newcomers.peers.get(peer_id)
        if peer is not None:
            peer.forgive(self._now())
        return peer

    def _remember(self, peer_id: str) -> _Peer:
        """The peer, added if it is new, as the one seen last."""
        peer = self._find(peer_id)
        if peer is None:
            now = self._now()
            peer = _Peer(self.network_of(peer_id), now, now, now)
        peer.last_seen = peer.updated
        self._put(peer_id, peer)
        return peer

    def _shelf_of(self, peer: _Peer) -> _Shelf:
        return self._established if peer.is_established else self._newcomers

    def _put(self, peer_id: str, peer: _Peer) -> None:
        """Remember a peer as the one seen last. It makes room for itself if its own queue is the longest."""
        shelf = self._shelf_of(peer)
        shelf.put(peer_id, peer)
        if (surplus := shelf.surplus()) is not None:
            if shelf is self._established:
                self._demote(surplus)
            else:
                shelf.take(surplus)

    def _newcomers_budget(self, author: _Peer | None) -> Shares:
        """The budget that a newcomer shares with all others, or in a large swarm with those that were heard, too."""
        is_large = self._room.newcomers < math.inf
        return self._heard_newcomers if is_large and author is not None and author.was_heard else self._all_newcomers

    def _deserves_a_rate(self, peer: _Peer) -> bool:
        if peer.accepted < ESTABLISHED_AFTER or peer.last_seen - peer.first_seen < ESTABLISHED_SECONDS:
            return False
        if peer.last_seen < peer.ignored_until:
            return False
        most = max(MAX_ESTABLISHED_PER_SOURCE, len(self._established.peers) // 2)
        of_source = self._established.queues.get((True, peer.source), ())
        return len(of_source) < most

    def _demote(self, peer_id: str) -> None:
        peer = self._established.take(peer_id)
        assert peer is not None
        peer.is_established, peer.accepted, peer.first_seen = False, 0, peer.last_seen
        self._put(peer_id, peer)
