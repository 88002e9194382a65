"""Which backend this host runs, and why."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sapo_edge.errors import BackendError

if TYPE_CHECKING:
    from sapo_edge.policy import LoraSettings, Policy


@dataclass(frozen=True, slots=True)
class Choice:
    """A backend by the name it has in the settings, and the reason in words."""

    name: str
    reason: str


def detect(asked: str = "auto") -> Choice:
    """Choose the backend.

    Args:
        asked: "auto", or a name that the user gave.

    Raises:
        BackendError: if what it needs is not installed.
    """
    if importlib.util.find_spec("llama_cpp") is None:
        raise BackendError("llama-cpp-python is not installed", "install it with: pip install llama-cpp-python")
    if asked == "llama_cpp":
        return Choice(asked, "llama.cpp on the CPU, as asked for")
    return Choice("llama_cpp", "llama.cpp on the CPU: it runs on every host")


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
) -> tuple[Policy, tuple[str, ...]]:
    """Make the chosen backend's policy; returns it with the reasons of what it chose itself.

    Raises:
        BackendError: if the backend is broken or incomplete.
        ModelError: if it can't use the model.
    """
    from sapo_edge.backends.llama_cpp import LlamaCppPolicy

    policy = LlamaCppPolicy(
        model, cache=cache, workspace=workspace, lora=lora, threads=threads, trainable=trainable, narrate=narrate
    )
    reasons = (choice.reason, f"sampling: {policy.sampler.reason}", f"threads: {policy.governor.reason}")
    return policy, reasons
