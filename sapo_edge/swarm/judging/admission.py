"""Admission of rollouts: checks of all that arrives, cheapest first. The first check that fails gives the reason.

Checks of a message (`check_message`):

    ignored                 neither the neighbour that forwarded it nor its publisher is ignored
    rate                    its publisher does not send too much, see `reputation.py`
    size, version, shape    the bytes are a message, see `wire/messages.py`
    swarm                   it is for this swarm
    shape                   all its records are its publisher's

Checks of each record, in a message or pulled (`check_records`):

    size, version, shape    the body begins with version, swarm and author
    duplicate               it is not this node's own
    ignored                 its author is not ignored
    rate                    its author does not send too much; a message's was checked before
    duplicate               its digest is not known with this signature
    shape                   the body is a rollout, see `wire/record.py`
    signature               its author signed it
    duplicate               its digest is not known with another signature
    swarm                   it was created for this swarm
    age                     it is not too old, see `freshness.py`

Checks of an accepted record's task, which take longer (`check_task`), see `external.py`:

    task                    the manifest has the task
    forged                  seed and index draw its entry; question and ground truth are those of the task
    held out                the question is not held out of training
    slow                    all that was found out within a time limit

A peer is blamed only for what is certainly its own doing. A neighbour could have checked size, shape, signature and
swarm before it forwarded something. A verified signature proves who is responsible for a false task; before that, the
author's name proves nothing, and even afterwards the rollout may be a replay by somebody else.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from sapo_edge.recent import Recent
from sapo_edge.swarm.joining.identity import peer_id_of
from sapo_edge.swarm.judging.external import RejectedError, TaskCheck
from sapo_edge.swarm.judging.freshness import Freshness
from sapo_edge.swarm.judging.reputation import WEIGHTS, Reputation, cost
from sapo_edge.swarm.wire.codec import WireError
from sapo_edge.swarm.wire.messages import Message, decode_message
from sapo_edge.swarm.wire.record import RawRecord, SignedRollout, decode_record, read_author, verify_record
from sapo_edge.swarm.wire.rejection import Rejection
from sapo_edge.tasks.source import TaskSource

REMEMBERED_DIGESTS = 32768
"""Rollouts that are recognized as duplicates: those of an hour at eight times 64 a minute."""
REMEMBERED_REPEATS, HONEST_REPEATS = 8192, 3
"""Duplicates remembered with their forwarder, and how often it may send the same one: it may have been restarted."""

SENDERS_FAULT = frozenset({Rejection.SIZE, Rejection.SHAPE, Rejection.SIGNATURE, Rejection.SWARM})
"""Faults that whoever forwards a message could have noticed. Honest peers don't forward such messages."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of checking a message, or records that were pulled.

    Attributes:
        accepted: records that passed all checks but `check_task`.
        announced: digests that the sender has and this node does not.
        rejections: a reason for each rejected record, or one for the whole message. Records that follow a fault of
            the sender are not checked.
    """

    accepted: tuple[SignedRollout, ...] = ()
    announced: tuple[bytes, ...] = ()
    rejections: tuple[Rejection, ...] = ()

    @property
    def blames_sender(self) -> bool:
        """Whether the sender forwarded something that it should have rejected."""
        return not SENDERS_FAULT.isdisjoint(self.rejections)

    @property
    def may_forward(self) -> bool:
        """Whether the message may be forwarded: it has something new, and nothing else was rejected than duplicates.

        The next peer could blame this node for a record that was rejected before its signature was verified. The
        signatures of duplicates are verified ones, and without them a single record that came another way first would
        stop all others of its message.
        """
        return bool(self.accepted or self.announced) and set(self.rejections) <= {Rejection.DUPLICATE}


class Admission:
    """Checks everything that arrives. Thread-safe; no input of a peer makes it raise.

    Args:
        swarm: the swarm's id, 32 bytes.
        reputation: of peers; every outcome is recorded there.
        now: Unix seconds.
        clock: monotonic seconds.
        own: this node's peer id. Its own rollouts are duplicates when they arrive.
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
        self.reputation = reputation
        self._swarm, self._own = swarm, own
        self.task_check = TaskCheck(source)
        self.freshness = Freshness(now, clock)
        # Each with a verified signature; empty if it is not known.
        self._seen: Recent[bytes, bytes] = Recent(REMEMBERED_DIGESTS)
        self._repeats: Recent[tuple[str, bytes], int] = Recent(REMEMBERED_REPEATS)
        self._lock = threading.Lock()

    def check_message(self, data: bytes, sender: str, publisher: str) -> CheckResult:
        """Check a gossip message but for its tasks: the sender, a neighbour, forwarded what the publisher signed."""
        with self._lock:
            if self.reputation.is_ignored(sender) or self.reputation.is_ignored(publisher):
                return CheckResult(rejections=(Rejection.IGNORED,))
            # Before anything is decompressed: that costs more than all of this.
            if not self.reputation.allows(publisher, sender):
                self.reputation.postpone(publisher, sender)
                # A newcomer's budget is used up by others, too.
                if sender == publisher and self.reputation.overdraws(publisher):
                    self.reputation.penalize_flood(sender)
                return CheckResult(rejections=(Rejection.RATE,))
            try:
                message = self._decode(data, publisher)
            except WireError as error:
                self.reputation.penalize(sender, WEIGHTS[error.reason])
                return CheckResult(rejections=(error.reason,))
            # An honest peer forwards what is new to it, as often as the publisher repeats the rest of the message.
            may_repeat = bool(message.announced) and sender != publisher
            result = self._check_records(message.records, sender, publisher, may_repeat=may_repeat)
            size = max(len(data), sum(len(record.body) for record in message.records))
            if result.accepted:
                # All of it is forwarded, what was known and what is ignored included.
                self.reputation.charge(publisher, sender, cost(len(message.records), size))
            return self._with_announced(result, message.announced, sender, size)

    def check_records(self, records: Sequence[RawRecord], sender: str) -> CheckResult:
        """Check records that were pulled from a peer, except for their tasks."""
        with self._lock:
            if self.reputation.is_ignored(sender):
                return CheckResult(rejections=(Rejection.IGNORED,))
            return self._check_records(records, sender)

    def check_task(self, signed: SignedRollout) -> Rejection | None:
        """Why the task of an accepted record is rejected; None if it may be trained on.

        Takes milliseconds to seconds; call it in a worker thread.
        """
        author = signed.rollout.author
        try:
            self.task_check.run(signed.rollout)
        except RejectedError as error:
            self.reputation.penalize(author, WEIGHTS[error.reason] if error.is_authors_fault else 0.0)
            return error.reason
        self.reputation.credit(author)
        return None

    def remember(self, digests: Iterable[bytes]) -> None:
        """Treat rollouts as duplicates from now on: published ones, and those kept from before a restart."""
        with self._lock:
            for digest in digests:
                self._seen[digest] = b""

    def _decode(self, data: bytes, publisher: str) -> Message:
        """A message that passed the checks of a message; a WireError gives the reason of a failed one."""
        message = decode_message(data)
        if message.swarm != self._swarm:
            raise WireError(Rejection.SWARM, "the message is for another swarm")
        if any(peer_id_of(author) != publisher for author in {read_author(record) for record in message.records}):
            # Of a mixture, each hop would accept another part, by its own rates. And whoever could publish records of
            # others could make theirs duplicates.
            raise WireError(Rejection.SHAPE, "the message has records of others than its publisher")
        return message

    def _check_records(
        self, records: Sequence[RawRecord], sender: str, publisher: str = "", *, may_repeat: bool = True
    ) -> CheckResult:
        """Check records that arrived together.

        Args:
            publisher: their author, whose rate was checked, if they arrived in a message.
            may_repeat: whether an honest sender may send all of them again and again.
        """
        accepted: list[SignedRollout] = []
        rejections: list[Rejection] = []
        for record in records:
            try:
                signed = self._check_record(record, sender, is_gossip=bool(publisher))
            except WireError as error:
                rejections.append(error.reason)
                if error.reason in SENDERS_FAULT:
                    # Honest peers forward nothing like it, so the other records are not worth the time.
                    break
                continue
            accepted.append(signed)
            self._seen[record.digest] = record.signature
            if not publisher:
                self.reputation.charge(signed.rollout.author, sender, cost(1, len(record.body)))
            self.reputation.credit(signed.rollout.author, 0, neighbour=sender)
        if accepted:
            self.reputation.credit(sender)
        is_repeated = not may_repeat and self._is_repeated(records, sender, rejections)
        for reason, count in Counter(rejections).items():
            self.reputation.penalize(sender, _sender_weight(reason, count, is_repeated=is_repeated))
        return CheckResult(tuple(accepted), (), tuple(rejections))

    def _check_record(self, record: RawRecord, sender: str, *, is_gossip: bool) -> SignedRollout:
        """A record that passed all checks of records; a WireError gives the reason of a failed one.

        `is_gossip` says that it arrived in a message, whose author's rate was checked.
        """
        author = peer_id_of(read_author(record))
        if author == self._own:
            raise WireError(Rejection.DUPLICATE, "the rollout is this node's own")
        if self.reputation.is_ignored(author):
            raise WireError(Rejection.IGNORED, "the author is ignored")
        if not is_gossip and not self.reputation.allows(author, sender):
            raise WireError(Rejection.RATE, "the author sends too much")
        verified = self._seen.get(record.digest)
        if verified == record.signature:
            raise WireError(Rejection.DUPLICATE, "the rollout is known")
        signed = decode_record(record)
        if not verify_record(signed):
            raise WireError(Rejection.SIGNATURE, "the rollout is not signed by its author")
        if verified is not None:
            self._seen[record.digest] = record.signature
            raise WireError(Rejection.DUPLICATE, "the rollout is known")
        if signed.swarm != self._swarm:
            raise WireError(Rejection.SWARM, "the rollout is for another swarm")
        if self.freshness.is_too_old(signed.rollout, is_gossip and author == sender):
            raise WireError(Rejection.AGE, "the rollout is too old")
        return signed

    def _with_announced(self, result: CheckResult, digests: Sequence[bytes], sender: str, size: int) -> CheckResult:
        """The result of a message with the announced digests that this node does not have.

        Digests without rollouts are charged to the neighbour. With accepted rollouts, the author's rate limits such
        messages already.
        """
        unknown = tuple(digest for digest in digests if digest not in self._seen)
        if unknown and not result.accepted and not self.reputation.take_announced(sender, cost(len(unknown), size)):
            return replace(result, rejections=(*result.rejections, Rejection.RATE))
        return replace(result, announced=unknown)

    def _is_repeated(self, records: Sequence[RawRecord], sender: str, rejections: Sequence[Rejection]) -> bool:
        """Whether a message holds only records that this very sender has sent too often."""
        if set(rejections) != {Rejection.DUPLICATE} or len(rejections) < len(records):
            return False
        counts = []
        for record in records:
            counts.append(self._repeats.get((sender, record.digest), 0) + 1)
            self._repeats[sender, record.digest] = counts[-1]
        return min(counts) > HONEST_REPEATS


def _sender_weight(reason: Rejection, count: int, *, is_repeated: bool) -> float:
    """Penalty of a sender for the records of one message, or one response, that were rejected for one reason."""
    match reason:
        case Rejection.DUPLICATE:
            # Rollouts arrive by several ways, and all peers return the same recent ones.
            return WEIGHTS[reason] if is_repeated else 0.0
        case Rejection.RATE:
            # This node asked for it; and whoever sends it does not know its author's rate at this node.
            return 0.0
        case Rejection.VERSION:
            return WEIGHTS[reason]
        case _:
            return WEIGHTS[reason] * count
