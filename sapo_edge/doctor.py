"""What could keep sapo-edge from working on this machine: each check with its result and its remedy."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from sapo_edge.errors import SapoError
from sapo_edge.paths import Paths
from sapo_edge.settings import Settings

MINIMUM_FREE = 1_000_000_000
"""Bytes of free disk below which checkpoints and derived files may not fit."""


class Status(StrEnum):
    """Result of a check."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the doctor's report; `remedy` is empty for what passes."""

    name: str
    status: Status
    detail: str
    remedy: str = ""


def examine(paths: Paths, settings: Settings) -> list[Check]:
    """All checks, none of which changes anything but for creating the state directory."""
    checks: list[Callable[[], Check]] = [
        _python,
        lambda: _library("llama-cpp-python", "llama_cpp", "sampling"),
        lambda: _library("torch", "torch", "training"),
        lambda: _library("reasoning-gym", "reasoning_gym", "tasks"),
        lambda: _model(settings),
        lambda: _manifest(settings),
        lambda: _state(paths),
        lambda: _disk(paths),
        lambda: _memory(paths, settings),
        _processor,
    ]
    return [check() for check in checks]


def _python() -> Check:
    bits = platform.architecture()[0]
    detail = f"Python {platform.python_version()}, {bits}, {platform.system()} {platform.machine()}"
    if bits != "64bit":
        return Check("python", Status.FAIL, detail, "use a 64-bit system: torch has no 32-bit packages")
    return Check("python", Status.PASS, detail)


def _library(distribution: str, module: str, purpose: str) -> Check:
    if importlib.util.find_spec(module) is None:
        return Check(distribution, Status.FAIL, f"not installed ({purpose})", f"pip install {distribution}")
    return Check(distribution, Status.PASS, f"{importlib.metadata.version(distribution)} ({purpose})")


def _model(settings: Settings) -> Check:
    from sapo_edge.backends.architectures import check_supported
    from sapo_edge.backends.gguf_file import read_header
    from sapo_edge.models import find_model

    try:
        path = find_model(settings.model)
        header = read_header(path)
        check_supported(header)
    except SapoError as error:
        return Check("model", Status.FAIL, error.message, error.remedy)
    size = path.stat().st_size / 1e6
    return Check("model", Status.PASS, f"{header.model_name}, {header.architecture}, {size:.0f} MB")


def _manifest(settings: Settings) -> Check:
    from sapo_edge.manifest import load_manifest

    try:
        manifest = load_manifest(settings.manifest)
    except SapoError as error:
        return Check("manifest", Status.FAIL, error.message, error.remedy)
    return Check("manifest", Status.PASS, f"{manifest.name}: {', '.join(entry.name for entry in manifest.tasks)}")


def _state(paths: Paths) -> Check:
    from sapo_edge.lock import StateLock

    try:
        paths.create()
    except SapoError as error:
        return Check("state", Status.FAIL, error.message, error.remedy)
    lock = StateLock(paths.lock)
    try:
        lock.acquire()
    except SapoError as error:
        return Check("state", Status.WARN, f"{paths.state}: {error.message}", error.remedy)
    lock.release()
    return Check("state", Status.PASS, f"{paths.state}, writable, no node running")


def _disk(paths: Paths) -> Check:
    existing = next(path for path in (paths.state, *paths.state.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    detail = f"{free / 1e9:.1f} GB free"
    if free < MINIMUM_FREE:
        return Check("disk", Status.WARN, detail, "free some space, or use --home on another disk")
    return Check("disk", Status.PASS, detail)


def _memory(paths: Paths, settings: Settings) -> Check:
    import psutil

    from sapo_edge.backends.gguf_file import read_header
    from sapo_edge.backends.llama_cpp import estimate_memory
    from sapo_edge.manifest import load_manifest
    from sapo_edge.models import find_model

    free = psutil.virtual_memory().available
    try:
        header = read_header(find_model(settings.model))
        tokens = settings.max_tokens or load_manifest(settings.manifest).max_tokens
    except SapoError:
        return Check(
            "memory", Status.WARN, f"{free / 1e9:.1f} GB available, need unknown", "mend the failed checks first"
        )
    need = estimate_memory(header, settings.rank, settings.drawn, settings.answers, 256, tokens).total
    detail = f"{free / 1e9:.1f} GB available, about {need / 1e9:.1f} GB needed"
    if need > free:
        return Check("memory", Status.FAIL, detail, "close programs, use a smaller model, or lower rank and max_tokens")
    return Check("memory", Status.PASS, detail)


def _processor() -> Check:
    import psutil

    from sapo_edge.backends.threads import available_cores

    cores = available_cores()
    load = psutil.cpu_percent(interval=0.3) / 100 * (os.cpu_count() or 1)
    detail = f"{cores} cores, {load:.1f} in use by all programs now"
    if load > 0.5 * cores:
        return Check(
            "processor", Status.WARN, detail, "nothing to mend: sapo-edge leaves busy cores to others, and is slower"
        )
    return Check("processor", Status.PASS, detail)
