"""Measures which homes meet by one pasted line, how, and how long it takes: `python -m tests.swarm.finding.pairs`.

For each pair, the first node prints its invite's addresses and the second one joins by them, as people do; then the
same with a third member whose router forwards a port, and with a relay. Prints what `docs/records/homes.csv` has:
medians of the seconds since the second node began to listen. Needs root, iproute2, nftables and miniupnpd.

`--strangers` plays it without any line: all three only look their swarm up in a DHT outside.

`--to FILE` appends each measurement to a file, and measures what the file lacks; several such commands may share it.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from sapo_edge.swarm.addresses import is_public, parse_address
from tests.swarm.finding.homes import HOMES, Home, homes
from tests.swarm.finding.processes import Node, Relay
from tests.swarm.namespaces import NotPermittedError, name
from tests.swarm.rendezvous.mainline import CONTACTS, public_dht

ROUTER_SECONDS = 15.0
"""Time for the router to answer, before a line is printed as it is."""
SETTLE_SECONDS = 30.0
"""Time in which a relayed connection becomes a direct one."""
HELP = {"alone": "nobody", "member": "a member that can be reached", "relay": "a relay"}
"""Who else is there."""
SECONDS = {"alone": 30.0, "member": 60.0, "relay": 60.0}
"""Time in which two nodes meet, or don't."""

Key = tuple[str, str, str]
Times = dict[str, float]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.swarm.finding.pairs", description=__doc__)
    parser.add_argument("--first", action="append", default=[], choices=list(HOMES), help="kinds of the inviting home")
    parser.add_argument("--second", action="append", default=[], choices=list(HOMES), help="kinds of the joining home")
    parser.add_argument("--with", dest="help_", action="append", default=[], choices=HELP, help="who else is there")
    parser.add_argument("--strangers", action="store_true", help="no line, but a DHT")
    parser.add_argument("--repeat", type=int, default=1, help="measurements of each pair")
    parser.add_argument("--to", type=Path, help="file of measurements")
    arguments = parser.parse_args()
    columns = arguments.help_ or list(HELP)
    file = arguments.to or Path(tempfile.mkdtemp()) / "pairs.jsonl"
    # Strangers do the same on both sides.
    both = itertools.combinations_with_replacement(HOMES, 2) if arguments.strangers else itertools.product(HOMES, HOMES)
    firsts, seconds = arguments.first or HOMES, arguments.second or HOMES
    pairs = [(first, second) for first, second in both if first in firsts and second in seconds]
    keys = [(*pair, who) for pair, who in itertools.product(pairs, columns)]
    for number, (first, second, who) in itertools.product(range(arguments.repeat), keys):
        if len(_read(file).get((first, second, who), ())) > number:
            continue
        try:
            times = measure(HOMES[first], HOMES[second], who, strangers=arguments.strangers)
        except NotPermittedError as error:
            sys.exit(str(error))
        with file.open("a") as lines:
            lines.write(json.dumps({"first": first, "second": second, "with": who, "times": times}) + "\n")
    csv.writer(sys.stdout).writerows(_table(_read(file), columns))
    return 0


def measure(first: Home, second: Home, who: str, *, strangers: bool) -> Times:
    """The seconds after which two homes were "relayed" or "direct"; empty if they did not meet. `who` is of `HELP`."""
    with tempfile.TemporaryDirectory() as text, contextlib.ExitStack() as stack:
        directory = Path(text)
        stack.enter_context(homes(directory, first, second, HOMES["router with UPnP"]))
        contacts = CONTACTS if strangers else []
        if strangers:
            stack.enter_context(public_dht())
        bootstrap: list[str] = []
        if who == "relay":
            # With contacts it volunteers.
            relay = Relay(directory, name("relay"), contacts=contacts)
            # One of each version of IP.
            bootstrap = stack.enter_context(relay).started().addresses
        elif who == "member":
            bootstrap = _line(stack.enter_context(_node(3, [], contacts)).started())
        if strangers:
            bootstrap = []
        inviting = stack.enter_context(_node(1, bootstrap, contacts)).started()
        line = [] if strangers else [*_line(inviting), *bootstrap]
        joining = stack.enter_context(_node(2, line, contacts)).started()
        return _wait(inviting, joining, SECONDS[who] + (30.0 if strangers else 0.0))


def _node(number: int, bootstrap: Sequence[str], contacts: Sequence[tuple[str, int]]) -> Node:
    home = name(f"m{number}")
    return Node(number, namespace=home, bootstrap=list(bootstrap), map_port=True, carries=True, contacts=contacts)


def _line(node: Node) -> list[str]:
    """The addresses of a node's invite, once one of them is public, or its router was asked in vain."""
    deadline = time.monotonic() + ROUTER_SECONDS
    while time.monotonic() < deadline:
        addresses = node.last("addresses") or []
        if any((ip := parse_address(text).ip) is not None and is_public(ip) for text in addresses):
            return list(addresses)
        if "routers that forward no port" in (node.last("counts") or {}):
            break
        time.sleep(0.1)
    return list(node.last("addresses") or [])


def _wait(first: Node, second: Node, seconds: float) -> Times:
    started = time.monotonic()
    times: Times = {}
    deadline = started + seconds
    while time.monotonic() < deadline and "direct" not in times:
        if second.peer_id in (first.last("members") or ()):
            for how in (first.last("connected") or {}).get(second.peer_id, ()):
                if how not in times:
                    times[how] = round(time.monotonic() - started, 1)
                    deadline = time.monotonic() + SETTLE_SECONDS
        time.sleep(0.05)
    return times


def _read(file: Path) -> dict[Key, list[Times]]:
    results: dict[Key, list[Times]] = {}
    for record in map(json.loads, file.read_text().splitlines() if file.exists() else ()):
        results.setdefault((record["first"], record["second"], record["with"]), []).append(record["times"])
    return results


def _table(results: dict[Key, list[Times]], columns: Sequence[str]) -> Iterator[tuple[str, ...]]:
    yield "Invites", "Joins", *(HELP[who] for who in columns)
    for first, second in itertools.product(HOMES, HOMES):
        cells = [describe(results.get((first, second, who), ())) for who in columns]
        if any(cells):
            yield first, second, *cells


def describe(times: Sequence[Times]) -> str:
    """How two homes met, with the median of the seconds; a way that not all measurements had is counted."""
    parts = []
    for how in ("relayed", "direct"):
        seconds = [one[how] for one in times if how in one]
        if seconds:
            share = f" ({len(seconds)} of {len(times)})" if len(seconds) < len(times) else ""
            parts.append(f"{how} {statistics.median(seconds):.0f} s{share}")
    return ", ".join(parts) or ("no" if times else "")


if __name__ == "__main__":
    sys.exit(main())
