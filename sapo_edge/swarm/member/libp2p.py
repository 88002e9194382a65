"""A node's connection to its swarm over libp2p: a thread of its own, behind the same Protocol as every transport."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from sapo_edge.events import Event
from sapo_edge.rollout import Rollout
from sapo_edge.swarm.host.logs import preserve_logging
from sapo_edge.swarm.member.config import SwarmConfig
from sapo_edge.swarm.member.member import Member
from sapo_edge.swarm.status import SwarmStatus
from sapo_edge.swarm.tally import innermost
from sapo_edge.transport import Receiver, SwarmError

if TYPE_CHECKING:
    from sapo_edge.swarm.judging.admission import Admission
    from sapo_edge.swarm.member.session import Session

RESTART_SECONDS, MAX_RESTART_SECONDS = 1.0, 60.0
"""Time before the first restart of a host that fell; it doubles with each, up to the second figure."""
STEADY_SECONDS = 120.0
"""A life of this length makes the next restart a first one."""
CLOSE_SECONDS = 5.0
"""Time that leaving the swarm may take."""

Emit = Callable[[Event], None]


class Libp2pTransport:
    """A member of a libp2p swarm. Thread-safe; all its work is done in the thread `sapo-swarm`.

    A host that falls is started again with the same identity, after a pause that grows. The exception is counted and
    told as a notice.

    Args:
        config: how to join.
        admission: checks whatever arrives.
        emit: receives notices, from the swarm's thread; must return soon and not raise.
    """

    def __init__(self, config: SwarmConfig, admission: Admission, emit: Emit) -> None:
        self._member = Member(config, admission, emit)
        self._closing = threading.Event()
        self._session: Session | None = None
        self._thread = threading.Thread(target=self._live, name="sapo-swarm", daemon=True)
        self._thread.start()

    def publish(self, rollouts: Sequence[Rollout]) -> None:
        """Hand out rollouts of this node; returns at once, whatever the network does.

        Raises:
            ValueError: if one of them is of another author.
        """
        self._member.publish(rollouts)

    def subscribe(self, receiver: Receiver) -> None:
        """Have `receiver` called, from the swarm's thread, with each rollout that was admitted."""
        self._member.subscribe(receiver)

    def status(self) -> SwarmStatus:
        """A snapshot; what it says of peers is at most a second old."""
        return self._member.status()

    def close(self) -> None:
        """Leave the swarm; waits a few seconds at most."""
        self._closing.set()
        session = self._session
        if session is not None:
            session.stop()
        self._thread.join(CLOSE_SECONDS)

    def _live(self) -> None:
        pause = RESTART_SECONDS
        while not self._closing.is_set():
            started = time.monotonic()
            try:
                self._one_life()
            except BaseException as error:  # noqa: BLE001 - the end of a thread would be noticed by nobody
                self._fell(error)
            if time.monotonic() - started > STEADY_SECONDS:
                pause = RESTART_SECONDS
            if not self._closing.wait(pause):
                self._member.restarts()
                pause = min(2 * pause, MAX_RESTART_SECONDS)
        self._member.closed()

    def _one_life(self) -> None:
        with preserve_logging():
            import trio

            from sapo_edge.swarm.member.session import Session

        async def life() -> None:
            self._session = Session(self._member)
            if not self._closing.is_set():
                await self._session.run()

        try:
            trio.run(life)
        except BaseException:
            if self._session is not None:
                self._session.salvage()
            raise
        finally:
            self._session = None

    def _fell(self, error: BaseException) -> None:
        if type(error).__name__ == "TrioInternalError" and error.__cause__ is not None:
            error = error.__cause__
        cause = innermost(error)
        if isinstance(cause, SwarmError):
            self._member.tally.notice("error", str(cause), f"swarm error: {cause.message}")
        else:
            self._member.tally.fault("host", error)
