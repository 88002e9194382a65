"""Every backend by its name: the built-in ones, and those of other packages, which load only when they are needed."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from sapo_edge.backends.apple.backend import BACKEND as MLX
from sapo_edge.backends.backend import Backend, OpenedPolicy, OpenOptions, Support
from sapo_edge.backends.llama.backend import BACKEND as LLAMA_CPP
from sapo_edge.backends.machine.host import Host
from sapo_edge.backends.pytorch.backend import BACKEND as TORCH
from sapo_edge.errors import BackendError
from sapo_edge.plain import did_you_mean

BUILT_IN: tuple[Backend, ...] = (LLAMA_CPP, TORCH, MLX)
"""In the order in which they are shown."""
GROUP = "sapo_edge.backends"
"""The entry point group of other packages' backends; `sapo_edge.config.settings` accepts their names."""
AUTO = "auto"
NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")


def plug_ins() -> dict[str, EntryPoint]:
    """Backends of other packages by name, not loaded. Leaves out names that are built in or not allowed."""
    taken = {backend.name for backend in BUILT_IN} | {AUTO}
    entries = entry_points(group=GROUP)
    return {entry.name: entry for entry in entries if entry.name not in taken and NAME.fullmatch(entry.name)}


def find_backend(name: str) -> Backend:
    """A backend by its name; loads another package's.

    Raises:
        BackendError: if no backend has this name, or its package is broken.
    """
    for backend in BUILT_IN:
        if backend.name == name:
            return backend
    entries = plug_ins()
    if name not in entries:
        names = [backend.name for backend in BUILT_IN] + sorted(entries)
        remedy = did_you_mean(name, names, f"use one of: {', '.join([AUTO, *names])}")
        raise BackendError(f"there is no backend {name!r}", remedy)
    return _load(entries[name])


def _load(entry: EntryPoint) -> Backend:
    package = entry.dist.name if entry.dist is not None else entry.module
    try:
        backend = entry.load()
    # Another package's import may raise anything, and must not end a program that can do without it.
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
    return replace(backend, look=_guard_look(backend), open=_guard_open(backend))


def _guard_look(backend: Backend) -> Callable[[Host, Path | None], Support]:
    """Another package's `look`; an exception means that it can't run."""

    def look(host: Host, model: Path | None) -> Support:
        try:
            return backend.look(host, model)
        except Exception as error:  # noqa: BLE001 - as in `_load`
            return Support(False, 0, f"it failed to look at this machine ({type(error).__name__}: {error})")

    return look


def _guard_open(backend: Backend) -> Callable[[OpenOptions], OpenedPolicy]:
    """Another package's `open`, whose libraries may be broken."""

    def open_policy(options: OpenOptions) -> OpenedPolicy:
        try:
            return backend.open(options)
        except (ImportError, OSError) as error:
            raise BackendError(f"the backend {backend.name} is broken ({error})", "install it again") from error

    return open_policy
