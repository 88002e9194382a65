"""Which backend this host runs, and why; what keeps a better one from running."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING

from sapo_edge.backends.choose.backend import Backend, Opened, Opening, Standing
from sapo_edge.backends.choose.builtin import BUILT_IN
from sapo_edge.backends.machine.host import Host, this_host
from sapo_edge.errors import BackendError
from sapo_edge.plain import did_you_mean

if TYPE_CHECKING:
    from sapo_edge.policy import LoraSettings

GROUP = "sapo_edge.backends"
"""The group of entry points by which other packages add backends; `sapo_edge.config.settings` allows their names."""
AUTO = "auto"
NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
PROBE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Choice:
    """A backend by the name it has in the settings, and the reason in words.

    Attributes:
        name: in the settings.
        reason: what it runs on, and why it was taken.
        runner_up: what would be taken without it, in words; "" if there is nothing else.
        missing: what keeps each better one from running, with its remedy, in a sentence each.
        automatic: whether nobody asked for it: another one may stand in if it fails.
    """

    name: str
    reason: str
    runner_up: str = ""
    missing: tuple[str, ...] = ()
    automatic: bool = False

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why this one and no better one, a sentence each."""
        return (self.reason, *self.missing)


def detect(asked: str = AUTO, model: Path | None = None, host: Host | None = None) -> Choice:
    """Choose the backend. Loads none.

    Args:
        asked: "auto", or a name that the user gave.
        model: a GGUF file or a directory: not every backend reads both, or has room for it.
        host: this machine, unless a test says otherwise.

    Raises:
        BackendError: if none can be used, or not the one that was asked for.
    """
    host = host or this_host()
    if asked != AUTO:
        backend = find_backend(asked)
        standing = backend.look(host, model)
        if not standing.usable:
            raise BackendError(f"{backend.title} can't be used: {standing.reason}", standing.remedy or "use another")
        lacking = [_sentence(standing)] if standing.missing else []
        return Choice(asked, f"{backend.title}, as asked for: {standing.reason}", missing=tuple(lacking))
    ranked = sorted(((backend, backend.look(host, model)) for backend in BUILT_IN), key=_rank)
    usable = [(backend, standing) for backend, standing in ranked if standing.usable]
    if not usable:
        reasons = "; ".join(f"{backend.name}: {standing.reason}" for backend, standing in ranked)
        raise BackendError(f"no backend can be used ({reasons})", ranked[0][1].remedy)
    (first, best), *others = usable
    missing = tuple(_sentence(standing) for _, standing in ranked if standing.missing and _better(standing, best))
    runner_up = f"{others[0][0].title}: {others[0][1].reason}" if others else ""
    return Choice(first.name, f"{first.title}: {best.reason}", runner_up, missing, automatic=True)


def _rank(pair: tuple[Backend, Standing]) -> int:
    return -pair[1].preference


def _better(standing: Standing, chosen: Standing) -> bool:
    # What is missing in the one that was chosen counts too: it might do more.
    return standing is chosen or standing.potential > chosen.preference


def _sentence(standing: Standing) -> str:
    return f"{standing.missing}; {standing.remedy}" if standing.remedy else standing.missing


def others_entries() -> dict[str, EntryPoint]:
    """Backends of other packages by name, not loaded; a name that is taken or not allowed is left out."""
    taken = {backend.name for backend in BUILT_IN} | {AUTO}
    found = entry_points(group=GROUP)
    return {entry.name: entry for entry in found if entry.name not in taken and NAME.fullmatch(entry.name)}


def find_backend(name: str) -> Backend:
    """A backend by its name, one of another package loaded.

    Raises:
        BackendError: if there is none of this name, or its package is broken.
    """
    for backend in BUILT_IN:
        if backend.name == name:
            return backend
    entries = others_entries()
    if name not in entries:
        known = [backend.name for backend in BUILT_IN] + sorted(entries)
        remedy = did_you_mean(name, known, f"use one of: {', '.join([AUTO, *known])}")
        raise BackendError(f"there is no backend {name!r}", remedy)
    return _load(entries[name])


