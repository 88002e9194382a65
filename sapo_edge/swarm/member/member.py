"""What of a swarm's member survives a restart of its host: counters, records, the outbox, who listens."""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sapo_edge.events import Event
from sapo_edge.rollout import Rollout
from sapo_edge.swarm.joining.identity import readable_name
from sapo_edge.swarm.joining.membership import swarm_id
from sapo_edge.swarm.judging.admission import Admission
from sapo_edge.swarm.judging.records import RecordStore
from sapo_edge.swarm.status import SwarmStatus
from sapo_edge.swarm.tally import Tally
from sapo_edge.swarm.wire import messages as wire
from sapo_edge.swarm.wire.rejection import Rejection
from sapo_edge.transport import Receiver

if TYPE_CHECKING:
    from sapo_edge.swarm.host.traffic import Meter
    from sapo_edge.swarm.member.config import SwarmConfig

MAX_OUTBOX = 16
"""Messages that wait to be sent; the oldest gives way to a newer round's."""
MAX_BLAMED = 256
"""Peers whose rejections are counted apart."""
_OFFENCES = {"signature": Rejection.SIGNATURE, "garbage": Rejection.SHAPE, "request": Rejection.SHAPE}


class Member:
    """The state shared by the swarm's thread and those that use the transport."""

    def __init__(self, config: SwarmConfig, admission: Admission, emit: Callable[[Event], None]) -> None:
        self.config = config
        self.admission = admission
        self.emit = emit
        self.tally = Tally(emit)
        self.swarm = swarm_id(bytes.fromhex(config.manifest.digest), config.psk)
        self.records = RecordStore()
        self.outbox: deque[bytes] = deque()
        self.port = config.port
        self.wake: Callable[[], None] = lambda: None
        self._receivers: list[Receiver] = []
        self._blamed: OrderedDict[str, Counter[str]] = OrderedDict()
        self._rejections: Counter[str] = Counter()
        self._rollouts: Counter[str] = Counter()
        self._before: Counter[str] = Counter()
        self._meter: Meter | None = None
        self._lock = threading.Lock()
        peer_id = config.identity.peer_id
        self._shown = SwarmStatus("starting", peer_id, readable_name(peer_id), self.swarm.hex())

    def subscribe(self, receiver: Receiver) -> None:
        """Hand admitted rollouts to one more receiver."""
        self._receivers.append(receiver)

    def publish(self, rollouts: Sequence[Rollout]) -> None:
        """Sign rollouts, keep them for pulls, and queue one message with what fits; the others are announced."""
        signed = [wire.sign_rollout(rollout, self.swarm, self.config.identity) for rollout in rollouts]
        records = [item.record for item in signed]
        for record in records:
            self.records.add(record)
        self.admission.remember(record.digest for record in records)
        while records:
            fitting, others = wire.split(records)
            announced = [record.digest for record in others[: wire.MAX_ANNOUNCED]]
            self._enqueue(wire.encode_message(self.swarm, fitting, announced))
            records = list(others[wire.MAX_ANNOUNCED :])
        with self._lock:
            self._rollouts["out"] += len(signed)

    def _enqueue(self, message: bytes) -> None:
        with self._lock:
            self.outbox.append(message)
            while len(self.outbox) > MAX_OUTBOX:
                self.outbox.popleft()
                self.tally.count("messages dropped: outbox full")
        self.wake()

    def next_message(self) -> bytes | None:
        """Take the oldest message from the outbox."""
        with self._lock:
            return self.outbox.popleft() if self.outbox else None

    def admitted(self, signed: wire.SignedRollout) -> None:
        """Keep a rollout that passed every check, and hand it to the receivers."""
        self.records.add(signed.record)
        with self._lock:
            self._rollouts["in"] += 1
        for receiver in tuple(self._receivers):
            try:
                receiver(signed.rollout)
            except Exception as error:  # noqa: BLE001 - a receiver's fault must not end the swarm
                self.tally.fault("receiver", error)

    def blame(self, peer: str, offence: str) -> None:
        """Hold a peer to account for what only the transport sees."""
        rejection = _OFFENCES[offence]
        self.admission.reputation.record(peer, rejection, time.time())
        self.rejected(peer, [rejection])

    def ignored(self, peer: str) -> bool:
        """Whether a peer is ignored for now."""
        return bool(self.admission.reputation.ignored(peer, time.time()))

    def rejected(self, peer: str, reasons: Iterable[Rejection]) -> None:
        """Count rejections, for the peer and in all."""
        with self._lock:
            for reason in reasons:
                self._rejections[reason.value] += 1
                self._blamed.setdefault(peer, Counter())[reason.value] += 1
                self._blamed.move_to_end(peer)
            while len(self._blamed) > MAX_BLAMED:
                self._blamed.popitem(last=False)

    def rejections_of(self, peer: str) -> dict[str, int]:
        """What was refused of one peer, by reason."""
        with self._lock:
            return dict(self._blamed.get(peer, ()))

    def listening(self, addresses: tuple[str, ...], port: int, meter: Meter, wake: Callable[[], None]) -> None:
        """A host listens. Later ones of this process use the same port, because others remember it."""
        self.port = port
        self.wake = wake
        self._meter = meter
        self._show(state="alone", addresses=addresses)
        wake()

    def ended(self) -> None:
        """The host does not run any more."""
        self.wake = lambda: None
        with self._lock:
            if self._meter is not None:
                self._before.update(sent=self._meter.sent, received=self._meter.received)
            self._meter = None
        self._show(state="failed", peers=(), paused=())

    def restarts(self) -> None:
        """A new host is about to start after one that fell."""
        self._show(state="starting", restarts=self._shown.restarts + 1)

    def closed(self) -> None:
        """The owner left the swarm."""
        self._show(state="closed", peers=(), addresses=())

    def snapshot(self, company: bool, **seen: Any) -> None:
        """Renew what `status` shows.

        Args:
            company: whether a member of the swarm is connected.
            seen: fields of `SwarmStatus`.
        """
        before, state = self._shown.state, "connected" if company else "alone"
        self._show(state=state, **seen)
        if before != state and company:
            self.tally.notice("info", "connected to the swarm", "company")
        elif before == "connected":
            self.tally.notice("info", "nobody of the swarm is connected; training goes on", "alone")

    def status(self) -> SwarmStatus:
        """A snapshot; counters are of this moment, peers half a second old."""
        counts, faults = self.tally.counts, self.tally.faults
        with self._lock:
            return replace(
                self._shown,
                rollouts_out=self._rollouts["out"],
                rollouts_in=self._rollouts["in"],
                bytes_out=self._before["sent"] + (self._meter.sent if self._meter else 0),
                bytes_in=self._before["received"] + (self._meter.received if self._meter else 0),
                rejections=dict(self._rejections),
                counts=counts,
                faults=faults,
                time=time.time(),
            )

    def _show(self, **changes: Any) -> None:
        with self._lock:
            self._shown = replace(self._shown, **changes)
