"""Machines of one public network, in network namespaces of this computer."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

DIRECTORY = Path("/run/netns")
"""Where `ip` keeps namespaces."""
_OWNED = re.compile(r"sapo-(\d+)-")


class NotPermittedError(Exception):
    """This machine lacks a command or a right that is needed."""


def name(part: str) -> str:
    return f"sapo-{os.getpid()}-{part}"


def ip(*arguments: str, text: str | None = None) -> None:
    subprocess.run(["ip", *arguments], input=text, check=True, capture_output=True, text=True)


def run_in(part: str, *command: str, text: str | None = None) -> None:
    command = ("ip", "netns", "exec", name(part), *command)
    subprocess.run(command, input=text, text=True, check=True, capture_output=True)


def remove_abandoned() -> None:
    """Remove the namespaces of processes that were killed, and kill what still runs in them."""
    for path in DIRECTORY.glob("sapo-*"):
        owner = _OWNED.match(path.name)
        if owner is None or Path("/proc", owner[1]).exists():
            continue
        listed = subprocess.run(["ip", "netns", "pids", path.name], check=False, capture_output=True, text=True)
        for process in listed.stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)
        # Another test may have removed it meanwhile.
        subprocess.run(["ip", "netns", "del", path.name], check=False, capture_output=True)


@contextmanager
def permitted(*commands: str) -> Iterator[None]:
    """Commands of this context make namespaces, after those that were left behind are removed.

    A NotPermittedError says that this machine can't have them, or lacks one of the commands, or `ip`.
    """
    missing = [command for command in ("ip", *commands) if shutil.which(command) is None]
    if missing:
        raise NotPermittedError(f"needs the commands ip (iproute2) {' '.join(commands)}")
    try:
        remove_abandoned()
        yield
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", None) or error
        raise NotPermittedError(f"network namespaces are not permitted here: {reason}") from error


class Namespaces:
    """Namespaces, and links between them. Leaving the context removes them."""

    def __init__(self) -> None:
        self._made: list[str] = []

    def build_public(self) -> None:
        """Make the public network: a bridge in a namespace of its own."""
        self.add("wan")
        ip("-n", name("wan"), "link", "add", "br0", "type", "bridge")
        ip("-n", name("wan"), "link", "set", "br0", "up")

    def add(self, *parts: str) -> None:
        for part in parts:
            ip("netns", "add", name(part))
            self._made.append(part)
            ip("-n", name(part), "link", "set", "lo", "up")

    def attach(self, part: str, device: str) -> None:
        self.link("wan", f"w-{part}", part, device)
        ip("-n", name("wan"), "link", "set", f"w-{part}", "master", "br0")

    @staticmethod
    def link(left: str, left_device: str, right: str, right_device: str) -> None:
        here = ["-n", name(left), "link", "add", left_device, "type", "veth"]
        ip(*here, "peer", "name", right_device, "netns", name(right))
        ip("-n", name(left), "link", "set", left_device, "up")
        ip("-n", name(right), "link", "set", right_device, "up")

    @staticmethod
    def address(part: str, device: str, *addresses: str) -> None:
        added = [f"addr add {address} dev {device}{' nodad' * (':' in address)}" for address in addresses]
        # By one process: a public network has dozens.
        ip("-n", name(part), "-batch", "-", text="\n".join(added))

    def remove(self) -> None:
        for part in self._made:
            subprocess.run(["ip", "netns", "del", name(part)], check=False, capture_output=True)
        self._made.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()
