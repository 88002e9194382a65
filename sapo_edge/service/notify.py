"""Reports a node's state to systemd, if systemd started it: sd_notify(3), without its library.

A report is a datagram of NAME=VALUE lines to the socket that NOTIFY_SOCKET names. The watchdog is answered by the
thread that trains, where it looks whether it should pause or stop: a thread of its own would answer for a node that
hangs.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, MutableMapping
from contextlib import suppress

EVERY = 4
"""Answers to the watchdog in the time after which it would kill the node."""
STOP_ROUNDS = 3
"""The longest time that the round in progress may still take, in times of the last round."""


class ServiceManager:
    """The service manager that started this process; does nothing without one. Thread-safe, and never raises.

    Args:
        environ: loses the variables of the protocol, so that no child reports for this process.
        clock: monotonic seconds.
    """

    def __init__(
        self, environ: MutableMapping[str, str] = os.environ, clock: Callable[[], float] = time.monotonic
    ) -> None:
        names = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
        address, microseconds, process = (environ.pop(name, "") for name in names)
        self._address = "\0" + address[1:] if address.startswith("@") else address
        watched = bool(address) and microseconds.isdecimal() and process in ("", str(os.getpid()))
        self._interval = int(microseconds) / 1e6 / EVERY if watched else 0.0
        self._clock = clock
        self._answered = float("-inf")
        self._round_seconds = 0.0
        self._is_stopping = False
        self._lock = threading.Lock()

    def ready(self) -> None:
        """Report that the node is about to train."""
        self._send("READY=1")

    def describe(self, text: str, round_seconds: float = 0.0) -> None:
        """Report what the node does, for `systemctl status`, and how long its last round took; 0: not about a round."""
        self._round_seconds = round_seconds or self._round_seconds
        self._send("STATUS=" + text.replace("\n", " "))

    def alive(self) -> None:
        """Answer the watchdog, if it is time."""
        now = self._clock()
        if self._interval and now - self._answered >= self._interval:
            self._answered = now
            self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """Report once that the node ends after its round, and how long that can take."""
        with self._lock:
            if self._is_stopping:
                return
            self._is_stopping = True
        lines = ["STOPPING=1", "STATUS=finishing the round and saving it"]
        if self._round_seconds:
            lines.append(f"EXTEND_TIMEOUT_USEC={round(self._round_seconds * STOP_ROUNDS * 1e6)}")
        self._send("\n".join(lines))

    def _send(self, text: str) -> None:
        if not self._address:
            return
        # If this report is lost, the next one may arrive.
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            # A manager that doesn't read must not hold up a round.
            sender.setblocking(False)
            sender.sendto(text.encode("utf-8", "replace"), self._address)
