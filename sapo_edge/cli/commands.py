"""The commands of `sapo` by name. Each is loaded when it is used: all of them are most of a short command's start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any, cast

import typer
from typer.core import TyperGroup

GROUPS: Mapping[str, Mapping[str, str]] = {
    "Train": {
        "run": "run.run", "start": "start.start", "status": "control.status", "logs": "logs.logs",
        "pause": "control.pause", "resume": "control.resume", "stop": "control.stop",
    },
    "Use what was learned": {
        "report": "report.report", "chat": "chat.chat", "api": "api.serve.api", "eval": "adapters.evaluate",
        "export": "adapters.export", "push": "push.push", "pull": "push.pull", "history": "report.history",
    },
    "Tasks, models and runs": {
        "tasks": "tasks.app", "models": "models.app", "runs": "runs.app", "checkpoints": "checkpoints.app",
        "rollback": "checkpoints.rollback",
    },
    "Swarm": {
        "swarm": "swarm.app", "peers": "control.peers", "answer": "answer.answer", "identity": "identity.app",
        "relay": "relay.relay",
    },
    "This machine": {
        "setup": "setup.setup", "config": "config.app", "doctor": "doctor.doctor", "bench": "bench.bench",
        "service": "service.app", "web": "web.serve.web", "paths": "config.paths", "backup": "backup.backup",
        "restore": "backup.restore", "uninstall": "uninstall.uninstall",
    },
    "Research": {"experiment": "experiment.experiment"},
}  # fmt: skip
"""Module and function, or group of commands, under the headings and in the order of the help."""
PLACES: Mapping[str, str] = {name: place for group in GROUPS.values() for name, place in group.items()}


class Commands(Mapping[str, Any]):
    """Typer's objects of the commands; reading one loads its module."""

    def __getitem__(self, name: str) -> Any:
        return _load(name)

    def __iter__(self) -> Iterator[str]:
        return iter(PLACES)

    def __len__(self) -> int:
        return len(PLACES)


class Program(TyperGroup):
    """The group of all commands."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = cast("dict[str, Any]", Commands())


@cache
def _load(name: str) -> Any:
    module, _, attribute = PLACES[name].rpartition(".")
    target = getattr(import_module(f"sapo_edge.cli.{module}"), attribute)
    if isinstance(target, typer.Typer):
        command: Any = typer.main.get_group(target)
        command.name = name
    else:
        single = typer.Typer(add_completion=False)
        single.command(name)(target)
        command = typer.main.get_command(single)
    command.rich_help_panel = next(title for title, group in GROUPS.items() if name in group)
    return command
