"""Implements `sapo_edge.tui.node.launcher.Launcher`: what the terminal app needs of the rest of the program."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sapo_edge.cli.workspace import open_workspace
from sapo_edge.config.curves import goes_to
from sapo_edge.config.layers import set_values
from sapo_edge.config.settings import SETTINGS
from sapo_edge.doctor.check import Check, Status
from sapo_edge.errors import ConfigError, SapoError
from sapo_edge.library.workspace import Workspace, find_manifest, storable
from sapo_edge.node.background import Background, Ended
from sapo_edge.state.consent import agreed_to_share, write_consent
from sapo_edge.state.durable import reported, write_atomically
from sapo_edge.state.lock import lock_holder
from sapo_edge.state.paths import Paths, RunPaths
from sapo_edge.tui.node.history import MAX_POINTS
from sapo_edge.tui.node.launcher import Choices, Consent, Finding, Findings, Outcome, SettingRow, SwarmCard
from sapo_edge.tui.node.machine import Load, LoadMeter
from sapo_edge.tui.node.processes import Chat, Job

if TYPE_CHECKING:
    from sapo_edge.control.runs import RunView
    from sapo_edge.experiment.watch import ExperimentView, ExperimentWatch

YIELD_PERCENT = 70
"""Value of the setting `busy` for a user who wants the node to yield to other programs."""
_ESSENTIAL = ("python", "backend", "torch", "reasoning-gym", "model", "manifest", "state")
"""Checks that must pass for a node to start."""


class ProgramLauncher:
    """This installation, its settings and its node in the background; `home` is the directory of `--home`."""

    def __init__(self, home: Path | None = None) -> None:
        self._home = home
        self.paths = Paths.default(home)
        self._background = Background(self.paths, home)
        self._meter = LoadMeter()
        # Of the last `news`: another command may choose another run meanwhile.
        self._shown: RunPaths | None = None

    def consented(self) -> bool:
        agreed = agreed_to_share(self.paths.consent)
        # Who agreed to work alone is asked again after changing that outside the app.
        if agreed or (agreed is False and self._works_alone()):
            return True
        try:
            return lock_holder(self.paths.lock) is not None
        except SapoError:
            return False

    def _works_alone(self) -> bool:
        """Whether a node would share nothing: it would work alone, or not start because the settings are damaged."""
        try:
            return open_workspace(self._home).is_alone
        except SapoError:
            return True

    def findings(self) -> Findings:
        from sapo_edge.backends.machine.threads import available_cores
        from sapo_edge.cli.service import may_start_at_login

        cores, battery = available_cores(), _has_battery()
        try:
            workspace = open_workspace(self._home)
        except SapoError as error:
            return Findings((_failed("Settings", error),), cores, battery, error.message)
        rows, blocked = _examine(workspace)
        # As on the command line: a run of so many rounds is a trial.
        login = not workspace.settings.rounds and may_start_at_login()
        return Findings(tuple(rows), cores, battery, blocked, login)

    def choices(self) -> Choices:
        from sapo_edge.swarm.joining.invite import Swarm

        try:
            workspace = open_workspace(self._home)
            manifest = find_manifest(workspace.paths, workspace.membership, workspace.settings.manifest)
            private = manifest.own_questions > 0
            joined = workspace.membership.current
            if joined is not None and not private and joined.id == Swarm.of(manifest).id:
                joined = None
        except SapoError:
            return Choices()
        settings = workspace.settings
        return Choices(
            "solo" if workspace.is_alone else "swarm" if joined is None else "joined",
            "" if joined is None else joined.name,
            settings.threads,
            settings.on_battery == "pause",
            settings.busy > 0,
            private,
            settings.manifest,
            goes_to(settings.curves),
        )

    def accept(self, consent: Consent) -> None:
        settings = _changed_settings(consent)
        workspace = open_workspace(self._home)
        sources = workspace.resolved.sources
        stays_alone = consent.network is None and workspace.is_alone and workspace.settings.network != "solo"
        if stays_alone and not sources["network"].startswith("environment "):
            # Who agrees to work alone on own questions has not agreed to share other tasks, whatever is chosen later.
            settings["network"] = "solo"
        for name in settings:
            if sources[name].startswith("environment "):
                variable = sources[name].removeprefix("environment ")
                raise ConfigError(f"{name} is set by the environment variable {variable}", "unset it, then try again")
        self.paths.create()
        swarms = self.paths.state / "swarms.json"
        with _restored_on_failure(self.paths.config_file, swarms, self.paths.consent):
            set_values(self.paths.config_file, settings)
            if consent.network == "invite":
                from sapo_edge.library.joining import join
                from sapo_edge.swarm.joining.membership import Membership

                join(self.paths, Membership(self.paths.state), consent.invite)
            elif consent.network == "swarm":
                self._join_open_swarm()
            choices = self.choices()
            # Without the invite, which may hold a key; the file of swarms keeps that.
            agreed = {
                "network": "invite" if choices.network == "joined" else choices.network, "threads": choices.threads,
                "mains_only": choices.mains_only, "yield_to_others": choices.yield_to_others,
            }  # fmt: skip
            write_consent(self.paths.consent, "first screen", agreed)

    def start(self) -> None:
        self._background.start()

    def end_start(self) -> bool:
        return self._background.end_start()

    def starting(self) -> Sequence[str]:
        return self._background.last_output()

    def ended(self) -> Ended | None:
        try:
            return self._background.ended()
        except SapoError as error:
            return Ended(str(error), expected=False)

    def settings(self) -> list[SettingRow]:
        rows = self._without_manifest().resolved.rows()
        return [SettingRow(SETTINGS[name], value, source) for name, value, source, _ in rows]

    def setting(self, name: str) -> Any:
        try:
            return self._without_manifest().settings.as_dict()[name]
        except SapoError:
            return SETTINGS[name].default

    def set(self, name: str, value: str | None) -> None:
        set_values(self.paths.config_file, {name: None if value is None else storable(name, value)})
        if name == "network" and value != "solo" and agreed_to_share(self.paths.consent) is False:
            write_consent(self.paths.consent, "terminal app", {"network": "swarm"})

    def chat(self) -> Chat:
        return Chat(self._home)

    def swarm(self) -> SwarmCard | None:
        try:
            workspace = open_workspace(self._home)
        except SapoError:
            return None
        swarm = workspace.swarm
        if swarm is None or workspace.is_alone:
            return SwarmCard()
        return SwarmCard(swarm.name, swarm.is_private, swarm.id.hex())

    def swarm_against(self, manifest: str) -> tuple[str, str]:
        workspace = self._without_manifest()
        digest = find_manifest(workspace.paths, workspace.membership, manifest).digest
        swarm = None if workspace.is_alone else workspace.membership.current
        return digest, "" if swarm is None or digest == swarm.manifest.hex() else swarm.name

    def outcome(self) -> Outcome:
        from sapo_edge.control.run_report import read_run_report

        name = self.paths.run_name
        return Outcome(read_run_report(self.paths, name), self.history(name))

    def news(self) -> str:
        from sapo_edge.control.run_report import read_news
        from sapo_edge.state.runs import read_looked, write_looked

        self._shown = self.paths.run
        # The round that the sentence is about: what is finished from now on was not shown yet.
        round, news = read_news(self._shown.journal, read_looked(self._shown))
        write_looked(self._shown, round)
        return news

    def looked(self, round: int) -> None:
        from sapo_edge.state.runs import write_looked

        if self._shown is not None:
            write_looked(self._shown, round)

    def runs(self) -> Sequence[RunView]:
        from sapo_edge.control.runs import read_runs

        return read_runs(self.paths)

    def history(self, run: str = "", rounds: tuple[int, int] | None = None) -> Mapping[str, Any]:
        from sapo_edge.control.journal_view import JournalReader

        journal = self.paths.run_of(run or self.paths.run_name).journal
        return JournalReader(journal).history(MAX_POINTS, rounds) if journal.exists() else {}

    @cached_property
    def _watch(self) -> ExperimentWatch:
        from sapo_edge.experiment.watch import ExperimentWatch

        return ExperimentWatch()

    def experiment(self, directory: Path) -> ExperimentView:
        return self._watch.look(directory)

    def load(self, pid: int) -> Load:
        try:
            # A node takes the lock before it loads the model, which is what takes long.
            return self._meter.look(pid or lock_holder(self.paths.lock) or 0)
        except SapoError:
            return Load()

    def starts_at_login(self) -> bool:
        from sapo_edge.cli.service import starts_at_login

        return starts_at_login()

    def job(self, *arguments: str, text: str = "") -> Job:
        return Job(self._home, arguments, text)

    def _without_manifest(self) -> Workspace:
        """For what must work without the manifest of the settings: another one is chosen in the app, too."""
        return open_workspace(self._home, needs_manifest=False)

    def _join_open_swarm(self) -> None:
        """Join the open swarm of the settings' manifest, unless the node takes part in it without that."""
        from sapo_edge.swarm.joining.invite import Swarm

        workspace = open_workspace(self._home)
        if not workspace.membership.alone and workspace.membership.current is None:
            return
        manifest = find_manifest(workspace.paths, workspace.membership, workspace.settings.manifest)
        if manifest.own_questions:
            remedy = "create a private swarm with `sapo swarm create`"
            raise ConfigError(f"{manifest.name} has your own questions", remedy)
        workspace.membership.join(Swarm.of(manifest))


