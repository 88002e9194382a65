"""Services of macOS: a property list for launchd, and the commands that load and unload it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sapo_edge.errors import ConfigError, StateError
from sapo_edge.plain import printable
from sapo_edge.service.common import Run, run_command, write_definition
from sapo_edge.service.plan import STOP_SECONDS, ServicePlan
from sapo_edge.state.durable import reported

RETRY_SECONDS = 60
"""Shortest time between two starts."""


def property_list(plan: ServicePlan) -> dict[str, Any]:
    """What launchd has to know of a service, as in launchd.plist(5)."""
    definition: dict[str, Any] = {
        "Label": plan.name,
        # Events go to the node's log: launchd's files would grow without end.
        "ProgramArguments": [*plan.command, "--json"],
        "StandardOutPath": "/dev/null",
        "StandardErrorPath": str(plan.paths.background_output),
        "RunAtLoad": True,
        # After a failure, not after an orderly end.
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": RETRY_SECONDS,
        "ExitTimeOut": STOP_SECONDS,
        "ProcessType": "Background",
        "LowPriorityIO": True,
        "Nice": plan.nice,
        "Umask": 0o077,
    }
    if plan.environment:
        definition["EnvironmentVariables"] = dict(plan.environment)
    if plan.user:
        definition["UserName"] = plan.user
    return definition


class Launchd:
    """Installs and removes services of launchd.

    Args:
        system: a daemon of the machine, for which one has to be root; otherwise an agent of this user.
    """

    def __init__(self, *, system: bool, run: Run = run_command) -> None:
        self.system = system
        self._run = run

    def unit(self, name: str) -> Path:
        """The file of a service."""
        library = Path("/Library/LaunchDaemons") if self.system else Path.home() / "Library" / "LaunchAgents"
        return library / f"{name}.plist"

    def render(self, plan: ServicePlan) -> str:
        """The property list of a service."""
        import plistlib

        return plistlib.dumps(property_list(plan), sort_keys=False).decode("utf-8")

    def check(self) -> None:
        """Check that services can be installed.

        Raises:
            ConfigError: if not.
        """
        if self.system and os.geteuid() != 0:
            raise ConfigError("a service of the system needs root", "use sudo, or leave out --system")

    def install(self, plan: ServicePlan, *, start: bool) -> bool:
        """Write the property list; it starts with the machine or the session. Returns whether it changed.

        Args:
            start: also load it now, which starts it.
        """
        file = self.unit(plan.name)
        changed = write_definition(file, self.render(plan), "property list")
        if start and changed and self.is_active(plan.name):
            self._launchctl("bootout", self._target(plan.name))
        if start and (changed or not self.is_active(plan.name)):
            self._launchctl("bootstrap", self._domain(), str(file))
        return changed

    def remove(self, name: str) -> bool:
        """Stop a service after its round and remove its property list; returns whether there was one."""
        file = self.unit(name)
        if not file.exists():
            return False
        if self.is_active(name):
            self._launchctl("bootout", self._target(name))
        with reported("remove the property list", file):
            file.unlink()
        return True

    def is_active(self, name: str) -> bool:
        """Whether a service is loaded."""
        return self._run(["launchctl", "print", self._target(name)]).returncode == 0

    def is_running(self, name: str) -> bool:
        """Whether a service has a process."""
        return "state = running" in self._run(["launchctl", "print", self._target(name)]).stdout

    def _domain(self) -> str:
        return "system" if self.system else f"gui/{os.getuid()}"

    def _target(self, name: str) -> str:
        return f"{self._domain()}/{name}"

    def _launchctl(self, *arguments: str) -> None:
        result = self._run(["launchctl", *arguments])
        if result.returncode:
            said = " ".join(printable(result.stderr).split()) or f"code {result.returncode}"
            raise StateError(f"launchctl {' '.join(arguments)} failed: {said}", "log in on the screen of this machine")
