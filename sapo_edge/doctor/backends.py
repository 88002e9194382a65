"""What `sapo doctor` says about each backend: whether it can run here, what is missing, whether it is broken."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sapo_edge.config.settings import Settings
from sapo_edge.doctor.check import Check, Status
from sapo_edge.errors import BackendError, SapoError

if TYPE_CHECKING:
    from sapo_edge.backends.backend import Backend, RoundShape, Support

MEMORY_REMEDY = "close programs, use a smaller model, or lower rank and max_tokens"
REPAIR = "install its packages anew, with pip install --force-reinstall"


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The backend that a node would run; no name if there is none."""

    name: str = ""
    preference: int = 0
    trains: bool = True


def backend_checks(settings: Settings, *, deep: bool) -> list[Check]:
    """One check of the choice, and one of each backend.

    Args:
        settings: which backend is asked for, and which model.
        deep: load what each needs in a process of its own, which takes seconds: only that shows a broken package.
    """
    from sapo_edge.backends.choose import detect

    model = local_model(settings)
    found = detect.survey(model)
    broken = detect.probe(backend for backend, support in found if support.usable) if deep else {}
    chosen = _Chosen()
    try:
        choice = detect.detect(settings.backend, model)
    except BackendError as error:
        first = Check("backend", Status.FAIL, error.message, error.remedy)
    else:
        support = next(support for backend, support in found if backend.name == choice.name)
        chosen = _Chosen(choice.name, support.preference, support.trains or settings.role != "trainer")
        otherwise = f" (otherwise {choice.runner_up})" if choice.runner_up else ""
        first = Check("backend", Status.PASS, choice.reason + otherwise)
        if choice.name in broken:
            first = Check("backend", Status.FAIL, f"{choice.name} is broken: {broken[choice.name]}", REPAIR)
    return [first, *(_check(backend, support, chosen, broken) for backend, support in found)]


def _check(backend: Backend, support: Support, chosen: _Chosen, broken: dict[str, str]) -> Check:
    """How one backend stands, beside the one that was chosen."""
    name = backend.name
    if name in broken:
        return Check(name, Status.WARN, f"installed, but broken: {broken[name]}", REPAIR)
    if not support.usable:
        # llama.cpp's learner is torch.
        needed = not chosen.name or (name == "torch" and not chosen.trains)
        wanted = needed or support.potential > chosen.preference
        if not wanted:
            return Check(name, Status.PASS, f"not used: {support.reason}")
        remedy = support.remedy or "use another backend"
        return Check(name, Status.FAIL if needed else Status.WARN, support.missing or support.reason, remedy)
    detail = support.reason + _versions(backend)
    if support.missing and (support.potential > chosen.preference or name == chosen.name):
        return Check(name, Status.WARN, f"{detail}; {support.missing}", support.remedy)
    return Check(name, Status.PASS, detail)


def _versions(backend: Backend) -> str:
    found = []
    for package in backend.packages:
        try:
            found.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            # Its absence is what `look` tells of.
            continue
    return f" ({', '.join(found)})" if found else ""


def local_model(settings: Settings) -> Path | None:
    """The model's file or directory if it is on this machine; nothing is fetched."""
    from sapo_edge.backends.model.find import find_model

    try:
        return find_model(settings.model, download=False)
    except SapoError:
        # A check of its own says so.
        return None


def model_check(settings: Settings) -> Check:
    """Whether the model is there, whole and of a kind that can be trained."""
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


def memory_check(settings: Settings, shape: RoundShape) -> Check:
    """Whether a round fits into the memory that the chosen backend would use."""
    import psutil

    from sapo_edge.backends.choose import detect, registry
    from sapo_edge.backends.machine.host import this_host

    machine = int(psutil.virtual_memory().available)
    unknown = Check(
        "memory", Status.WARN, f"{machine / 1e9:.1f} GB available, need unknown", "mend the failed checks first"
    )
    model = local_model(settings)
    try:
        backend = registry.find_backend(detect.detect(settings.backend, model).name)
        if backend.estimate is None or model is None:
            return unknown
        need = backend.estimate(model, shape).total
    except SapoError:
        return unknown
    on_device = backend.look(this_host(), model).free
    free = on_device or machine
    detail = f"{free / 1e9:.1f} GB available{' on the GPU' if on_device else ''}, about {need / 1e9:.1f} GB needed"
    if need > free:
        return Check("memory", Status.FAIL, detail, MEMORY_REMEDY)
    return Check("memory", Status.PASS, detail)
