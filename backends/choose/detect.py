"""Which backend this machine runs, and why; what keeps a better one from running."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from sapo_edge.backends.apple.backend import BACKEND as MLX
from sapo_edge.backends.backend import Backend, OpenOptions, Support
from sapo_edge.backends.llama.backend import BACKEND as LLAMA_CPP
from sapo_edge.backends.machine.host import Host, this_host
from sapo_edge.backends.machine.memory import free_memory
from sapo_edge.backends.pytorch.backend import BACKEND as TORCH
from sapo_edge.backends.pytorch.backend import CPU
from sapo_edge.children import python_command
from sapo_edge.errors import BackendError, ModelError
from sapo_edge.plain import did_you_mean
from sapo_edge.policy import Policy

BACKENDS = (LLAMA_CPP, TORCH, MLX)
"""In the order in which they are shown. `sapo_edge.config.settings` has their names too: it imports no backend."""
AUTO = "auto"
PROBE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class ChosenBackend:
    """The backend to run, by its name in the settings, and the reason in words.

    Attributes:
        reason: what it runs on, and why it was chosen.
        runner_up: what would be chosen without it, in words; "" if there is nothing else.
        missing: what keeps each better backend from running, and the remedy, a sentence each.
        automatic: whether the user left the choice open: another backend may replace it if it fails.
    """

    name: str
    reason: str
    runner_up: str = ""
    missing: tuple[str, ...] = ()
    automatic: bool = False


def find_backend(name: str) -> Backend:
    backends = {backend.name: backend for backend in BACKENDS}
    if name not in backends:
        remedy = did_you_mean(name, backends, f"use one of: {', '.join([AUTO, *backends])}")
        raise BackendError(f"there is no backend {name!r}", remedy)
    return backends[name]


def detect(name: str = AUTO, model: Path | None = None, host: Host | None = None) -> ChosenBackend:
    """Choose the backend. Loads none.

    Args:
        name: "auto", or the backend that the user set.
        model: a GGUF file or a directory: not every backend reads both, or has memory for it.

    Raises:
        BackendError: if none can be used, or not the one that the user set.
    """
    host = host or this_host()
    if name != AUTO:
        backend = find_backend(name)
        support = backend.look(host, model)
        if not support.usable:
            raise BackendError(f"{backend.title} can't be used: {support.reason}", support.remedy or "use another")
        missing: tuple[str, ...] = (_sentence(support),) if support.missing else ()
        return ChosenBackend(name, f"{backend.title}, as set: {support.reason}", missing=missing)
    ranked = _rank(host, model)
    usable = [(backend, support) for backend, support in ranked if support.usable]
    if not usable:
        reasons = "; ".join(f"{backend.name}: {support.reason}" for backend, support in ranked)
        raise BackendError(f"no backend can be used ({reasons})", ranked[0][1].remedy)
    (backend, best), *others = usable
    # What the best one itself lacks counts too: with it, it could do more.
    lacking = (each for _, each in ranked if each.missing and (each is best or each.potential > best.preference))
    missing = tuple(map(_sentence, lacking))
    runner_up = f"{others[0][0].title}: {others[0][1].reason}" if others else ""
    return ChosenBackend(backend.name, f"{backend.title}: {best.reason}", runner_up, missing, automatic=True)


def _rank(host: Host, model: Path | None) -> list[tuple[Backend, Support]]:
    return sorted(survey(model, host), key=lambda pair: pair[1].preference, reverse=True)


def _sentence(support: Support) -> str:
    return f"{support.missing}; {support.remedy}" if support.remedy else support.missing


def survey(model: Path | None = None, host: Host | None = None) -> list[tuple[Backend, Support]]:
    host = host or this_host()
    return [(backend, backend.look(host, model)) for backend in BACKENDS]


def probe(backends: Iterable[Backend]) -> dict[str, str]:
    """Load what each backend needs in processes of their own, at the same time, which takes seconds.

    Returns, by the name of each backend that failed, the last line of its error.
    """
    probed = list(backends)
    with ThreadPoolExecutor(len(BACKENDS)) as pool:
        failures = pool.map(_probe, probed)
        return {backend.name: failure for backend, failure in zip(probed, failures, strict=True) if failure}


def _probe(backend: Backend) -> str:
    command = python_command("-c", backend.probe)
    try:
        ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        return f"loading it took more than {PROBE_SECONDS:.0f} s"
    lines = [line.strip() for line in ended.stderr.splitlines() if line.strip()]
    return (lines or [f"it ended with code {ended.returncode}"])[-1] if ended.returncode else ""


def open_policy(choice: ChosenBackend, options: OpenOptions) -> tuple[Policy, tuple[str, ...]]:
    """Open the chosen backend's policy; returns it with the reasons for the choice and for what it chose by itself.

    If the choice was automatic and the backend turns out to be broken, the next best one replaces it.

    Raises:
        BackendError: if the backend is broken or incomplete.
        ModelError: if it can't use the model, or `size` does not fit into the memory.
    """
    try:
        return _open(choice, options)
    except BackendError as error:
        if not choice.automatic:
            raise
        failure = error
    for backend, support in _rank(this_host(), options.model):
        if backend.name == choice.name or not support.usable:
            continue
        options.narrate(f"{choice.name} can't be used: {failure}")
        replacement = ChosenBackend(backend.name, f"{backend.title}, because {choice.name} failed: {failure.message}")
        try:
            return _open(replacement, options)
        except BackendError as error:
            options.narrate(f"{backend.name} can't be used either: {error.message}")
    raise failure


def as_learner_samples(choice: ChosenBackend, options: OpenOptions) -> ChosenBackend:
    """The backend that samples as a node does that learns here: some answers differ between llama.cpp and torch.

    It is torch's where the llama.cpp backend lets torch sample, unless it does not fit, or would take a GPU.
    """
    from sapo_edge.backends.llama.compare import TORCH as BY_TORCH
    from sapo_edge.backends.llama.compare import rates_here

    if choice.name != LLAMA_CPP.name or options.size is None or options.sampler == LLAMA_CPP.name:
        return choice
    rates = rates_here(options.model, options.cache, options.precision)
    is_faster = options.sampler == TORCH.name or (rates is not None and rates.faster == BY_TORCH)
    torch = TORCH.look(this_host(), options.model)
    if not is_faster or not torch.usable or torch.preference != CPU:
        return choice
    fits = TORCH.estimate(options.model, options.size) <= free_memory(options.size.memory)
    return ChosenBackend(TORCH.name, "torch on the CPU, which samples while a model learns here") if fits else choice


def _open(choice: ChosenBackend, options: OpenOptions) -> tuple[Policy, tuple[str, ...]]:
    backend = find_backend(choice.name)
    _check_memory(backend, options)
    policy = backend.open(options)
    return policy, (choice.reason, *choice.missing, *policy.reasons)


def _check_memory(backend: Backend, options: OpenOptions) -> None:
    """Refuse a round that does not fit into the machine's memory. A GPU's is checked by the backend that uses it."""
    if options.size is None or backend.look(this_host(), options.model).free:
        return
    needed, free = backend.estimate(options.model, options.size), free_memory(options.size.memory)
    if needed > free:
        raise ModelError(
            f"a round takes {needed / 1e9:.1f} GB of memory with {backend.name}, and {free / 1e9:.1f} GB are free",
            "close programs, ask for shorter answers (max_tokens), take a model with fewer weights or fewer bits (of a "
            "directory, with quantise), or set memory to the GB that it may take",
        )