def _changed_settings(consent: Consent) -> dict[str, str | None]:
    """The settings to write; None removes one."""
    settings: dict[str, str | None] = {}
    if consent.network is not None:
        settings["network"] = "solo" if consent.network == "solo" else "swarm"
    if consent.threads is not None:
        settings["threads"] = str(consent.threads) if consent.threads else None
    if consent.mains_only is not None:
        settings["on_battery"] = "pause" if consent.mains_only else "run"
    if consent.yield_to_others is not None:
        settings["busy"] = str(YIELD_PERCENT if consent.yield_to_others else 0)
    if consent.manifest is not None:
        settings["manifest"] = consent.manifest
    return settings


def _examine(workspace: Workspace) -> tuple[list[Finding], str]:
    """The findings, and why no node can start (empty if one can)."""
    from sapo_edge.backends.machine.threads import ThreadGovernor
    from sapo_edge.doctor.machine import examine

    results = examine(workspace.paths, workspace.settings, workspace.manifest, workspace.round_shape())
    checks = {check.name: check for check in results}
    model = f"from {workspace.settings.model}" if workspace.settings.model else "no download needed"
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
    shared = "questions and answers are shared as text, never weights"
    try:
        workspace.check_swarm()
    except SapoError as error:
        return _failed("Swarm", error)
    swarm = workspace.swarm
    if swarm is None or workspace.is_alone:
        return Finding("Swarm", "none", "alone: nothing is sent to anybody")
    return Finding("Swarm", f"{swarm.name}, {'private' if swarm.is_private else 'open'}", shared)


def _has_battery() -> bool:
    from sapo_edge.care.sensors import read_battery

    try:
        read_battery()
    except Exception:  # noqa: BLE001 - no sensor, or whatever the system's files hold: it can't be asked about
        return False
    return True


@contextlib.contextmanager
def _restored_on_failure(*files: Path) -> Iterator[None]:
    """Restore files if the block fails, from copies beside them, without which it does not run: also on a full disk."""
    copies: dict[Path, Path | None] = {}
    try:
        for file in (file.resolve() for file in files):
            copy = file.with_name(f".{file.name}.before") if file.exists() else None
            if copy is not None:
                with reported("write", copy):
                    write_atomically(copy, file.read_bytes())
            copies[file] = copy
        yield
    except BaseException:
        for file, copy in copies.items():
            # The first error is the one to report.
            with contextlib.suppress(OSError):
                if copy is not None:
                    os.replace(copy, file)
                else:
                    file.unlink(missing_ok=True)
        raise
    for copy in filter(None, copies.values()):
        with contextlib.suppress(OSError):
            copy.unlink()
