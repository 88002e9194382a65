"""What systemd and launchd have in common as managers of services: a file for each, and a program that is asked."""

from __future__ import annotations

import os
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from sapo_edge.errors import ConfigError, StateError
from sapo_edge.plain import printable
from sapo_edge.service.plan import ServicePlan
from sapo_edge.state.durable import reported, write_atomically

Run = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]


def run_command(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        raise StateError(f"can't run {command[0]}: {error.strerror}", f"install what has {command[0]}") from error


class Manager(ABC):
    """Installs and removes services: of the machine, for which one has to be root, or of this user."""

    definition: ClassVar[str]
    """What the file of a service is called."""
    mark: ClassVar[str]
    """Text in each file of ours."""

    def __init__(self, *, system: bool, run: Run = run_command) -> None:
        self.system = system
        self._run = run

    @abstractmethod
    def unit(self, name: str) -> Path:
        """The file of a service."""

    @abstractmethod
    def render(self, plan: ServicePlan) -> str:
        """The text of this file."""

    def check(self, name: str) -> None:
        """Check that services can be installed and removed, and that no other program's has this name."""
        if self.system and os.geteuid() != 0:
            raise ConfigError("a service of the system needs root", "use sudo, or leave out --system")
        file = self.unit(name)
        with reported(f"read the {self.definition}", file, "choose another --name"):
            if file.exists() and self.mark not in file.read_text("utf-8", "replace"):
                remedy = "choose another --name, or move that file away"
                raise ConfigError(f"{file} was not written by `sapo service install`", remedy)

    @abstractmethod
    def install(self, plan: ServicePlan, *, start: bool) -> bool:
        """Write the file, and let the service start with the machine or the session; returns whether it changed.

        Args:
            start: also start it now; a changed one that runs is restarted after its round.
        """

    def remove(self, name: str) -> bool:
        """Stop a service after its round and remove its file; returns whether there was one."""
        file = self.unit(name)
        if not file.exists():
            return False
        self._stop(name)
        with reported(f"remove the {self.definition}", file):
            file.unlink()
        return True

    @abstractmethod
    def _stop(self, name: str) -> None: ...

    @abstractmethod
    def is_active(self, name: str) -> bool:
        """Whether a service runs, starts, or waits to start again."""

    @abstractmethod
    def is_running(self, name: str) -> bool:
        """Whether a service has a process."""

    def _write(self, plan: ServicePlan) -> bool:
        """Write the file of a service, if it does not hold this text already; returns whether it changed."""
        file, data = self.unit(plan.name), self.render(plan).encode()
        if file.exists() and file.read_bytes() == data:
            return False
        with reported(f"write the {self.definition}", file):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, data, mode=0o644)
        return True

    def _ask(self, command: Sequence[str], remedy: str) -> str:
        """The output of a command that has to succeed."""
        result = self._run(command)
        if result.returncode:
            said = " ".join(printable(result.stderr).split()) or f"code {result.returncode}"
            asked = " ".join(word for word in command if word != "--user")
            raise StateError(f"{asked} failed: {said}", remedy)
        return result.stdout
