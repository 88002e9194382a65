"""All defences: the `DEFENCES` of each file here."""

from __future__ import annotations

import importlib
import pkgutil

from tests.defences.defence import Defence

DEFENCES: tuple[Defence, ...] = tuple(
    defence
    for file in sorted(pkgutil.iter_modules(__path__), key=lambda file: file.name)
    for defence in importlib.import_module(f"{__name__}.{file.name}").DEFENCES
)
