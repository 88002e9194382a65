"""Machines with bad cables between them: network namespaces whose packets this process delays, loses or holds back.

Each machine has a TUN device, and a thread here passes packets from one to the other. Linux' `netem` would do the same,
but many kernels come without it.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import os
import random
import select
import struct
import threading
import time
from collections.abc import Iterable, Iterator

from tests.swarm.namespaces import Namespaces, ip, name, permitted

_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x1, 0x1000
_LARGEST_PACKET = 65536
_TICK = 0.05


class Cables:
    """Passes packets after `delay` seconds, loses a share; machines of different `groups` don't reach each other."""

    def __init__(self) -> None:
        self.loss, self.delay = 0.0, 0.0
        self.groups: tuple[frozenset[int], ...] = ()
        self.passed, self.lost = 0, 0
        self._random = random.Random(1)
        self._devices: dict[int, int] = {}
        self._namespaces = Namespaces()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._pass_packets, daemon=True)

    def build(self, machines: int) -> None:
        """Make machines; machine n has the address of `address(n)`."""
        for number in range(1, machines + 1):
            self._add(number)
        self._thread.start()

    def _add(self, number: int) -> None:
        part = machine(number)
        self._namespaces.add(part)
        descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        self._devices[number] = descriptor
        # At most 15 characters.
        device = f"sapo{os.getpid() % 10000}x{number}"
        fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _IFF_TUN | _IFF_NO_PI))
        # The descriptor stays attached to the device in its new namespace.
        ip("link", "set", device, "netns", name(part))
        ip("-n", name(part), "link", "set", device, "name", "eth0")
        self._namespaces.address(part, "eth0", f"{address(number)}/16")
        ip("-n", name(part), "link", "set", "eth0", "up")

    def separate(self, *groups: Iterable[int]) -> None:
        """Let only machines of one group reach each other; without groups, all do."""
        self.groups = tuple(map(frozenset, groups))

    def _is_lost(self, source: int, target: int) -> bool:
        is_apart = self.groups and not any({source, target} <= group for group in self.groups)
        return target not in self._devices or bool(is_apart) or self._random.random() < self.loss

    def _pass_packets(self) -> None:
        waiting: list[tuple[float, int, int, bytes]] = []
        count = 0
        while not self._ended.is_set():
            patience = max(0.0, min(_TICK, waiting[0][0] - time.monotonic())) if waiting else _TICK
            ready, _, _ = select.select(list(self._devices.values()), [], [], patience)
            for source, descriptor in self._devices.items():
                if descriptor not in ready:
                    continue
                packet = os.read(descriptor, _LARGEST_PACKET)
                target = _target(packet)
                if self._is_lost(source, target):
                    self.lost += 1
                    continue
                count += 1
                heapq.heappush(waiting, (time.monotonic() + self.delay, count, target, packet))
            while waiting and waiting[0][0] <= time.monotonic():
                _, _, target, packet = heapq.heappop(waiting)
                # A device that is down or has no room loses the packet, as a real one does.
                with contextlib.suppress(OSError):
                    os.write(self._devices[target], packet)
                self.passed += 1

    def remove(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        for descriptor in self._devices.values():
            os.close(descriptor)
        self._namespaces.remove()


def machine(number: int) -> str:
    return f"m{number}"


def address(number: int) -> str:
    """The IPv4 address of a machine; each is in a public network of its own."""
    return f"5.5.{number}.1"


def _target(packet: bytes) -> int:
    """The machine that an IPv4 packet is for; 0 for none."""
    return packet[18] if len(packet) >= 20 and packet[0] >> 4 == 4 else 0


@contextlib.contextmanager
def cables(machines: int) -> Iterator[Cables]:
    """Machines for the duration of this context; a NotPermittedError if this computer can't have them."""
    made = Cables()
    try:
        with permitted():
            made.build(machines)
        yield made
    finally:
        made.remove()
