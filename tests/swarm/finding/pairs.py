"""Measures which homes meet by one pasted line, how, and how long it takes: `python -m tests.swarm.finding.pairs`.

For each pair, the first node prints its invite's addresses and the second one joins by them, as people do; then the
same with a third member whose router forwards a port, and with a relay. Prints rows of the table in `docs/network.md`.
Needs root, iproute2, nftables and miniupnpd, and idle cores: figures are seconds from the start of the second node.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from sapo_edge.swarm.addresses import is_public, parse_address
from tests.swarm.finding.homes import HOMES, Home, homes
from tests.swarm.finding.processes import Node, Process, Relay
from tests.swarm.namespaces import NotPermittedError, name

P = TypeVar("P", bound=Process)

ROUTER_SECONDS = 15.0
"""Time for the router to answer, before a line is printed as it is."""
SECONDS = 45.0
"""Time in which two nodes meet, or don't."""
SETTLE_SECONDS = 30.0
"""Time in which a relayed connection becomes a direct one."""
HELP = ("alone", "member", "relay")


def main() -> int:
    """Print a row for each pair."""
    parser = argparse.ArgumentParser(prog="python -m tests.swarm.finding.pairs", description=__doc__)
    parser.add_argument("--first", action="append", default=[], choices=list(HOMES), help="kinds of the inviting home")
    parser.add_argument("--second", action="append", default=[], choices=list(HOMES), help="kinds of the joining home")
    parser.add_argument("--with", dest="help_", action="append", default=[], choices=HELP, help="who else is there")
    arguments = parser.parse_args()
    columns = arguments.help_ or list(HELP)
    print("| Invites | Joins | " + " | ".join(columns) + " |\n|---|---|" + "---|" * len(columns), flush=True)
    for first, second in itertools.product(arguments.first or HOMES, arguments.second or HOMES):
        try:
            cells = [measure(HOMES[first], HOMES[second], who) for who in columns]
        except NotPermittedError as error:
            sys.exit(str(error))
        print(f"| {first} | {second} | " + " | ".join(cells) + " |", flush=True)
    return 0


def measure(first: Home, second: Home, who: str) -> str:
    """How two homes meet, and the seconds that it took.

    Args:
        first, second: the home that invites, and the one that joins.
        who: of `HELP`, who else is there.
    """
    with tempfile.TemporaryDirectory() as text, contextlib.ExitStack() as stack:
        directory = Path(text)
        stack.enter_context(homes(directory, first, second, HOMES["router with UPnP"]))
        bootstrap: list[str] = []
        if who == "relay":
            relay = _run(stack, Relay(directory, port=4001, listen="all", namespace=name("relay")))
            # One of each version of IP.
            bootstrap = relay.started().addresses
        elif who == "member":
            bootstrap = _line(_run(stack, _node(3, [])).started())
        inviting = _run(stack, _node(1, bootstrap)).started()
        line = [*_line(inviting), *bootstrap]
        started = time.monotonic()
        joining = _run(stack, _node(2, line)).started()
        return _wait(inviting, joining, started)


def _node(number: int, bootstrap: Sequence[str]) -> Node:
    return Node(number, namespace=name(f"m{number}"), bootstrap=list(bootstrap), map_port=True, relay_rate=65536)


def _run(stack: contextlib.ExitStack, process: P) -> P:
    stack.callback(process.stop, signal.SIGKILL)
    return process


def _line(node: Node) -> list[str]:
    """The addresses of a node's invite, once one of them is public, or its router was asked in vain."""
    deadline = time.monotonic() + ROUTER_SECONDS
    while time.monotonic() < deadline:
        addresses = node.last("addresses") or []
        if any((ip := parse_address(text).ip) is not None and is_public(ip) for text in addresses):
            return list(addresses)
        time.sleep(0.1)
    return list(node.last("addresses") or [])


def _wait(first: Node, second: Node, started: float) -> str:
    met: dict[str, float] = {}
    deadline = started + SECONDS
    while time.monotonic() < deadline and "direct" not in met:
        if second.peer_id in (first.last("members") or ()):
            for how in (first.last("connected") or {}).get(second.peer_id, ()):
                if how not in met:
                    met[how] = time.monotonic() - started
                    deadline = max(deadline, time.monotonic() + SETTLE_SECONDS)
        time.sleep(0.05)
    return ", then ".join(f"{how} {seconds:.0f} s" for how, seconds in met.items()) or "no"


if __name__ == "__main__":
    sys.exit(main())
