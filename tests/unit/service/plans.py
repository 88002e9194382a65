"""Plans of services for tests."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from sapo_edge.service.plan import ServicePlan
from sapo_edge.state.paths import Paths


def plan(home: Path, **changes: Any) -> ServicePlan:
    command = ("/usr/bin/python3", "-P", "-m", "sapo_edge", "run", "--home", str(home))
    base = ServicePlan("sapo-edge", command, Paths.default(home), user="", memory=2**31, nice=10)
    return dataclasses.replace(base, **changes)
