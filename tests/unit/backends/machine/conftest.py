"""Control groups as a test writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sapo_edge.backends.machine import groups as control_groups


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Has the groups in `cgroup`, and in `own` those of this process."""
    monkeypatch.setattr(control_groups, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(control_groups, "OWN_GROUPS", tmp_path / "own")
    return tmp_path
