"""Homes behind routers, and a public network between them, in network namespaces.

Each home has a machine `m1`, `m2`, ... in 192.168.1.0/24 behind a router `r1`, ... that masquerades and drops what
nobody asked for. The public network has a machine `relay`. Every home is a public network of its own: an IPv4 /24 and
an IPv6 /48.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

PREFIX = f"sapo{os.getpid() % 10000}"
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
    """A kind of home.

    Attributes:
        name: in the table of pairs.
        how: of nft's `masquerade`: "" keeps the source port if it can, "fully-random" never does.
        router: what the router offers by miniupnpd: "upnp", "pcp" or "".
        carrier: whether a provider's NAT stands before the router.
        ipv4: whether the machine has IPv4.
        ipv6: whether it has IPv6: "", "open", or "firewalled" against what nobody asked for.
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


class NotPermittedError(Exception):
    """This machine lacks a command or a right that is needed."""


def name(part: str) -> str:
    """The namespace of a machine or router."""
    return f"{PREFIX}{part}"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def _in(part: str, *command: str, text: str | None = None) -> None:
    command = ("ip", "netns", "exec", name(part), *command)
    subprocess.run(command, input=text, text=True, check=True, capture_output=True)


class _Lab:
    """Makes namespaces, and removes them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made: list[str] = []
        self._daemons: list[subprocess.Popen[bytes]] = []

    def build(self, homes: Sequence[Home]) -> None:
        self._add("wan", "relay")
        _ip("-n", name("wan"), "link", "add", "br0", "type", "bridge")
        _ip("-n", name("wan"), "link", "set", "br0", "up")
        self._attach("relay", "eth0")
        self._address("relay", "eth0", "5.5.100.10/16", "2a00:ff:0:1::10/64")
        for number, home in enumerate(homes, 1):
            self._home(number, home)
        for here in ("relay", *(f"r{number}" for number in range(1, len(homes) + 1))):
            for number in range(1, len(homes) + 1):
                if here != f"r{number}":
                    _ip("-n", name(here), "route", "add", f"2a00:{number}::/48", "via", f"2a00:ff:0:1::{number}")

    def _home(self, number: int, home: Home) -> None:
        router, machine = f"r{number}", f"m{number}"
        self._add(router, machine)
        self._link(router, "lan", machine, "eth0")
        outside = router
        if home.carrier:
            outside = f"c{number}"
            self._add(outside)
            self._link(outside, "lan", router, "wan")
            self._address(outside, "lan", f"100.64.{number}.1/24")
            self._address(router, "wan", f"100.64.{number}.2/24")
            _ip("-n", name(router), "route", "add", "default", "via", f"100.64.{number}.1")
            self._route(outside, "", "")
        self._attach(outside, "wan")
        self._address(outside, "wan", f"5.5.{number}.1/16")
        self._address(router, "wan", f"2a00:ff:0:1::{number}/64")
        if home.ipv4:
            # All homes use the same private network, as real ones do.
            self._address(router, "lan", "192.168.1.1/24")
            self._address(machine, "eth0", f"192.168.1.{number + 1}/24")
            _ip("-n", name(machine), "route", "add", "default", "via", "192.168.1.1")
        if home.ipv6:
            self._address(router, "lan", f"2a00:{number}::1/64")
            self._address(machine, "eth0", f"2a00:{number}::2/64")
            _ip("-n", name(machine), "-6", "route", "add", "default", "via", f"2a00:{number}::1")
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
        _in(
            router,
            "sh",
            "-c",
            "echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding",
        )
        _in(router, "nft", "-f", "-", text=RULES.format(how=how, inbound=inbound))

    def _add(self, *parts: str) -> None:
        for part in parts:
            _ip("netns", "add", name(part))
            self._made.append(part)
            _ip("-n", name(part), "link", "set", "lo", "up")

    def _attach(self, part: str, device: str) -> None:
        self._link("wan", f"w-{part}", part, device)
        _ip("-n", name("wan"), "link", "set", f"w-{part}", "master", "br0")

    @staticmethod
    def _link(left: str, left_device: str, right: str, right_device: str) -> None:
        here = ["-n", name(left), "link", "add", left_device, "type", "veth"]
        _ip(*here, "peer", "name", right_device, "netns", name(right))
        _ip("-n", name(left), "link", "set", left_device, "up")
        _ip("-n", name(right), "link", "set", right_device, "up")

    @staticmethod
    def _address(part: str, device: str, *addresses: str) -> None:
        for address in addresses:
            flags = ["nodad"] if ":" in address else []
            _ip("-n", name(part), "addr", "add", address, "dev", device, *flags)

    def remove(self) -> None:
        for daemon in self._daemons:
            daemon.kill()
            daemon.wait()
        for part in self._made:
            subprocess.run(["ip", "netns", "del", name(part)], check=False, capture_output=True)


@contextlib.contextmanager
def homes(directory: Path, *kinds: Home) -> Iterator[None]:
    """Homes in network namespaces for the duration of this context.

    Raises:
        NotPermittedError: if this machine can't have them.
    """
    if shutil.which("ip") is None or shutil.which("nft") is None:
        raise NotPermittedError("needs the commands ip (iproute2) and nft (nftables)")
    lab = _Lab(directory)
    try:
        try:
            lab.build(kinds)
        except (OSError, subprocess.CalledProcessError) as error:
            reason = getattr(error, "stderr", None) or error
            raise NotPermittedError(f"network namespaces with a NAT are not permitted here: {reason}") from error
        yield
    finally:
        lab.remove()
