"""Services of macOS: a property list for launchd, and the commands that load and unload it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sapo_edge.service.manager import Manager
from sapo_edge.service.plan import STOP_SECONDS, ServicePlan

RETRY_SECONDS = 60
"""Shortest time between two starts."""


class Launchd(Manager):
    definition = "property list"
    mark = "<string>sapo_edge</string>"

    def unit(self, name: str) -> Path:
        library = Path("/Library/LaunchDaemons") if self.system else Path.home() / "Library" / "LaunchAgents"
        return library / f"{name}.plist"

    def render(self, plan: ServicePlan) -> str:
        import plistlib

        # As in launchd.plist(5).
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
        return plistlib.dumps(definition, sort_keys=False).decode("utf-8")

    def install(self, plan: ServicePlan, *, start: bool) -> bool:
        changed = self._write(plan)
        if start and changed and self.is_active(plan.name):
            self._launchctl("bootout", self._target(plan.name))
        if start and (changed or not self.is_active(plan.name)):
            self._launchctl("bootstrap", self._domain, str(self.unit(plan.name)))
        return changed

    def _stop(self, name: str) -> None:
        if self.is_active(name):
            self._launchctl("bootout", self._target(name))

    def is_active(self, name: str) -> bool:
        return self._run(["launchctl", "print", self._target(name)]).returncode == 0

    def is_running(self, name: str) -> bool:
        return "state = running" in self._run(["launchctl", "print", self._target(name)]).stdout

    @property
    def _domain(self) -> str:
        return "system" if self.system else f"gui/{os.getuid()}"

    def _target(self, name: str) -> str:
        return f"{self._domain}/{name}"

    def _launchctl(self, *arguments: str) -> None:
        self._ask(["launchctl", *arguments], "log in on the screen of this machine")
