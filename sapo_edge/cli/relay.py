"""`sapo relay`: a bootstrap and relay node for a community, without a model."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sapo_edge.cli.output import narrate, print_json
from sapo_edge.errors import ConfigError, ExitCode
from sapo_edge.events import Event, Notice
from sapo_edge.state import logs
from sapo_edge.state.lock import StateLock
from sapo_edge.state.paths import Paths
from sapo_edge.state.secret import read_or_create_secret

if TYPE_CHECKING:
    from sapo_edge.swarm.visits.relay import RelayConfig, RelayStatus

DEFAULT_PORT = 4001
"""libp2p's customary port: a relay's address is written down, so it must not change."""


def relay(
    home: Path | None,
    *,
    port: int = DEFAULT_PORT,
    listen: Literal["all", "loopback"] = "all",
    announce: tuple[str, ...] = (),
    psk: bytes | None = None,
    upload: int = 0,
    download: int = 0,
    as_json: bool = False,
) -> ExitCode:
    """Run a relay in the foreground until Ctrl-C or SIGTERM.

    Its multiaddresses are printed on stdout, best first, one a line, or as one JSON object.

    Args:
        home: as of every command. The relay's key and lock are in its state directory, apart from those of a node.
        port: TCP port; 0 for any.
        listen: on all interfaces, or on this machine alone.
        announce: host names or IP addresses at which it is reached from outside.
        psk: 32 bytes, to serve one private swarm instead of open ones.
        upload, download: caps in bytes per second; 0 for none.
        as_json: print JSON.

    Returns:
        DONE.

    Raises:
        ConfigError: if an announced address is none.
        StateError: if the state directory can't be used, or another relay uses it.
        SwarmError: if the port can't be listened on.
    """
    import trio

    from sapo_edge.swarm.addresses import host_address
    from sapo_edge.swarm.host.logs import preserve_logging
    from sapo_edge.swarm.joining.identity import Identity

    for name in announce:
        try:
            host_address(name, 1, "1" * 46)
        except ValueError as error:
            raise ConfigError(
                f"{name!a} is neither a host name nor an IP address", "name one at which others reach this machine"
            ) from error
    paths = Paths.default(home)
    paths.create()
    lock = StateLock(paths.state / "relay.lock")
    lock.acquire()
    try:
        identity = Identity.from_secret(read_or_create_secret(paths.state / "relay-identity"))
        with preserve_logging():
            from sapo_edge.swarm.visits.relay import RelayConfig
        logs.configure(file=paths.state / "relay.log", stderr=False)
        config = RelayConfig(identity, port, listen, announce, psk, upload, download)
        trio.run(partial(_serve, config, as_json))
    finally:
        lock.release()
    return ExitCode.DONE


async def _serve(config: RelayConfig, as_json: bool) -> None:
    import trio

    from sapo_edge.swarm.tally import Tally
    from sapo_edge.swarm.visits.relay import run_relay

    async with trio.open_nursery() as nursery:
        await nursery.start(_until_signal, nursery.cancel_scope.cancel)
        await run_relay(config, Tally(_tell), partial(_ready, as_json), _Reporter().report)


async def _until_signal(stop: Callable[[], None], *, task_status: Any) -> None:
    import trio

    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            narrate("stopping; nodes go on without this relay")
            stop()
            return


def _tell(event: Event) -> None:
    if isinstance(event, Notice):
        narrate(event.text)


def _ready(as_json: bool, addresses: tuple[str, ...]) -> None:
    if as_json:
        print_json({"addresses": addresses})
    else:
        print("\n".join(addresses), flush=True)
        narrate("relaying; give one of these addresses to the members as their bootstrap. Ctrl-C ends it")


class _Reporter:
    """Writes to the log what a relay does, when that changes."""

    def __init__(self) -> None:
        self._before: tuple[int, ...] = ()

    async def report(self, status: RelayStatus) -> None:
        now = (status.connections, status.reservations, status.circuits)
        if now != self._before:
            self._before = now
            logging.getLogger("sapo_edge.relay").info(
                "%d connections, %d reservations, %d circuits, %.1f MB sent, %.1f MB received",
                *now, status.sent / 1e6, status.received / 1e6,
            )  # fmt: skip
