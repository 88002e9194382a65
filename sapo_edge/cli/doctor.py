"""`sapo doctor`: what could keep a node from working on this machine, each with its remedy."""

from __future__ import annotations

from dataclasses import asdict

import typer

from sapo_edge.cli.options import Backend, Home, Json, ManifestName, Model
from sapo_edge.cli.output import emit
from sapo_edge.cli.workspace import open_workspace
from sapo_edge.doctor.check import Check, Status
from sapo_edge.errors import ExitCode, SapoError
from sapo_edge.library.workspace import Workspace


def doctor(
    model: Model = None, manifest: ManifestName = None, backend: Backend = None, home: Home = None, json: Json = False
) -> None:
    """Check this machine: pass, warn or fail, each with its remedy."""
    from sapo_edge.doctor.machine import examine

    workspace = open_workspace(home, {"model": model, "manifest": manifest, "backend": backend})
    checks = examine(workspace.paths, workspace.settings, workspace.manifest, workspace.round_shape(), deep=True)
    checks += _check_network(workspace)
    lines = [
        f"{check.status:4}  {check.name:16} {check.detail}" + (f"\n{'':22} -> {check.remedy}" if check.remedy else "")
        for check in checks
    ]
    emit({"checks": [asdict(check) for check in checks]}, lines, json)
    raise typer.Exit(ExitCode.FAILED if any(check.status is Status.FAIL for check in checks) else ExitCode.DONE)


def _check_network(workspace: Workspace) -> list[Check]:
    """Checks of what the swarm needs; none for a node that works alone by its settings."""
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
    kind = "private" if swarm.is_private else "open"
    network = examine_network(settings, swarm, node_runs=node_runs(workspace.paths))
    return [Check("swarm", Status.PASS, f"{swarm.name}, {kind}"), *network]
