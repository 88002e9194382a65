"""Services of systemd, of a user or of the system: the unit, and the commands that install and remove it."""

from __future__ import annotations

import os
import re
import shutil
from importlib.resources import files
from pathlib import Path
from string import Template

import sapo_edge
from sapo_edge.errors import ConfigError
from sapo_edge.plain import printable
from sapo_edge.service.manager import Manager
from sapo_edge.service.plan import ServicePlan

BOOTED = Path("/run/systemd/system")
"""Exists where systemd runs the machine: sd_booted(3)."""
BACKOFF_VERSION = 254
"""First version of systemd that waits longer after each failed restart."""
_HOMES = ("/home", "/root", "/run/user")
_TEMPORARY = ("/tmp", "/var/tmp")
_NAMESPACE_SWITCHES = {
    "/proc/sys/kernel/unprivileged_userns_clone": "0",
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1",
    "/proc/sys/user/max_user_namespaces": "0",
}
"""Files whose value keeps users from making the namespaces that hide files from a service."""


def render(plan: ServicePlan, *, version: int, namespaces: bool = True) -> str:
    """The unit of a service.

    Args:
        plan: what it runs; a system service if it has a user.
        namespaces: whether a user's service may have a view of the file system of its own.
    """
    system = bool(plan.user)
    values = {
        "version": sapo_edge.__version__,
        "edit": f"systemctl {'' if system else '--user '}edit {plan.name}",
        "home": _escaped(str(plan.paths.state)),
        "order": "After=network-online.target\nWants=network-online.target" if system else "",
        "identity": "\n".join(_identity(plan)) if system else "",
        "command": " ".join(quote(argument, variables=True) for argument in plan.command),
        "environment": "\n".join(f"Environment={quote(f'{name}={value}')}" for name, value in plan.environment.items()),
        "backoff": "RestartSteps=6\nRestartMaxDelaySec=30min" if version >= BACKOFF_VERSION else "",
        "nice": str(plan.nice),
        "memory": str(plan.memory),
        "sandbox": "\n".join(_sandbox(plan, system=system, namespaces=namespaces)),
        "target": "multi-user.target" if system else "default.target",
    }
    lines = files(__package__).joinpath("templates", "sapo-edge.service").read_text("utf-8").splitlines()
    kept = [line for line in lines if not line.startswith("$") or values[line[1:]]]
    return Template("\n".join(kept)).substitute(values) + "\n"


def _identity(plan: ServicePlan) -> list[str]:
    lines = [f"User={plan.user}", f"Group={plan.user}"]
    return [*lines, f"SupplementaryGroups={' '.join(plan.groups)}"] if plan.groups else lines


def _sandbox(plan: ServicePlan, *, system: bool, namespaces: bool) -> list[str]:
    """The lines that need a view of the file system of the service's own."""
    if not system and not namespaces:
        return ["# This kernel lets users make no namespaces: the files of the user stay visible."]
    own_tmp = not (plan.shares_tmp or plan.lies_in(*_TEMPORARY))
    places = [*map(str, plan.writable), *(() if own_tmp else _TEMPORARY)]
    writable = " ".join(f"-{place}" for place in map(quote, places))
    return [
        # A user's manager makes the other namespaces within one of users.
        *([] if system else ["PrivateUsers=yes"]),
        "ProtectSystem=strict",
        # A user's own program may be anywhere at home.
        f"ProtectHome={'yes' if system and not plan.lies_in(*_HOMES) else 'read-only'}",
        f"ReadWritePaths={writable}",
        f"PrivateTmp={'yes' if own_tmp else 'no'}",
        "PrivateMounts=yes",
        "ProtectClock=yes",
        "ProtectControlGroups=yes",
        "ProtectHostname=yes",
        "ProtectKernelLogs=yes",
        "ProtectKernelModules=yes",
        "ProtectKernelTunables=yes",
        "ProtectProc=invisible",
        "RemoveIPC=yes",
        "CapabilityBoundingSet=",
        "AmbientCapabilities=",
        # A GPU is a device.
        *([] if plan.devices else ["PrivateDevices=yes", "DevicePolicy=closed"]),
    ]


