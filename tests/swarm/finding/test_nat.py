"""Two homes behind NATs and a relay between them, in network namespaces of their own.

`nft`'s masquerading keeps a connection's source port if it can, as most home routers do; with `fully-random` it is a
NAT that gives every connection another port, through which no hole can be punched.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.swarm.finding.processes import Node, Process, Relay

Running = Callable[[Process], None]

PREFIX = f"sapo{os.getpid() % 10000}"
RULES = """
table ip nat {{
  chain outgoing {{
    type nat hook postrouting priority 100;
    oifname "wan" masquerade {how}
  }}
}}
table ip filter {{
  chain forwarded {{
    type filter hook forward priority 0; policy drop;
    iifname "lan" accept
    ct state established,related accept
  }}
  chain incoming {{
    type filter hook input priority 0; policy accept;
    iifname "wan" ct state new drop
  }}
}}
"""


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def name(part: str) -> str:
    return f"{PREFIX}{part}"


def link(left: str, left_device: str, right: str, right_device: str) -> None:
    ip("-n", name(left), "link", "add", left_device, "type", "veth", "peer", "name", right_device, "netns", name(right))
    ip("-n", name(left), "link", "set", left_device, "up")
    ip("-n", name(right), "link", "set", right_device, "up")


def home(number: int, how: str) -> None:
    """A router with a public address, and a machine behind it."""
    router, machine = f"r{number}", f"m{number}"
    link("wan", f"w{number}", router, "wan")
    ip("-n", name("wan"), "link", "set", f"w{number}", "master", "br0")
    link(router, "lan", machine, "eth0")
    ip("-n", name(router), "addr", "add", f"5.5.5.{number}/24", "dev", "wan")
    # Both homes use the same private network, as real ones do.
    ip("-n", name(router), "addr", "add", "192.168.1.1/24", "dev", "lan")
    ip("-n", name(machine), "addr", "add", f"192.168.1.{number + 1}/24", "dev", "eth0")
    ip("-n", name(machine), "route", "add", "default", "via", "192.168.1.1")
    inside = ["ip", "netns", "exec", name(router)]
    subprocess.run([*inside, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"], check=True)
    rules = RULES.format(how=how)
    subprocess.run([*inside, "nft", "-f", "-"], input=rules, text=True, check=True, capture_output=True)


@pytest.fixture
def internet(request: pytest.FixtureRequest) -> Iterator[None]:
    if shutil.which("ip") is None or shutil.which("nft") is None:
        pytest.skip("needs the commands ip (iproute2) and nft (nftables)")
    made: list[str] = []
    try:
        try:
            for part in ("wan", "relay", "r1", "r2", "m1", "m2"):
                ip("netns", "add", name(part))
                made.append(part)
                ip("-n", name(part), "link", "set", "lo", "up")
            ip("-n", name("wan"), "link", "add", "br0", "type", "bridge")
            ip("-n", name("wan"), "link", "set", "br0", "up")
            link("wan", "wr", "relay", "eth0")
            ip("-n", name("wan"), "link", "set", "wr", "master", "br0")
            ip("-n", name("relay"), "addr", "add", "5.5.5.10/24", "dev", "eth0")
            home(1, request.param)
            home(2, request.param)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"network namespaces with a NAT are not permitted here: {getattr(error, 'stderr', error)}")
        yield
    finally:
        for part in made:
            subprocess.run(["ip", "netns", "del", name(part)], check=False, capture_output=True)


@pytest.mark.parametrize("internet", [""], indirect=True)
def test_behind_ordinary_nats_a_relay_introduces_and_a_hole_is_punched(
    internet: None, running: Running, tmp_path: Path
) -> None:
    # A private swarm, because there the library encrypts relayed and punched connections once too often, or not at all.
    psk = "cd" * 32
    relay = Relay(tmp_path, port=4001, listen="all", psk=psk, namespace=name("relay"))
    running(relay)
    bootstrap = [relay.started().addresses[0]]
    first = Node(1, namespace=name("m1"), bootstrap=bootstrap, psk=psk)
    running(first)
    second = Node(2, namespace=name("m2"), bootstrap=bootstrap, psk=psk)
    running(second)
    first.started()
    second.started()
    assert first.wait_for_member(second, how="direct")
    assert second.wait_for_member(first, how="direct")
    assert first.lines[-1]["reached"] is False
    # What is punched does not need the relay any more.
    relay.stop()
    relayless = first.first(lambda record: list(record.get("connected", ())) == [second.peer_id])
    assert relayless["connected"][second.peer_id] == ["direct"]
    assert first.echoes(second) and second.echoes(first)


@pytest.mark.parametrize("internet", ["fully-random"], indirect=True)
def test_behind_nats_that_change_ports_the_relay_forwards_and_may_restart(
    internet: None, running: Running, tmp_path: Path
) -> None:
    relay = Relay(tmp_path, port=4001, listen="all", namespace=name("relay"))
    running(relay)
    bootstrap = [relay.started().addresses[0]]
    nodes = [Node(number, namespace=name(f"m{number}"), bootstrap=bootstrap) for number in (1, 2)]
    for node in nodes:
        running(node)
    first, second = (node.started() for node in nodes)
    assert first.wait_for_member(second)["connected"][second.peer_id] == ["relayed"]
    assert first.echoes(second) and second.echoes(first)
    since = len(first.lines)
    relay.stop(signal.SIGKILL)
    first.first(lambda record: record.get("connected") == {}, since=since)
    since = len(first.lines)
    again = Relay(tmp_path, port=4001, listen="all", namespace=name("relay"))
    running(again)
    assert again.started().addresses == relay.addresses
    first.wait_for_member(second, since=since)
    assert first.echoes(second)
