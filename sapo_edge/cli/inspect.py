"""`sapo doctor`, `sapo paths` and `sapo config show`: what this machine has and how it is set up."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from sapo_edge.cli.session import Session
from sapo_edge.doctor.check import Check, Status
from sapo_edge.doctor.machine import examine
from sapo_edge.errors import ExitCode, SapoError
from sapo_edge.state.paths import Paths
from sapo_edge.tasks.manifest import load_manifest

SCHEMA = 1
"""Version of what `--json` prints."""


def run_doctor(session: Session, *, as_json: bool) -> ExitCode:
    """Print all checks; FAILED if one fails."""
    checks = [*examine(session.paths, session.settings, deep=True), *_network(session)]
    if as_json:
        print(json.dumps({"v": SCHEMA, "checks": [asdict(check) for check in checks]}))
    else:
        for check in checks:
            print(f"{check.status:4}  {check.name:16} {check.detail}")
            if check.remedy:
                print(f"{'':4}  {'':16} -> {check.remedy}")
    return ExitCode.FAILED if any(check.status is Status.FAIL for check in checks) else ExitCode.DONE


def _network(session: Session) -> list[Check]:
    """Checks of what the swarm needs; none for a node that works alone."""
    settings = session.settings
    if settings.network == "solo":
        return []
    from sapo_edge.control.client import node_runs
    from sapo_edge.doctor.network import examine_network
    from sapo_edge.swarm.joining.membership import Membership, Swarm

    try:
        membership = Membership(session.paths.state)
        swarm = membership.current or (None if membership.alone else Swarm.of(load_manifest(settings.manifest)))
    except SapoError as error:
        return [Check("swarm", Status.FAIL, error.message, error.remedy)]
    if swarm is None:
        return [Check("swarm", Status.PASS, "none: the last one was left")]
    kind = "private" if swarm.private else "open"
    network = examine_network(
        port=settings.port,
        listen="loopback" if settings.listen == "loopback" else "all",
        mdns=settings.mdns == "on",
        bootstrap=(*settings.addresses, *swarm.bootstrap),
        swarm=swarm.manifest,
        psk=swarm.key,
        node_runs=node_runs(session.paths),
    )
    return [Check("swarm", Status.PASS, f"{swarm.name}, {kind}"), *network]


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