def quote(text: str, *, variables: bool = False) -> str:
    """A word of a unit file, or of a command there, in which systemd would replace variables."""
    escaped = _escaped(text).replace("\\", "\\\\").replace('"', '\\"')
    if variables:
        escaped = escaped.replace("$", "$$")
    return escaped if re.fullmatch(r"[\w@%+=:,./$-]+", escaped, re.ASCII) else f'"{escaped}"'


def _escaped(text: str) -> str:
    """A text in which systemd would replace no specifiers."""
    if not text.isprintable():
        raise ConfigError(f"{printable(text)} can't stand in a unit", "use a --home without control characters")
    return text.replace("%", "%%")


def users_may_isolate() -> bool:
    """Whether the kernel lets a user's service have namespaces of its own."""
    from sapo_edge.care.sensors import line

    # Not every kernel has every switch.
    return all(line(Path(file)) != forbids for file, forbids in _NAMESPACE_SWITCHES.items())


class Systemd(Manager):
    definition = "unit"
    mark = "Written by `sapo service install`"

    def unit(self, name: str) -> Path:
        user = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "systemd" / "user"
        return (Path("/etc/systemd/system") if self.system else user) / f"{name}.service"

    def version(self) -> int:
        """Version of systemd; 0 if it is not installed."""
        if shutil.which("systemctl") is None:
            return 0
        match = re.match(r"systemd (\d+)", self._run(["systemctl", "--version"]).stdout)
        return int(match[1]) if match else 0

    def render(self, plan: ServicePlan) -> str:
        return render(plan, version=self.version(), namespaces=users_may_isolate())

    def check(self, name: str) -> None:
        if not BOOTED.is_dir():
            # Cron's own path is short.
            remedy = "use `sapo start`, from cron by `@reboot PATH start` with the path that `command -v sapo` prints"
            raise ConfigError("systemd doesn't run this machine", remedy)
        super().check(name)

    def install(self, plan: ServicePlan, *, start: bool) -> bool:
        changed, unit = self._write(plan), f"{plan.name}.service"
        self._systemctl("daemon-reload")
        self._systemctl("enable", unit)
        if start:
            # Not waited for: the first start may take minutes, a stop as long as a round.
            self._systemctl("--no-block", "restart" if changed and self.is_active(plan.name) else "start", unit)
        return changed

    def remove(self, name: str) -> bool:
        removed = super().remove(name)
        if removed:
            self._systemctl("daemon-reload")
        return removed

    def _stop(self, name: str) -> None:
        self._systemctl("disable", "--now", f"{name}.service")

    def is_active(self, name: str) -> bool:
        return self._state(name) in ("active", "activating", "reloading")

    def is_running(self, name: str) -> bool:
        return self._state(name) in ("active", "reloading")

    def _state(self, name: str) -> str:
        return self._run(self._command("is-active", f"{name}.service")).stdout.strip()

    def properties(self, name: str) -> dict[str, str]:
        """State of a service by the names that systemd gives its properties."""
        names = (
            "LoadState", "ActiveState", "SubState", "UnitFileState", "MainPID", "NRestarts", "Result", "StatusText",
            "ExecMainStatus", "MemoryCurrent", "MemoryMax", "ActiveEnterTimestamp",
        )  # fmt: skip
        answer = self._systemctl("show", "--property", ",".join(names), f"{name}.service")
        return dict(line.split("=", 1) for line in answer.splitlines() if "=" in line)

    def log_command(self, name: str, lines: int, *, follow: bool) -> list[str]:
        """The command that shows what a service wrote."""
        unit = "--unit" if self.system else "--user-unit"
        return ["journalctl", unit, f"{name}.service", "--lines", str(lines), *(["--follow"] if follow else [])]

    def _command(self, *arguments: str) -> list[str]:
        return ["systemctl", *([] if self.system else ["--user"]), *arguments]

    def _systemctl(self, *arguments: str) -> str:
        remedy = "check `systemctl status`" if self.system else "log in as this user, not with su or sudo"
        return self._ask(self._command(*arguments), remedy)


def lingers(user: str) -> bool:
    """Whether services of a user start with the machine and survive the end of the session."""
    return Path("/var/lib/systemd/linger", user).exists()
