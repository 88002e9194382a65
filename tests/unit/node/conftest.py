"""Fixtures for tests of the node."""

from __future__ import annotations

from pathlib import Path

import pytest

from sapo_edge.tasks.manifest import load_manifest
from tests.fakes import LengthScored
from tests.unit.node.machine import Machine


@pytest.fixture(scope="package")
def source() -> LengthScored:
    return LengthScored(load_manifest("starter"))


@pytest.fixture
def machine(tmp_path: Path, source: LengthScored) -> Machine:
    return Machine(tmp_path / "home", source)
