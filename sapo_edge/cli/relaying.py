"""The program of `sapo relay`, which runs for weeks: without the parser of the command line, which takes 12 MB."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sapo_edge.care.garbage import set_libraries_aside
from sapo_edge.care.signals import until_signal
from sapo_edge.cli.ending import run_to_end
from sapo_edge.cli.output import print_json
from sapo_edge.errors import ConfigError
from sapo_edge.events import Event, Notice
from sapo_edge.plain import narrate
from sapo_edge.state import logs
from sapo_edge.state.lock import StateLock
from sapo_edge.state.paths import Paths
from sapo_edge.state.secret import read_or_create_secret
from sapo_edge.swarm.status import TROUBLES

if TYPE_CHECKING:
    from sapo_edge.swarm.visits.relay import RelayConfig

DEFAULT_PORT = 4001
"""libp2p's usual port: people write a relay's address down, so it must not change."""
DEFAULT_MEMBERS = 1000
"""About 53 MB of memory when all of them are connected, beside 57 MB for the program."""
OTHER_FILES = 64
"""Open files beside the members' sockets, generously: log, lock, listening sockets, probes of ports."""


def main() -> None:
    """Run a relay with the options of `run_relay` that are this program's argument, as JSON."""
    sys.exit(run_to_end(partial(_run, sys.argv[1])))


def _run(argument: str) -> None:
    from sapo_edge.swarm.joining.membership import Membership

    options = json.loads(argument)
    home = None if options["home"] is None else Path(options["home"])
    swarm = Membership(Paths.default(home).state).current
    if swarm is not None and swarm.key is not None:
        options |= {"psk": swarm.key, "swarm": swarm.manifest}
    run_relay(**(options | {"home": home, "announce": tuple(options["announce"])}))


def check_names(announce: tuple[str, ...]) -> None:
    """Raise an error if one of these is neither a host name nor an IP address."""
    from sapo_edge.swarm.addresses import host_address

    for name in announce:
        try:
            host_address(name, 1, "1" * 46)
        except ValueError as error:
            remedy = "name one at which others reach this machine"
            raise ConfigError(f"{name!a} is neither a host name nor an IP address", remedy) from error


def run_relay(
    home: Path | None,
    *,
    announce: tuple[str, ...] = (),
    public: bool = False,
    contacts: tuple[tuple[str, int], ...] | None = None,
    as_json: bool = False,
    **settings: Any,
) -> None:
    """Run a relay in the foreground until Ctrl-C, SIGTERM or SIGHUP.

    It prints its multiaddresses on stdout, best first, one a line, or as one JSON object.

    Args:
        home: as of every command. The relay's key and lock are in its state directory, apart from those of a node.
        public: whether strangers find it in the Mainline DHT, or members of the private swarm.
        contacts: host and port of DHT nodes for the first contact; None for those that others run.
        settings: others of `RelayConfig`.
    """
    from sapo_edge.swarm.host.absent import be_lean
    from sapo_edge.swarm.host.logs import preserve_logging
    from sapo_edge.swarm.joining.identity import Identity

    check_names(announce)
    if public and find_spec("libtorrent") is None:
        what, remedy = TROUBLES["library"]
        raise ConfigError(f"nobody would find a relay with --public: {what}", remedy)
    paths = Paths.default(home)
    paths.create()
    remedy = "stop it with Ctrl-C in its terminal or with `kill`; or use --home for a second one"
    with StateLock(paths.relay_lock, "relay", remedy):
        identity = Identity(read_or_create_secret(paths.state / "relay-identity"))
        with preserve_logging():
            be_lean(is_private=settings.get("psk") is not None)
            from sapo_edge.swarm.rendezvous.rendezvous import CONTACTS
            from sapo_edge.swarm.visits.relay import RelayConfig
        logs.configure(paths.state / "relay.log")
        found_by = () if not public else CONTACTS if contacts is None else contacts
        config = RelayConfig(
            identity, announce=announce, contacts=found_by, dht_nodes=paths.state / "dht.json", **settings
        )
        _allow_files(config.capacity.places + OTHER_FILES)
        _serve(config, as_json)


def _allow_files(number: int) -> None:
    """Let this process open so many files: many systems start programs with 256 or 1,024, and allow more on demand."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= number:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))
    except (OSError, ValueError) as error:
        problem = f"the system lets this program open {hard} files, and so many members need {number}"
        remedy = "use a lower --members, or raise the limit (`ulimit -Hn`, or LimitNOFILE in a systemd unit)"
        raise ConfigError(problem, remedy) from error


def _serve(config: RelayConfig, as_json: bool) -> None:
    import trio

    from sapo_edge.swarm.tally import Tally
    from sapo_edge.swarm.visits.relay import run_relay

    relay = partial(run_relay, config, Tally(_print_notice), partial(_ready, as_json))
    with suppress(KeyboardInterrupt):
        trio.run(until_signal, relay, "stopping; nodes continue without this relay")


def _print_notice(event: Event) -> None:
    if isinstance(event, Notice):
        narrate(event.text)


def _ready(as_json: bool, addresses: tuple[str, ...]) -> None:
    set_libraries_aside()
    if as_json:
        print_json({"addresses": addresses})
    else:
        print("\n".join(addresses), flush=True)
        narrate("relaying; give one of these addresses to the members as their bootstrap. Ctrl-C ends it")


if __name__ == "__main__":
    main()
