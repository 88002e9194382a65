"""Checks of the backends, the model and the memory: what can run on this machine, and what is missing."""

from __future__ import annotations

import contextlib
import importlib.metadata
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sapo_edge.config.settings import Settings
from sapo_edge.doctor.check import Check, Status
from sapo_edge.errors import BackendError, SapoError

if TYPE_CHECKING:
    from sapo_edge.backends.backend import Backend, RoundShape, Support

REPAIR = "reinstall its packages with pip install --force-reinstall"


@dataclass(frozen=True, slots=True)
class _Choice:
    """The backend that a node would run; no name if none can."""

    name: str = ""
    preference: int = 0
    trains: bool = True


def backend_checks(settings: Settings, *, deep: bool) -> list[Check]:
    """Check which backend a node would run, then each backend.

    Args:
        deep: also load each backend's packages in a separate process, which takes seconds. Only this finds broken ones.
    """
    from sapo_edge.backends.choose import detect

    model = local_model(settings)
    survey = detect.survey(model)
    broken = detect.probe(backend for backend, support in survey if support.usable) if deep else {}
    node_choice = _Choice()
    try:
        choice = detect.detect(settings.backend, model)
    except BackendError as error:
        first = Check("backend", Status.FAIL, error.message, error.remedy)
    else:
        support = next(support for backend, support in survey if backend.name == choice.name)
        node_choice = _Choice(choice.name, support.preference, support.trains or settings.role != "trainer")
        runner_up = f" (next best: {choice.runner_up})" if choice.runner_up else ""
        first = Check("backend", Status.PASS, choice.reason + runner_up)
        if choice.name in broken:
            first = Check("backend", Status.FAIL, f"{choice.name} is broken: {broken[choice.name]}", REPAIR)
    return [first, *(_check(backend, support, node_choice, broken) for backend, support in survey)]


def _check(backend: Backend, support: Support, choice: _Choice, broken: dict[str, str]) -> Check:
    """Check one backend, compared with the one that a node would run."""
    name = backend.name
    if name in broken:
        return Check(name, Status.WARN, f"installed, but broken: {broken[name]}", REPAIR)
    if not support.usable:
        # llama.cpp trains with torch.
        needed = not choice.name or (name == "torch" and not choice.trains)
        if not needed and support.potential <= choice.preference:
            return Check(name, Status.PASS, f"not used: {support.reason}")
        remedy = support.remedy or "use another backend"
        return Check(name, Status.FAIL if needed else Status.WARN, support.missing or support.reason, remedy)
    detail = support.reason + _versions(backend)
    if support.missing and (support.potential > choice.preference or name == choice.name):
        return Check(name, Status.WARN, f"{detail}; {support.missing}", support.remedy)
    return Check(name, Status.PASS, detail)


def _versions(backend: Backend) -> str:
    versions = []
    for package in backend.packages:
        # `Backend.look` reports missing packages.
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{package} {importlib.metadata.version(package)}")
    return f" ({', '.join(versions)})" if versions else ""


def sampler_checks(settings: Settings, cache: Path) -> list[Check]:
    """Say which sampler was measured to be the faster, where a node would choose between two."""
    from sapo_edge.backends.choose import detect
    from sapo_edge.backends.llama.compare import rates_here

    model = local_model(settings)
    try:
        if model is None or settings.role != "trainer" or detect.detect(settings.backend, model).name != "llama_cpp":
            return []
        rates = rates_here(model, cache, settings.precision)
    except SapoError:
        # The checks of the backend and of the model say what is wrong.
        return []
    measured = str(rates or "measured when a node starts for the first time")
    return [Check("sampler", Status.PASS, measured if settings.sampler == "auto" else f"{settings.sampler}, as set")]


def local_model(settings: Settings) -> Path | None:
    """The model's file or directory; None if it is not on this machine."""
    from sapo_edge.backends.model.find import find_model

    try:
        return find_model(settings.model, download=False)
    except SapoError:
        return None


def model_check(settings: Settings) -> Check:
    """Check that the model is present, complete and of a supported architecture."""
    from sapo_edge.backends.model.find import find_model
    from sapo_edge.backends.model.hf_directory import HfDirectory
    from sapo_edge.backends.model.source import open_source

    try:
        path = find_model(settings.model, download=False)
        source = open_source(path, mlx=True)
    except SapoError as error:
        return Check("model", Status.FAIL, error.message, error.remedy)
    size = source.bytes if isinstance(source, HfDirectory) else path.stat().st_size
    return Check("model", Status.PASS, f"{source.model_name}, {source.architecture}, {size / 1e6:.0f} MB")


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes of memory that a round needs and that are free, on the machine or on its GPU."""

    needed: int
    free: int
    on_device: bool


def memory_need(model: Path, settings: Settings, shape: RoundShape) -> MemoryNeed | None:
    """Memory of a round with a model on the backend that would run it; None where it can't be told."""
    from sapo_edge.backends.choose import detect
    from sapo_edge.backends.machine.host import this_host
    from sapo_edge.backends.machine.memory import free_memory

    try:
        backend = detect.find_backend(detect.detect(settings.backend, model).name)
        if (on_device := backend.look(this_host(), model).free) < 0:
            return None
        needed = backend.estimate(model, shape)
    except SapoError:
        return None
    return MemoryNeed(needed, on_device or free_memory(shape.memory), bool(on_device))


def memory_check(settings: Settings, shape: RoundShape | None) -> Check:
    """Check that a round fits into the memory that the node's backend would use."""
    import psutil

    if shape is None:
        return Check("memory", Status.WARN, "need unknown without the manifest", "start `sapo run`, which fetches it")
    model = local_model(settings)
    memory = None if model is None else memory_need(model, settings, shape)
    if memory is None:
        machine = psutil.virtual_memory().available
        detail = f"{machine / 1e9:.1f} GB available, need unknown"
        remedy = "solve the failed checks first; of a GPU of AMD or Intel it is known when a node starts"
        return Check("memory", Status.WARN, detail, remedy)
    where = " on the GPU" if memory.on_device else ""
    detail = f"{memory.free / 1e9:.1f} GB available{where}, about {memory.needed / 1e9:.1f} GB needed"
    if memory.needed > memory.free:
        return Check("memory", Status.FAIL, detail, "close programs, use a smaller model, or lower rank and max_tokens")
    return Check("memory", Status.PASS, detail)
