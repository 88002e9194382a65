"""Admission: what is let in of all that arrives, checked in the order of cost.

    size, rate of the author, duplicate, version, shape, signature, swarm, age   `check_message`, at once
    the task made anew, question and ground truth compared, held out             `check_task`, in a worker thread

A peer is blamed for what is its own doing and for nothing else. Who forwards something could have checked size, shape,
signature and swarm before. The author is blamed for a false task alone, because its signature proves that it made it:
its name in an unverified record proves nothing, and others can send its old rollouts again.

**Age.** A rollout is too old if it is old by this node's clock *and* by its author's. How the author's clock goes is
known from its fresh rollouts, so a clock that is wrong by a day, the author's or this node's, silences nobody: what
comes through gossip from an author not heard of lately counts as fresh. What was pulled does not, unless it was
announced. A replay is caught by the memory of digests, and once that has forgotten it, it is older than what its author
sent since.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sapo_edge.errors import SapoError
from sapo_edge.swarm.joining.identity import peer_id_of
from sapo_edge.swarm.judging.external import RefusedError, verified_task
from sapo_edge.swarm.judging.reputation import WEIGHTS, Reputation
from sapo_edge.swarm.wire import messages as wire
from sapo_edge.swarm.wire.messages import RawRecord, SignedRollout, WireError
from sapo_edge.swarm.wire.rejection import Rejection
from sapo_edge.tasks.bounded import BoundedWorker, NotStartedError, OvertimeError
from sapo_edge.tasks.source import TaskSource

MAX_AGE = 3600.0
"""Seconds after which a rollout is too old to learn from."""
REMEMBERED_DIGESTS = 32768
"""Rollouts that are known again: those of `MAX_AGE` at eight times a budget of 64 a minute."""
REMEMBERED_CLOCKS = 4096
"""Authors whose clock is known."""
CLOCK_SECONDS = 2 * MAX_AGE
"""Time after which the clock of an author that sent nothing is forgotten: it may have been set meanwhile."""
REMEMBERED_REPEATS, HONEST_REPEATS = 8192, 3
"""Duplicates remembered with their forwarder; and how often it may send the same one: it may have been restarted."""
TASK_SECONDS = 5.0
"""Time to make one task anew; an honest one takes milliseconds, also on a slow computer."""
WARM_UP_SECONDS = 300.0
"""Time to load the generators and make the held-out questions, once."""

SENDERS_FAULT = frozenset({Rejection.SIZE, Rejection.SHAPE, Rejection.SIGNATURE, Rejection.SWARM})
"""What whoever forwards a message could have found out: honest peers forward nothing of the kind."""
_ONCE_A_MESSAGE = frozenset({Rejection.DUPLICATE, Rejection.AGE, Rejection.RATE, Rejection.VERSION})

_log = logging.getLogger(__name__)

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Checked:
    """What came of a message, or of records that were pulled.

    Attributes:
        accepted: passed all but `check_task`.
        announced: digests that the sender holds and this node does not.
        rejections: one for each record refused, or for the whole message. What follows a record that the sender
            should have refused itself is not looked at.
    """

    accepted: tuple[SignedRollout, ...] = ()
    announced: tuple[bytes, ...] = ()
    rejections: tuple[Rejection, ...] = ()

    @property
    def blames_sender(self) -> bool:
        """Whether the sender passed on what it should have refused itself."""
        return not SENDERS_FAULT.isdisjoint(self.rejections)

    @property
    def passes_on(self) -> bool:
        """Whether the message may be forwarded: there is something in it, and all of it was checked and is good.

        A record that was refused before its signature was looked at could get this node blamed by the next one.
        """
        return not self.rejections and bool(self.accepted or self.announced)


class Admission:
    """Checks whatever arrives. Thread-safe; never raises on anything that a peer sends.

    Args:
        swarm: the swarm's id, 32 bytes.
        source: makes tasks anew.
        reputation: of peers; told about every outcome.
        now: Unix seconds.
        clock: seconds that pass evenly, whatever the owner does to the date.
        own: this node's peer id; its own rollouts that come back are duplicates and nobody's fault.

    Attributes:
        counts: rejections by reason.
        accepted: rollouts that passed every check.
    """

    def __init__(
        self,
        swarm: bytes,
        source: TaskSource,
        reputation: Reputation,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        own: str = "",
    ) -> None:
        self.swarm = swarm
        self.source = source
        self.reputation = reputation
        self.counts: Counter[Rejection] = Counter()
        self.accepted = 0
        self._now = now
        self._clock = clock
        self._own = own
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        self._announced: OrderedDict[bytes, None] = OrderedDict()
        self._repeats: OrderedDict[tuple[str, bytes], int] = OrderedDict()
        self._clocks: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._worker = BoundedWorker()
        self._warm = False
        self._lock = threading.RLock()

    def check_message(self, data: bytes, sender: str) -> Checked:
        """Check a message of gossip, but for its tasks.

        Args:
            data: as it arrived.
            sender: peer id of the neighbour that forwarded it.
        """
        with self._lock:
            now = self._now()
            if self.reputation.ignored(sender, now):
                return self._refuse(sender, Rejection.IGNORED, now)
            try:
                message = wire.decode_message(data)
                if message.swarm != self.swarm:
                    return self._refuse(sender, Rejection.SWARM, now)
                if len({wire.author_of(record) for record in message.records}) > 1:
                    # A node gossips its own rollouts; a mixture would be let in or not by each one's rate at each hop.
                    return self._refuse(sender, Rejection.SHAPE, now)
            except WireError as error:
                return self._refuse(sender, error.reason, now)
            checked = self._check_records(message.records, sender, fresh=True)
            announced, refused = self._check_announced(message.announced, sender, now, bool(checked.accepted))
            self._count(sender, refused, now)
            return Checked(checked.accepted, announced, checked.rejections + refused)

    def check_records(self, records: Sequence[RawRecord], sender: str) -> Checked:
        """Check records that were pulled from a peer, but for their tasks."""
        with self._lock:
            if self.reputation.ignored(sender, self._now()):
                return self._refuse(sender, Rejection.IGNORED, self._now())
            return self._check_records(records, sender, fresh=False)

    def check_task(self, signed: SignedRollout) -> Rejection | None:
        """Make the task of an accepted rollout anew and compare it. Takes milliseconds to seconds: for a worker thread.

        Returns:
            Why the rollout is refused; None if it may be trained on.
        """
        author = signed.rollout.author
        reason, blamed = self._task_rejection(signed)
        with self._lock:
            now = self._now()
            if reason is None:
                self.accepted += 1
                self.reputation.record(author, None, now)
            else:
                self.counts[reason] += 1
                self.reputation.record(author, reason, now, weight=None if blamed else 0.0)
        return reason

    def remember(self, digests: Iterable[bytes]) -> None:
        """Know rollouts as duplicates: those published, and those kept from before a restart."""
        with self._lock:
            for digest in digests:
                _keep(self._seen, digest, REMEMBERED_DIGESTS, None)

    def _refuse(self, sender: str, reason: Rejection, now: float) -> Checked:
        self._count(sender, (reason,), now)
        return Checked(rejections=(reason,))

    def _check_records(self, records: Sequence[RawRecord], sender: str, *, fresh: bool) -> Checked:
        now = self._now()
        within_rate: dict[str, bool] = {}
        accepted: list[SignedRollout] = []
        rejections: list[Rejection] = []
        for record in records:
            try:
                signed = self._check_record(record, sender, now, within_rate, fresh)
            except WireError as error:
                rejections.append(error.reason)
                if error.reason in SENDERS_FAULT:
                    # Honest peers pass on nothing of the kind: the rest is not worth the time that it would take.
                    break
                continue
            accepted.append(signed)
            _keep(self._seen, record.digest, REMEMBERED_DIGESTS, None)
            self.reputation.spend(signed.rollout.author, sender, now)
            self.reputation.record(signed.rollout.author, None, now, times=0, door=sender)
        if accepted:
            self.reputation.record(sender, None, now)
        repeated = fresh and self._all_repeated(records, sender, rejections)
        self._count(sender, rejections, now, repeated=repeated, authors=within_rate)
        return Checked(tuple(accepted), (), tuple(rejections))

    def _check_record(
        self, record: RawRecord, sender: str, now: float, within_rate: dict[str, bool], fresh: bool
    ) -> SignedRollout:
        """One record through all stages; a WireError says at which one it ended."""
        author = peer_id_of(wire.author_of(record))
        if author == self._own:
            raise WireError(Rejection.DUPLICATE, "this node's own")
        if self.reputation.ignored(author, now):
            raise WireError(Rejection.IGNORED, "the author is ignored")
        # Asked once for all of a message: it is taken as a whole or not at all.
        if author not in within_rate:
            within_rate[author] = self.reputation.allows(author, sender, now)
        if not within_rate[author]:
            raise WireError(Rejection.RATE, "the author sends too much")
        if record.digest in self._seen:
            raise WireError(Rejection.DUPLICATE, "known already")
        signed = wire.decode_record(record)
        if not wire.verify_record(signed):
            raise WireError(Rejection.SIGNATURE, "not signed by its author")
        if signed.swarm != self.swarm:
            raise WireError(Rejection.SWARM, "made for another swarm")
        if self._too_old(signed, now, fresh or record.digest in self._announced):
            raise WireError(Rejection.AGE, "too old")
        return signed

    def _too_old(self, signed: SignedRollout, now: float, fresh: bool) -> bool:
        author, made, elapsed = signed.rollout.author, signed.rollout.time, self._clock()
        known = self._clocks.get(author)
        if known is not None and elapsed - known[1] > CLOCK_SECONDS:
            known = None
        # What the author's clock shows now, at least: what it showed when it made something, and the time since.
        shows = known[0] + elapsed - known[1] if known is not None else made
        if abs(now - made) > MAX_AGE and (shows - made > MAX_AGE or (known is None and not fresh)):
            return True
        _keep(self._clocks, author, REMEMBERED_CLOCKS, (max(shows, made), elapsed))
        return False

    def _check_announced(
        self, digests: Sequence[bytes], sender: str, now: float, paid: bool
    ) -> tuple[tuple[bytes, ...], tuple[Rejection, ...]]:
        """Digests to pull. Alone they name no author, so they have a budget of their own at the sender's door.

        Args:
            paid: whether verified rollouts came with them, whose author's rate bounds such messages already.
        """
        wanted = tuple(digest for digest in digests if digest not in self._seen)
        if wanted and not paid and not self.reputation.allows_announced(sender, now, len(wanted)):
            return (), (Rejection.RATE,)
        for digest in wanted:
            _keep(self._announced, digest, REMEMBERED_DIGESTS, None)
        return wanted, ()

    def _all_repeated(self, records: Sequence[RawRecord], sender: str, rejections: Sequence[Rejection]) -> bool:
        """Whether a message holds nothing but what this very sender has sent too often."""
        if set(rejections) != {Rejection.DUPLICATE} or len(rejections) < len(records):
            return False
        counts = []
        for record in records:
            key = (sender, record.digest)
            counts.append(self._repeats.get(key, 0) + 1)
            _keep(self._repeats, key, REMEMBERED_REPEATS, counts[-1])
        return min(counts) > HONEST_REPEATS

    def _count(
        self,
        sender: str,
        rejections: Sequence[Rejection],
        now: float,
        repeated: bool = False,
        authors: Iterable[str] = (),
    ) -> None:
        """Put rejections down to the sender, with a penalty where they are its fault."""
        self.counts.update(rejections)
        for reason, times in Counter(rejections).items():
            weight = WEIGHTS[reason] * (1 if reason in _ONCE_A_MESSAGE else times)
            # Who forwards another's rollouts knows neither what came here by other ways nor what this node knows of the
            # author's clock and rate; and peers that are asked for recent rollouts all give the same ones.
            if (
                reason is Rejection.AGE
                or (reason is Rejection.DUPLICATE and not repeated)
                or (reason is Rejection.RATE and sender not in authors)
            ):
                weight = 0.0
            self.reputation.record(sender, reason, now, times=times, weight=weight)

    def _task_rejection(self, signed: SignedRollout) -> tuple[Rejection | None, bool]:
        """Why the task is refused, and whether that is certainly its author's doing."""
        try:
            if not self._warm:
                # Loading a library must not be interrupted, and is nobody's fault.
                self._worker.run(lambda: self.source.held_out(0), WARM_UP_SECONDS)
                self._warm = True
        except (OvertimeError, SapoError) as error:
            _log.warning("tasks can't be made: %s", error)
            return Rejection.TASK, False
        try:
            self._worker.run(lambda: verified_task(self.source, signed.rollout), TASK_SECONDS)
        except RefusedError as refused:
            return refused.reason, True
        except NotStartedError:
            return Rejection.SLOW, False
        except OvertimeError:
            return Rejection.SLOW, True
        except Exception as error:  # noqa: BLE001 - one rollout must not end the swarm's checks; a bug, counted and logged
            _log.error("a task could not be checked: %s", type(error).__name__)
            return Rejection.TASK, False
        return None, True


def _keep(memory: OrderedDict[K, V], key: K, limit: int, value: V) -> None:
    """Put an item last, and forget the first ones beyond the limit."""
    memory[key] = value
    memory.move_to_end(key)
    while len(memory) > limit:
        memory.popitem(last=False)
