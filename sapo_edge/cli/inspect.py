"""`sapo doctor`, `sapo paths` and `sapo config show`: what this machine has and how it is set up."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from sapo_edge.cli.output import print_json
from sapo_edge.cli.workspace import Workspace
from sapo_edge.doctor.check import Check, Status
from sapo_edge.doctor.machine import examine
from sapo_edge.errors import ExitCode, SapoError
from sapo_edge.state.paths import Paths


def run_doctor(workspace: Workspace, *, as_json: bool) -> ExitCode:
    """Print all checks; FAILED if one fails."""
    checks = [
        *examine(workspace.paths, workspace.settings, workspace.manifest, workspace.round_shape(), deep=True),
        *_network(workspace),
    ]
    if as_json:
        print_json({"checks": [asdict(check) for check in checks]})
    else:
        for check in checks:
            print(f"{check.status:4}  {check.name:16} {check.detail}")
            if check.remedy:
                print(f"{'':4}  {'':16} -> {check.remedy}")
    return ExitCode.FAILED if any(check.status is Status.FAIL for check in checks) else ExitCode.DONE


def _network(workspace: Workspace) -> list[Check]:
    """Checks of what the swarm needs; none for a node that works alone."""
    settings, swarm = workspace.settings, workspace.swarm
    if settings.network == "solo":
        return []
    if swarm is None:
        return [Check("swarm", Status.PASS, "none: the last one was left")]
    from sapo_edge.control.client import node_runs
    from sapo_edge.doctor.network import examine_network

    try:
        workspace.check_swarm()
    except SapoError as error:
        return [Check("swarm", Status.FAIL, error.message, error.remedy)]
    kind = "private" if swarm.private else "open"
    network = examine_network(
        port=settings.port,
        listen="loopback" if settings.listen == "loopback" else "all",
        mdns=settings.mdns == "on",
        bootstrap=(*settings.addresses, *swarm.bootstrap),
        swarm=swarm.manifest,
        psk=swarm.key,
        node_runs=node_runs(workspace.paths),
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
        print_json({name: str(path) for name, path in places.items()})
        return
    for name, path in places.items():
        print(f"{name:12} {path}")


def run_config_show(workspace: Workspace, *, as_json: bool) -> None:
    """Print every setting, its value and its source."""
    rows = workspace.resolved.rows()
    if as_json:
        settings = {row[0]: {"value": row[1], "source": row[2]} for row in rows}
        print_json({"settings": settings})
        return
    for row in rows:
        print(f"{row[0]:18} {row[1]!s:14} {row[2]}")