def _load(entry: EntryPoint) -> Backend:
    package = entry.dist.name if entry.dist is not None else entry.module
    try:
        backend = entry.load()
    # Importing somebody else's package may raise anything; it must not end a program that can do without.
    except Exception as error:
        raise BackendError(
            f"the backend {entry.name} can't be loaded ({type(error).__name__}: {error})",
            f"update or remove the package {package}",
        ) from error
    if not isinstance(backend, Backend) or backend.name != entry.name:
        raise BackendError(
            f"{entry.value} of the package {package} is no backend of the name {entry.name}",
            f"update or remove the package {package}",
        )
    return replace(backend, look=_guarded(backend), open=_opener(backend))


def _guarded(backend: Backend) -> Callable[[Host, Path | None], Standing]:
    """Another package's `look`, for which raising is a way to say no."""

    def look(host: Host, model: Path | None) -> Standing:
        try:
            return backend.look(host, model)
        except Exception as error:  # noqa: BLE001 - as in `_load`
            return Standing(False, 0, f"it failed to look at this machine ({type(error).__name__}: {error})")

    return look


def _opener(backend: Backend) -> Callable[[Opening], Opened]:
    """Another package's `open`, whose own libraries may be broken."""

    def open_backend(opening: Opening) -> Opened:
        try:
            return backend.open(opening)
        except (ImportError, OSError) as error:
            raise BackendError(f"the backend {backend.name} is broken ({error})", "install it anew") from error

    return open_backend


def survey(model: Path | None = None, host: Host | None = None) -> list[tuple[Backend, Standing]]:
    """Every backend and how it stands, those of other packages too, which are loaded for it."""
    host = host or this_host()
    found = [(backend, backend.look(host, model)) for backend in BUILT_IN]
    for name in sorted(others_entries()):
        try:
            backend = find_backend(name)
        except BackendError as error:
            broken = Standing(False, 0, error.message, remedy=error.remedy)
            found.append((Backend(name, name, _look_nowhere, _refuse), broken))
        else:
            found.append((backend, backend.look(host, model)))
    return found


def _look_nowhere(_host: Host, _model: Path | None) -> Standing:
    return Standing(False, 0, "it can't be loaded")


def _refuse(_opening: Opening) -> Opened:
    raise BackendError("this backend can't be loaded", "see sapo doctor")


def probe(backends: Iterable[Backend]) -> dict[str, str]:
    """Run what each backend needs in processes of their own, all at once, which takes seconds.

    Returns:
        The last line of what each said that failed, by name.
    """
    started = {
        backend.name: subprocess.Popen(
            [sys.executable, "-c", backend.probe], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        for backend in backends
        if backend.probe
    }
    failed: dict[str, str] = {}
    for name, process in started.items():
        try:
            _, said = process.communicate(timeout=PROBE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            failed[name] = f"loading it took more than {PROBE_SECONDS:.0f} s"
            continue
        if process.returncode:
            lines = [line.strip() for line in said.splitlines() if line.strip()]
            failed[name] = lines[-1] if lines else f"it ended with code {process.returncode}"
    return failed


def open_policy(
    choice: Choice,
    model: Path,
    *,
    cache: Path,
    workspace: Path,
    lora: LoraSettings,
    threads: int,
    trainable: bool,
    narrate: Callable[[str], None],
) -> Opened:
    """Make the chosen backend's policy; returns it with the reasons of what it chose itself.

    One that nobody asked for and that turns out to be broken is replaced by the next best.

    Raises:
        BackendError: if the backend is broken or incomplete.
        ModelError: if it can't use the model.
    """
    opening = Opening(model, cache, workspace, lora, threads, trainable, narrate)
    try:
        return _open(choice, opening)
    except BackendError as error:
        if not choice.automatic:
            raise
        first = error
    host = this_host()
    ranked = sorted(((backend, backend.look(host, model)) for backend in BUILT_IN), key=_rank)
    for backend, standing in ranked:
        if backend.name == choice.name or not standing.usable:
            continue
        narrate(f"{choice.name} can't be used: {first}")
        instead = Choice(backend.name, f"{backend.title}, because {choice.name} failed: {first.message}")
        try:
            return _open(instead, opening)
        except BackendError as error:
            narrate(f"nor can {backend.name}: {error.message}")
    raise first


def _open(choice: Choice, opening: Opening) -> Opened:
    policy, reasons = find_backend(choice.name).open(opening)
    return policy, (*choice.reasons, *reasons)
