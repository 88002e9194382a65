"""A node in a network namespace, and in another one all the rest of the internet, with a DHT of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import groupby
from pathlib import Path

from tests.swarm.lines import ROOT, LineProcess
from tests.swarm.namespaces import Namespaces, ip, name, permitted
from tests.swarm.rendezvous.hostile import Place
from tests.swarm.rendezvous.mainline import PORT, start_others

HERE = Path(__file__).parent
NODE, OTHERS = "node", "others"
"""Parts of the names of the namespaces."""
DHT = [f"20.{number}.50.10" for number in range(110, 140)]
"""Addresses of the DHT's nodes, each in a network of its own."""
JAVASCRIPT = [f"20.{number}.50.10" for number in range(140, 146)]
LIARS = [f"20.{number}.50.10" for number in range(150, 162)]
MEMBER = "20.2.0.1"


class Public:
    """The public network: 20.0.0.1 is the node's address, and all others from 20.2.0.0 to 20.191.255.255 are there."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def start(self, *arguments: str, inside: str = OTHERS, fork: bool = True) -> LineProcess:
        """Run a program of Python until the end."""
        return self._stack.enter_context(LineProcess(*arguments, namespace=name(inside), fork=fork))

    def javascript(self, node: str) -> LineProcess:
        return start_others(self._stack, node, f"{DHT[0]}:{PORT}", JAVASCRIPT, name(OTHERS))

    def lie(self, key: bytes) -> LineProcess:
        """Start liars that all DHT nodes know; a line has them say how often they were asked."""
        nodes = json.dumps([(host, PORT) for host in DHT])
        process = self.start(str(HERE / "hostile.py"), key.hex(), nodes, *LIARS)
        process.first(lambda record: record.get("lies"))
        return process

    def client(self, nodes: Sequence[str] = (), contacts: Sequence[str] = DHT[:3]) -> LineProcess:
        """Start the program that a node asks, with the nodes that answered it before."""
        known = {"contacts": contacts, "nodes": nodes}
        argument = json.dumps({name: [(host, PORT) for host in hosts] for name, hosts in known.items()})
        # It limits its memory.
        return self.start("-m", "sapo_edge.swarm.rendezvous.program", argument, inside=NODE, fork=False)

    def announce(self, keys: Iterable[bytes], places: Sequence[Place]) -> None:
        """Announce ports at all DHT nodes, each from its own address."""
        code = (
            "import json, sys; from tests.swarm.rendezvous.hostile import announce\n"
            "for key, port, hosts, nodes in json.load(sys.stdin):"
            " announce(bytes.fromhex(key), hosts, port, [tuple(node) for node in nodes])"
        )
        nodes = [(host, PORT) for host in DHT]
        by_port = [(port, [host for host, _ in group]) for port, group in groupby(places, lambda place: place[1])]
        rows = [(key.hex(), port, hosts, nodes) for key in keys for port, hosts in by_port]
        command = ["ip", "netns", "exec", name(OTHERS), sys.executable, "-c", code]
        subprocess.run(command, input=json.dumps(rows), text=True, check=True, cwd=ROOT)


@contextmanager
def public_network() -> Iterator[Public]:
    """The network and the DHT in it; a NotPermittedError if this machine can't have them."""
    with Namespaces() as spaces, ExitStack() as stack:
        with permitted():
            spaces.add(NODE, OTHERS)
            spaces.link(NODE, "eth0", OTHERS, "eth0")
            spaces.address(NODE, "eth0", "20.0.0.1/32")
            ip("-n", name(NODE), "route", "add", "default", "dev", "eth0")
            spaces.address(OTHERS, "eth0", *(f"{host}/32" for host in (MEMBER, *DHT, *JAVASCRIPT, *LIARS)))
            ip("-n", name(OTHERS), "route", "add", "20.0.0.1/32", "dev", "eth0")
            # The false ones need no address of the device.
            ip("-n", name(OTHERS), "route", "add", "local", "20.16.0.0/12", "dev", "eth0")
        public = Public(stack)
        public.start(str(HERE / "mainline.py"), *DHT).first(lambda record: record.get("nodes") == len(DHT))
        yield public
