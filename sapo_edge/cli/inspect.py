"""`sapo doctor`, `sapo paths` and `sapo config show`: what this machine has and how it is set up."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from sapo_edge.cli.session import Session
from sapo_edge.doctor import Status, examine
from sapo_edge.errors import ExitCode
from sapo_edge.paths import Paths

SCHEMA = 1
"""Version of what `--json` prints."""


def run_doctor(session: Session, *, as_json: bool) -> ExitCode:
    """Print all checks; FAILED if one fails."""
    checks = examine(session.paths, session.settings)
    if as_json:
        print(json.dumps({"v": SCHEMA, "checks": [asdict(check) for check in checks]}))
    else:
        for check in checks:
            print(f"{check.status:4}  {check.name:16} {check.detail}")
            if check.remedy:
                print(f"{'':4}  {'':16} -> {check.remedy}")
    return ExitCode.FAILED if any(check.status is Status.FAIL for check in checks) else ExitCode.DONE


def run_paths(home: Path | None, *, as_json: bool) -> None:
    """Print every place where files are kept."""
    paths = Paths.default(home)
    places = {
        "config": paths.config_file, "state": paths.state, "checkpoints": paths.checkpoints, "journal": paths.journal,
        "identity": paths.identity, "log": paths.log, "cache": paths.cache, "runtime": paths.runtime,
    }  # fmt: skip
    if as_json:
        print(json.dumps({"v": SCHEMA, **{name: str(path) for name, path in places.items()}}))
        return
    for name, path in places.items():
        print(f"{name:12} {path}")


def run_config_show(session: Session, *, as_json: bool) -> None:
    """Print every setting, its value and its source."""
    rows = session.resolved.rows()
    if as_json:
        settings = {row[0]: {"value": row[1], "source": row[2]} for row in rows}
        print(json.dumps({"v": SCHEMA, "settings": settings}))
        return
    for row in rows:
        print(f"{row[0]:18} {row[1]!s:14} {row[2]}")
