"""What a relay leaves out of libp2p. No network."""

from __future__ import annotations

import importlib
import sys

import pytest

from sapo_edge.swarm.host.absent import leave_out
from sapo_edge.swarm.host.lean import be_lean


def test_what_is_left_out_can_be_named_and_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    leave_out(("no_such_package", "other.part"))
    module = importlib.import_module("no_such_package.inner")
    thing = module.Thing
    assert module.Thing.member and issubclass(type("Own", (thing,), {}), thing) and not isinstance(3, thing)
    with pytest.raises(ValueError, match="another"):
        try:
            raise ValueError("another")
        except thing:
            pytest.fail("it is caught as what nobody raises")
    for use in (thing, thing.from_bytes, type("Own", (thing,), {})):
        with pytest.raises(ModuleNotFoundError, match="left out"):
            use(b"data")
    for name in ("other", "no_such_package_either"):
        with pytest.raises(ModuleNotFoundError, match="No module named"):
            importlib.import_module(name)


def test_nothing_is_left_out_once_libp2p_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    finders = [*sys.meta_path]
    monkeypatch.setitem(sys.modules, "libp2p", sys)
    be_lean(is_private=False)
    assert sys.meta_path == finders
