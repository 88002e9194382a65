"""Lets imports of libraries succeed that are left out: another library imports them, and nothing here calls them.

py-libp2p imports all of its parts, and with them libraries for QUIC, HTTP and more. `packaging/wheels.py` makes wheels
that don't require them.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def leave_out_missing(*names: str) -> None:
    """`leave_out` those packages that are not installed."""
    missing = [name for name in names if name not in sys.modules and importlib.util.find_spec(name) is None]
    if missing:
        leave_out(missing)


def leave_out(names: Sequence[str]) -> None:
    """From now on, let imports of these modules succeed without loading them.

    What is imported from them can be named, compared, inherited from and caught. A call raises ModuleNotFoundError.
    """
    sys.meta_path.insert(0, _Finder(names))


class _Finder(MetaPathFinder, Loader):
    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        is_unused = any(name == unused or name.startswith(f"{unused}.") for unused in self._names)
        return ModuleSpec(name, self, is_package=True) if is_unused else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing."""


class _Module(ModuleType):
    def __getattr__(self, name: str) -> type:
        return _stand_in(f"{self.__name__}.{name}", name)


class _StandIn(type):
    """What stands for a class, function or value of a module that is left out."""

    def __getattr__(cls, name: str) -> type:
        return _stand_in(f"{cls.__qualname__}.{name}", name)

    def __call__(cls, *_: object, **__: object) -> object:
        raise ModuleNotFoundError(f"{cls.__qualname__} is left out")


def _stand_in(path: str, name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return _StandIn(name, (Exception,), {"__qualname__": path})
