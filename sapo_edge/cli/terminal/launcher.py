"""What the command line offers the terminal app: it meets `sapo_edge.tui.node.launcher.Launcher`."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sapo_edge import __version__
from sapo_edge.cli.workspace import Workspace, open_workspace
from sapo_edge.config.layers import set_value
from sapo_edge.config.settings import SETTINGS
from sapo_edge.doctor.check import Check, Status
from sapo_edge.errors import SapoError
from sapo_edge.node.background import Background
from sapo_edge.state.durable import reported, write_atomically
from sapo_edge.state.lock import lock_holder
from sapo_edge.state.paths import Paths
from sapo_edge.tui.node.launcher import Chat, Consent, Ending, Finding, Findings, SettingRow

YIELD_PERCENT = 70
"""Use of the processor by other programs from which a node rests whose owner wants it to make way."""
_CONSENT_VERSION = 1
_ESSENTIAL = ("python", "backend", "torch", "reasoning-gym", "model", "manifest", "state")
"""Checks without which no node starts."""


class ProgramLauncher:
    """This installation, its settings and its node in the background.

    Args:
        home: that the user named with --home; None if there is none.
    """

    def __init__(self, home: Path | None = None) -> None:
        self._home = home
        self._paths = Paths.default(home)
        self._background = Background(self._paths, home)

    @property
    def paths(self) -> Paths:
        """The directories of this installation."""
        return self._paths

    def consented(self) -> bool:
        """Whether the owner has agreed on the first screen, or a node runs."""
        if self._paths.consent.exists():
            return True
        try:
            return lock_holder(self._paths.lock) is not None
        except SapoError:
            return False

    def findings(self) -> Findings:
        """Look at the host, with the checks of `sapo doctor`. Takes about a second."""
        from sapo_edge.backends.machine.threads import available_cores

        cores, battery = available_cores(), _has_battery()
        try:
            workspace = open_workspace(self._home)
        except SapoError as error:
            return Findings((_failed("Settings", error),), cores, battery, error.message)
        rows, blocked = _look_at(workspace)
        return Findings(tuple(rows), cores, battery, blocked)

    def accept(self, consent: Consent) -> None:
        """Write what was chosen, join the swarm of an invite, and remember the consent: all of it or nothing.

        Raises:
            SapoError: if the invite can't be read, or something can't be written.
        """
        settings = {
            "network": "solo" if consent.network == "solo" else "swarm",
            "threads": str(consent.threads) if consent.threads else None,
            "on_battery": "pause" if consent.mains_only else "run",
            "busy": str(YIELD_PERCENT if consent.yield_to_others else 0),
        }
        self._paths.create()
        swarms = self._paths.state / "swarms.json"
        with _all_or_nothing(self._paths.config_file, swarms, self._paths.consent):
            for name, value in settings.items():
                set_value(self._paths.config_file, name, value)
            if consent.network == "invite":
                from sapo_edge.cli.swarm import join
                from sapo_edge.swarm.joining.membership import Membership

                join(self._paths, Membership(self._paths.state), consent.invite)
            elif consent.network == "swarm":
                self._come_back()
            # The invite itself may hold a key, and stands in the file of swarms.
            agreed = {
                "network": consent.network, "threads": consent.threads, "mains_only": consent.mains_only,
                "yield_to_others": consent.yield_to_others,
            }  # fmt: skip
            record = {"v": _CONSENT_VERSION, "program": __version__, "time": time.time(), "agreed": agreed}
            with reported("write", self._paths.consent):
                write_atomically(self._paths.consent, json.dumps(record, indent=1).encode("ascii"))

    def start(self) -> None:
        """Start a node in the background, unless one runs.

        Raises:
            SapoError: if it can't be started.
        """
        self._background.start()

    def starting(self) -> Sequence[str]:
        """What a node that was started has said so far."""
        return self._background.said()

    def ended(self) -> Ending | None:
        """How the last node ended; None while one runs or starts."""
        try:
            found = self._background.ended()
        except SapoError as error:
            return Ending(str(error), expected=False)
        return None if found is None else Ending(found.reason, found.expected, found.lines)

    def settings(self) -> list[SettingRow]:
        """Every setting as the next node would have it.

        Raises:
            SapoError: if the file or the environment is wrong.
        """
        return [
            SettingRow(
                name,
                value,
                source,
                explanation,
                SETTINGS[name].default,
                SETTINGS[name].allowed,
                SETTINGS[name].choices,
                SETTINGS[name].unit,
                SETTINGS[name].live,
            )
            for name, value, source, explanation in open_workspace(self._home).resolved.rows()
        ]

    def setting(self, name: str) -> Any:
        """One setting, its default if the file is wrong."""
        try:
            return open_workspace(self._home).settings.as_dict()[name]
        except SapoError:
            return SETTINGS[name].default

    def set(self, name: str, value: str | None) -> None:
        """Write a setting into `config.toml`; None takes it out.

        Raises:
            ConfigError: if it is not allowed or can't be written.
        """
        set_value(self._paths.config_file, name, value)

    def chat(self) -> Chat:
        """A new conversation, not opened yet."""
        from sapo_edge.cli.terminal.chat_client import ChatProcess

        return ChatProcess(self._home)

    def _come_back(self) -> None:
        """Be in the open swarm again, for one who had left the last swarm and works alone since."""
        from sapo_edge.swarm.joining.membership import Swarm

        workspace = open_workspace(self._home)
        if workspace.membership.alone:
            workspace.membership.join(Swarm.of(workspace.require_manifest()))


def _look_at(workspace: Workspace) -> tuple[list[Finding], str]:
    """What was found, and why no node can start (empty if one can)."""
    from sapo_edge.backends.machine.threads import ThreadGovernor
    from sapo_edge.doctor.machine import examine

    checks = {
        check.name: check
        for check in examine(workspace.paths, workspace.settings, workspace.manifest, workspace.round_shape())
    }
    embedded = "no download needed"
    model = f"from {workspace.settings.model}" if workspace.settings.model else embedded
    swarm, backend = _swarm(workspace), _backend(workspace)
    rows = [
        backend,
        _finding("Model", checks["model"], model),
        _finding("Memory", checks["memory"], "an estimate of a round at its peak"),
        Finding("Processor", checks["processor"].detail, ThreadGovernor(workspace.settings.threads).reason),
        swarm,
        _finding("Disk", checks["disk"], f"in {workspace.paths.state}"),
    ]
    shown = ("model", "memory", "processor", "disk")
    failed = [check for check in checks.values() if check.status is Status.FAIL]
    rows += [_finding(check.name.capitalize(), check, "") for check in failed if check.name not in shown]
    reasons = [check.detail for check in failed if check.name in _ESSENTIAL]
    reasons += [f"{row.name}: {row.value}" for row in (backend, swarm) if not row.good]
    return rows, reasons[0] if reasons else ""


def _finding(name: str, check: Check, reason: str) -> Finding:
    return Finding(name, check.detail, check.remedy or reason, good=check.status is not Status.FAIL)


def _failed(name: str, error: SapoError) -> Finding:
    return Finding(name, error.message, error.remedy, good=False)


def _backend(workspace: Workspace) -> Finding:
    from sapo_edge.backends.choose.detect import detect
    from sapo_edge.doctor.backends import local_model

    try:
        choice = detect(workspace.settings.backend, local_model(workspace.settings))
    except SapoError as error:
        return _failed("Backend", error)
    return Finding("Backend", choice.name, choice.reason)


def _swarm(workspace: Workspace) -> Finding:
    """The swarm that a node would take part in, as the settings are now."""
    shared = "questions and answers are shared as text, never weights"
    try:
        workspace.check_swarm()
    except SapoError as error:
        return _failed("Swarm", error)
    swarm = workspace.swarm
    if swarm is None or workspace.is_alone:
        return Finding("Swarm", "none", "alone: nothing is sent to anybody")
    return Finding("Swarm", f"{swarm.name}, {'private' if swarm.private else 'open'}", shared)


def _has_battery() -> bool:
    from sapo_edge.care.sensors import read_battery

    try:
        read_battery()
    except Exception:  # noqa: BLE001 - no sensor, or whatever the system's files hold: it can't be asked about
        return False
    return True


@contextlib.contextmanager
def _all_or_nothing(*files: Path) -> Iterator[None]:
    """Put files back as they were if the block fails, on a full disk as well: what was there is kept beside them.

    Raises:
        StateError: if a copy can't be made; then the block does not begin.
    """
    before: dict[Path, Path | None] = {}
    try:
        for file in (file.resolve() for file in files):
            copy = file.with_name(f".{file.name}.before") if file.exists() else None
            if copy is not None:
                with reported("write", copy):
                    write_atomically(copy, file.read_bytes())
            before[file] = copy
        yield
    except BaseException:
        for file, kept in before.items():
            # The error that matters is the one being raised.
            with contextlib.suppress(OSError):
                if kept is not None:
                    os.replace(kept, file)
                else:
                    file.unlink(missing_ok=True)
        raise
    for kept in before.values():
        if kept is not None:
            with contextlib.suppress(OSError):
                kept.unlink()
