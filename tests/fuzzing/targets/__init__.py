"""The targets: modules with a `TARGET`, whose name is the target's, or with several `TARGETS` by name."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from tests.fuzzing.target import Target

SEVERAL = {
    "addresses": ("address", "announcement", "invite"),
    "codes": ("code", "handover"),
    "files": ("adapter", "gguf", "journal", "pool_file"),
    "manifests": ("manifest_bytes", "manifest_toml", "question_data"),
    "scores": ("answers", "checks"),
    "streams": ("frame", "gossip", "identify"),
    "wire": ("claim", "exchange", "inflate", "message", "record", "request", "response", "structure"),
}
PLACES = {module.name: module.name for module in pkgutil.iter_modules(__path__) if module.name not in SEVERAL}
PLACES |= {name: module for module, names in SEVERAL.items() for name in names}
NAMES = tuple(sorted(PLACES))
"""All targets."""


def load(name: str) -> Target:
    """The target of a name, or "planted"; imports what it needs."""
    module = import_module("tests.fuzzing.planted" if name == "planted" else f"{__name__}.{PLACES[name]}")
    target: Target = module.TARGETS[name] if hasattr(module, "TARGETS") else module.TARGET
    return target
