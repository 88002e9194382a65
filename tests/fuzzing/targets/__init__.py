"""The targets, one module each with a `TARGET`. The module's name is the target's."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from tests.fuzzing.target import Target

NAMES = tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))
"""All targets."""


def load(name: str) -> Target:
    """The target of a name, or "planted"; imports what it needs."""
    module = "tests.fuzzing.planted" if name == "planted" else f"{__name__}.{name}"
    target: Target = import_module(module).TARGET
    return target
