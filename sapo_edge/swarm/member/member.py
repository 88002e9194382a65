"""A member of a swarm over libp2p: its thread, and the state that survives a restart of its host."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from sapo_edge.events import Event
from sapo_edge.recent import Recent
from sapo_edge.rollout import Rollout
from sapo_edge.swarm.host.logs import preserve_logging
from sapo_edge.swarm.joining.identity import readable_name
from sapo_edge.swarm.joining.invite import swarm_id
from sapo_edge.swarm.judging.admission import Admission
from sapo_edge.swarm.judging.records import RecordStore
from sapo_edge.swarm.judging.reputation import WEIGHTS
from sapo_edge.swarm.router.ports import Ports, try_port
from sapo_edge.swarm.status import Router, SwarmStatus
from sapo_edge.swarm.tally import Tally, innermost
from sapo_edge.swarm.wire.messages import MAX_ANNOUNCED, encode_message, split_records
from sapo_edge.swarm.wire.record import SignedRollout, sign_rollout
from sapo_edge.swarm.wire.rejection import Rejection
from sapo_edge.transport import Receiver, SwarmError

if TYPE_CHECKING:
    from sapo_edge.swarm.config import SwarmConfig
    from sapo_edge.swarm.host.traffic import Meter
    from sapo_edge.swarm.member.session import Session

RESTART_SECONDS, MAX_RESTART_SECONDS = 1.0, 60.0
"""Time before the first restart of a failed host; it doubles with each, up to the second figure."""
STEADY_SECONDS = 120.0
"""A host that ran this long starts again after `RESTART_SECONDS`."""
CLOSE_SECONDS = 5.0
"""Time limit for leaving the swarm."""
MAX_OUTBOX = 16
"""Most messages that wait to be sent; the oldest is dropped first."""
MAX_BLAMED = 256
"""Peers whose rejections are counted separately."""
_OFFENCES = {"signature": Rejection.SIGNATURE, "garbage": Rejection.SHAPE, "request": Rejection.SHAPE}


class Member:
    """A transport over a libp2p swarm. Thread-safe; all its work runs in the thread `sapo-swarm`, once it is started.

    A host that fails is restarted with the same identity, after a delay that grows. The exception is counted and
    reported as a notice. `emit` receives notices in the swarm's thread; it must return soon and not raise.
    """

    def __init__(self, config: SwarmConfig, admission: Admission, emit: Callable[[Event], None]) -> None:
        self.config = config
        self.admission = admission
        self.tally = Tally(emit)
        self.swarm = swarm_id(bytes.fromhex(config.manifest.digest), config.psk)
        self.records = RecordStore()
        self.outbox: deque[bytes] = deque(maxlen=MAX_OUTBOX)
        self.ports = Ports(config.ports)
        self.wake: Callable[[], None] = lambda: None
        self._receivers: list[Receiver] = []
        self._blamed: Recent[str, Counter[str]] = Recent(MAX_BLAMED)
        self._rejections: Counter[str] = Counter()
        self._rollouts: Counter[str] = Counter()
        self._bytes_before: Counter[str] = Counter()
        self._meter: Meter | None = None
        self._lock = threading.Lock()
        peer_id = config.identity.peer_id
        router: Router = "asking" if config.map_port else ""
        self._shown = SwarmStatus(
            "starting", peer_id, readable_name(peer_id), self.swarm.hex(), router=router, private=config.psk is not None
        )
        self._closing = threading.Event()
        self._session: Session | None = None
        self._thread = threading.Thread(target=self._run, name="sapo-swarm", daemon=True)

    def start(self) -> Self:
        self._thread.start()
        return self

    def close(self) -> None:
        """Leave the swarm; waits a few seconds at most."""
        self._closing.set()
        session = self._session
        if session is not None:
            session.stop()
        self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        delay = RESTART_SECONDS
        while not self._closing.is_set():
            started = time.monotonic()
            try:
                self._run_session()
            except BaseException as error:  # noqa: BLE001 - nothing would notice the end of the thread
                self._report(error)
            if time.monotonic() - started > STEADY_SECONDS:
                delay = RESTART_SECONDS
            if not self._closing.wait(delay):
                self._show(state="starting", restarts=self._shown.restarts + 1)
                delay = min(2 * delay, MAX_RESTART_SECONDS)
        self._show(state="closed", peers=(), addresses=())

    def _run_session(self) -> None:
        with preserve_logging():
            import trio

            from sapo_edge.swarm.member.session import Session

        async def run() -> None:
            self._session = Session(self)
            if not self._closing.is_set():
                await self._session.run()

        try:
            trio.run(run)
        except BaseException:
            if self._session is not None:
                self._session.close_sockets()
            raise
        finally:
            self._session = None

    def _report(self, error: BaseException) -> None:
        if type(error).__name__ == "TrioInternalError" and error.__cause__ is not None:
            error = error.__cause__
        cause = innermost(error)
        if isinstance(cause, SwarmError):
            self.tally.notice("error", str(cause), f"swarm error: {cause.message}")
        else:
            self.tally.fault("host", error)

    def subscribe(self, receiver: Receiver) -> None:
        """Call `receiver`, in the swarm's thread, with each accepted rollout."""
        self._receivers.append(receiver)

    def publish(self, rollouts: Sequence[Rollout]) -> None:
        """Sign rollouts, keep them for pulls, and queue messages; returns immediately, whatever the network does.

        Rollouts that do not fit into a message are announced. ValueError if one of them is by another author.
        """
        records = [sign_rollout(rollout, self.swarm, self.config.identity).record for rollout in rollouts]
        for record in records:
            self.records.add(record)
        self.admission.remember(record.digest for record in records)
        while records:
            fitting, rest = split_records(records)
            announced = [record.digest for record in rest[:MAX_ANNOUNCED]]
            self._enqueue(encode_message(self.swarm, fitting, announced))
            records = rest[MAX_ANNOUNCED:]
        with self._lock:
            self._rollouts["out"] += len(rollouts)

    def _enqueue(self, message: bytes) -> None:
        with self._lock:
            if len(self.outbox) == MAX_OUTBOX:
                self.tally.count("messages dropped: outbox full")
            self.outbox.append(message)
        self.wake()

    def next_message(self) -> bytes:
        """Take the oldest message from the outbox, which has one."""
        with self._lock:
            return self.outbox.popleft()

    def accept(self, signed: SignedRollout, neighbourhood: str) -> None:
        """Keep a rollout that passed every check, and pass it to the receivers with the network from which it came."""
        self.records.add(signed.record)
        with self._lock:
            self._rollouts["in"] += 1
        for receiver in tuple(self._receivers):
            try:
                receiver(signed.rollout, neighbourhood)
            except Exception as error:  # noqa: BLE001 - an error of a receiver must not end the swarm
                self.tally.fault("receiver", error)

    def blame(self, peer: str, offence: str) -> None:
        """Record an offence that only the transport sees."""
        rejection = _OFFENCES[offence]
        self.admission.reputation.penalize(peer, WEIGHTS[rejection])
        self.count_rejections(peer, [rejection])

    def is_ignored(self, peer: str) -> bool:
        return self.admission.reputation.is_ignored(peer)

    def count_rejections(self, peer: str, reasons: Sequence[Rejection]) -> None:
        """Count rejections, for the peer and in total."""
        with self._lock:
            for reason in reasons:
                self._rejections[reason.value] += 1
                self._blamed[peer] = self._blamed.get(peer, Counter()) + Counter([reason.value])
        if Rejection.VERSION in reasons:
            self.tally.other_version()

    def rejections_of(self, peer: str) -> dict[str, int]:
        with self._lock:
            return dict(self._blamed.get(peer, ()))

    def choose_port(self) -> int:
        """The port to listen on: that of the settings, else the one that peers and invites know; 0 for any."""
        if self.config.port or not (before := self.ports.port):
            return self.config.port
        try:
            try_port(before, "0.0.0.0" if self.config.listen == "all" else "127.0.0.1")
        except OSError as error:
            self.tally.notice(
                "warning",
                f"can't listen on TCP port {before} as before ({error.strerror}): the node takes another one; send new"
                " invites, earlier ones may lead nowhere",
                "port",
            )
            return 0
        return before

    def mark_listening(self, addresses: tuple[str, ...], port: int, meter: Meter, wake: Callable[[], None]) -> None:
        self.ports.mark_listening(port)
        self.wake = wake
        self._meter = meter
        self._show(state="alone", addresses=addresses)
        wake()

    def mark_ended(self) -> None:
        self.wake = lambda: None
        with self._lock:
            if self._meter is not None:
                self._bytes_before.update(sent=self._meter.sent, received=self._meter.received)
            self._meter = None
        self._show(state="failed", peers=(), paused=())

    def snapshot(self, has_peers: bool, **fields: Any) -> None:
        """Update what `status` shows: whether a member of the swarm is connected, and fields of `SwarmStatus`."""
        before, state = self._shown.state, "connected" if has_peers else "alone"
        self._show(state=state, **fields)
        if before != state and has_peers:
            self.tally.notice("info", "connected to the swarm", "connected")
        elif before == "connected" and not has_peers:
            self.tally.notice("info", "no member of the swarm is connected; training continues", "alone")

    def status(self) -> SwarmStatus:
        """A snapshot; counters are current, peers half a second old."""
        counts, faults = self.tally.counts, self.tally.faults
        with self._lock:
            return replace(
                self._shown,
                rollouts_out=self._rollouts["out"],
                rollouts_in=self._rollouts["in"],
                bytes_out=self._bytes_before["sent"] + (self._meter.sent if self._meter else 0),
                bytes_in=self._bytes_before["received"] + (self._meter.received if self._meter else 0),
                rejections=dict(self._rejections),
                counts=counts,
                faults=faults,
                time=time.time(),
            )

    def _show(self, **changes: Any) -> None:
        with self._lock:
            self._shown = replace(self._shown, **changes)
