"""Homes behind routers, and a public network between them, in network namespaces.

Each home has a machine `m1`, `m2`, ... in 192.168.1.0/24 behind a router `r1`, ... that masquerades and drops what
nobody asked for. The public network has machines `relay` and `dht`. Every home is a public network of its own: an IPv4
/24 and an IPv6 /48.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.swarm.namespaces import Namespaces, NotPermittedError, ip, name, permitted, run_in

RULES = """
table inet filter {{
  chain miniupnpd {{ }}
  chain prerouting_miniupnpd {{ }}
  chain postrouting_miniupnpd {{ }}
  chain prerouting {{
    type nat hook prerouting priority -100;
    jump prerouting_miniupnpd
  }}
  chain outgoing {{
    type nat hook postrouting priority 100;
    jump postrouting_miniupnpd
    oifname "wan" meta nfproto ipv4 masquerade {how}
  }}
  chain forwarded {{
    type filter hook forward priority 0; policy drop;
    jump miniupnpd
    iifname "lan" accept
    ct state established,related accept
    {inbound}
  }}
  chain incoming {{
    type filter hook input priority 0; policy accept;
    meta l4proto ipv6-icmp accept
    iifname "wan" ct state new drop
  }}
}}
"""
UPNP = """
ext_ifname=wan
listening_ip=lan
enable_upnp={upnp}
enable_natpmp={pmp}
secure_mode=yes
uuid=0226b45f-724d-4d85-9f90-6616381316ed
upnp_table_name=filter
upnp_nat_table_name=filter
upnp_forward_chain=miniupnpd
upnp_nat_chain=prerouting_miniupnpd
upnp_nat_postrouting_chain=postrouting_miniupnpd
allow 1024-65535 0.0.0.0/0 1024-65535
"""


@dataclass(frozen=True, slots=True)
class Home:
    """A kind of home; with a carrier, a provider's NAT stands before the router.

    How nft's `masquerade` works: "" keeps the source port if it can, "fully-random" never does. The router offers
    "upnp" or "pcp" by miniupnpd. IPv6 is "open", or "firewalled" against what nobody asked for.
    """

    name: str
    how: str = ""
    router: str = ""
    carrier: bool = False
    ipv4: bool = True
    ipv6: str = ""


HOMES = {
    home.name: home
    for home in (
        Home("router with UPnP", router="upnp"),
        Home("router with PCP", router="pcp"),
        Home("router without"),
        Home("router that changes ports", how="fully-random"),
        Home("IPv6 only", ipv4=False, ipv6="open"),
        Home("IPv6 only, firewall", ipv4=False, ipv6="firewalled"),
        Home("carrier-grade NAT", router="upnp", carrier=True),
    )
}


class _Lab(Namespaces):
    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory
        self._daemons: list[subprocess.Popen[bytes]] = []

    def build(self, homes: Sequence[Home]) -> None:
        self.build_public()
        self.add("relay", "dht")
        self.attach("relay", "eth0")
        self.attach("dht", "eth0")
        self.address("relay", "eth0", "5.5.100.10/16", "2a00:ff:0:1::10/32")
        self.address("dht", "eth0", "2a00:ff:0:1::20/32")
        for number, home in enumerate(homes, 1):
            self._home(number, home)
        for here in ("relay", "dht", *(f"r{number}" for number in range(1, len(homes) + 1))):
            for number in range(1, len(homes) + 1):
                if here != f"r{number}":
                    ip("-n", name(here), "route", "add", f"2a00:{number}::/48", "via", f"2a00:ff:0:1::{number}")

    def _home(self, number: int, home: Home) -> None:
        router, machine = f"r{number}", f"m{number}"
        self.add(router, machine)
        self.link(router, "lan", machine, "eth0")
        outside = router
        if home.carrier:
            outside = f"c{number}"
            self.add(outside)
            self.link(outside, "lan", router, "wan")
            self.address(outside, "lan", f"100.64.{number}.1/24")
            self.address(router, "wan", f"100.64.{number}.2/24")
            ip("-n", name(router), "route", "add", "default", "via", f"100.64.{number}.1")
            self._route(outside, "", "")
        self.attach(outside, "wan")
        self.address(outside, "wan", f"5.5.{number}.1/16")
        self.address(router, "wan", f"2a00:ff:0:1::{number}/32")
        if home.ipv4:
            # All homes use the same private network, as real ones do.
            self.address(router, "lan", "192.168.1.1/24")
            self.address(machine, "eth0", f"192.168.1.{number + 1}/24")
            ip("-n", name(machine), "route", "add", "default", "via", "192.168.1.1")
        if home.ipv6:
            self.address(router, "lan", f"2a00:{number}::1/64")
            self.address(machine, "eth0", f"2a00:{number}::2/64")
            ip("-n", name(machine), "-6", "route", "add", "default", "via", f"2a00:{number}::1")
        self._route(router, home.how, "meta nfproto ipv6 accept" if home.ipv6 == "open" else "")
        if home.router:
            self._forward_ports(router, home.router)

    def _forward_ports(self, router: str, kind: str) -> None:
        if shutil.which("miniupnpd") is None:
            raise NotPermittedError("needs miniupnpd")
        file = self._directory / f"{router}.conf"
        file.write_text(UPNP.format(upnp="yes" if kind == "upnp" else "no", pmp="yes" if kind == "pcp" else "no"))
        command = ["ip", "netns", "exec", name(router), "miniupnpd", "-d", "-f", str(file)]
        command += ["-P", str(self._directory / f"{router}.pid")]
        with (self._directory / f"{router}.log").open("wb") as log:
            self._daemons.append(subprocess.Popen(command, stdout=log, stderr=log))

    def _route(self, router: str, how: str, inbound: str) -> None:
        forwarding = "echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding"
        run_in(router, "sh", "-c", forwarding)
        run_in(router, "nft", "-f", "-", text=RULES.format(how=how, inbound=inbound))

    def remove(self) -> None:
        for daemon in self._daemons:
            daemon.kill()
            daemon.wait()
        super().remove()


def forwarded(router: str) -> str:
    """The ports that a router forwards, as nft lists them."""
    command = ["ip", "netns", "exec", name(router), "nft", "list", "chain", "inet", "filter", "prerouting_miniupnpd"]
    return "".join(line for line in subprocess.run(command, capture_output=True, text=True).stdout.splitlines()[2:-2])


@contextlib.contextmanager
def homes(directory: Path, *kinds: Home) -> Iterator[None]:
    """Homes in network namespaces during this context; a NotPermittedError if this machine can't have them."""
    with _Lab(directory) as lab:
        with permitted("nft"):
            lab.build(kinds)
        yield
