"""The transport over libp2p: runs a member of a swarm in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from sapo_edge.events import Event
from sapo_edge.rollout import Rollout
from sapo_edge.swarm.config import SwarmConfig
from sapo_edge.swarm.host.logs import preserve_logging
from sapo_edge.swarm.member.member import Member
from sapo_edge.swarm.status import SwarmStatus
from sapo_edge.swarm.tally import innermost
from sapo_edge.transport import Receiver, SwarmError

if TYPE_CHECKING:
    from sapo_edge.swarm.judging.admission import Admission
    from sapo_edge.swarm.member.session import Session

RESTART_SECONDS, MAX_RESTART_SECONDS = 1.0, 60.0
"""Time before the first restart of a failed host; it doubles with each, up to the second figure."""
STEADY_SECONDS = 120.0
"""A host that ran this long starts again after `RESTART_SECONDS`."""
CLOSE_SECONDS = 5.0
"""Time limit for leaving the swarm."""

Emit = Callable[[Event], None]


class Libp2pTransport:
    """A member of a libp2p swarm. Thread-safe; all its work runs in the thread `sapo-swarm`.

    A host that fails is restarted with the same identity, after a delay that grows. The exception is counted and
    reported as a notice.

    Args:
        emit: receives notices in the swarm's thread; must return soon and not raise.
    """

    def __init__(self, config: SwarmConfig, admission: Admission, emit: Emit) -> None:
        self._member = Member(config, admission, emit)
        self._closing = threading.Event()
        self._session: Session | None = None
        self._thread = threading.Thread(target=self._run, name="sapo-swarm", daemon=True)
        self._thread.start()

    def publish(self, rollouts: Sequence[Rollout]) -> None:
        """Share rollouts of this node; returns immediately, whatever the network does.

        Raises:
            ValueError: if one of them is by another author.
        """
        self._member.publish(rollouts)

    def subscribe(self, receiver: Receiver) -> None:
        """Call `receiver`, in the swarm's thread, with each accepted rollout."""
        self._member.subscribe(receiver)

    def status(self) -> SwarmStatus:
        """A snapshot; its peers are at most a second old."""
        return self._member.status()

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
                self._member.mark_restarting()
                delay = min(2 * delay, MAX_RESTART_SECONDS)
        self._member.mark_closed()

    def _run_session(self) -> None:
        with preserve_logging():
            import trio

            from sapo_edge.swarm.member.session import Session

        async def run() -> None:
            self._session = Session(self._member)
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
            self._member.tally.notice("error", str(cause), f"swarm error: {cause.message}")
        else:
            self._member.tally.fault("host", error)
