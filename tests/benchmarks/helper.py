"""What the rendezvous costs: memory and traffic of its program, and what the node itself grows by.

A node, and one without the rendezvous, in a network namespace; 30 DHT nodes, and 1,000 announced addresses, in another.
Nobody answers at these, so that the node looks for members all the time. Traffic is what the device counted: of the
DHT, and of the tries.
"""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

from sapo_edge.swarm.rendezvous.rendezvous import keys_at
from sapo_edge.tasks.manifest import load_manifest
from tests.benchmarks.measure import Gauge
from tests.swarm.finding.processes import Node
from tests.swarm.lines import LineProcess
from tests.swarm.namespaces import name
from tests.swarm.rendezvous.mainline import PORT
from tests.swarm.rendezvous.public import DHT, NODE, public_network

KEY = bytes([0x4F]) * 20
QUIET = 60.0
"""Seconds after a request until all of its traffic is over."""
TIMES = 5


def traffic() -> int:
    """Bytes that the node's device has sent and received."""
    files = [f"/sys/class/net/eth0/statistics/{way}_bytes" for way in ("rx", "tx")]
    command = ["ip", "netns", "exec", name(NODE), "cat", *files]
    return sum(map(int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()))


def spent(client: LineProcess, seconds: float, port: int | None, times: int = 1) -> float:
    """Bytes in so many seconds, with lookups of a key, or announcements, in the beginning."""
    before = traffic()
    for _ in range(times if port is not None else 0):
        client.write_line(json.dumps({"key": KEY.hex(), "port": port}))
        time.sleep(2)
    time.sleep(seconds)
    return float(traffic() - before)


def child(pid: int) -> int:
    """The process that a process runs."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def weights(what: str, gauge: Gauge) -> list[tuple[str, float]]:
    return [(f"MB of {what}: resident", gauge.resident()), (f"MB of {what}: proportional", gauge.proportional())]


def run(minutes: float) -> None:
    """Print what it costs while the node looks for members for so many minutes."""
    swarm = load_manifest("starter").digest
    places = [(f"20.{16 + number // 200}.{number % 200}.7", 4001) for number in range(1000)]
    with public_network() as public:
        public.announce([KEY, *keys_at(bytes.fromhex(swarm), None, time.time())], places)
        client = public.client()
        client.first(lambda record: record.get("nodes"), 90)
        idle = spent(client, QUIET, None)
        lookup = (spent(client, QUIET, 0, TIMES) - idle) / TIMES
        both = (spent(client, QUIET, 4001, TIMES) - idle) / TIMES
        client.kill()
        rows = [
            ("bytes a minute without a request", idle),
            ("bytes of a lookup", lookup),
            ("bytes of a lookup and an announcement", both),
            # An hour has 4 lookups and 3 announcements with a lookup, in the steady state.
            ("MB a day", (1440 * idle + 24 * (4 * lookup + 3 * both)) / 1e6),
        ]
        for with_it in (False, True):
            contacts = [(host, PORT) for host in DHT[:3]] if with_it else []
            node = Node(1, namespace=name(NODE), fork=False, contacts=contacts).started()
            time.sleep(60 * minutes)
            rows += weights(f"a node {'with' if with_it else 'without'} the rendezvous", Gauge(node.process.pid))
            if with_it:
                program, counts = Gauge(child(node.process.pid)), node.last("counts")
                rows += [*weights("the program", program), ("processor seconds of the program", program.cpu())]
                rows.append(("lookups", counts["rendezvous lookups"]))
                rows.append(("addresses tried", counts["rendezvous addresses in vain"]))
            node.stop()
    for what, value in rows:
        print(f"{what},{value:.3g}" if value < 1000 else f"{what},{value:.0f}")
