"""The commands of `sapo` by name. Each is loaded when it is used: all of them are most of a short command's start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, cast

import typer

from sapo_edge.cli.usage import CommandGroup

PLACES: Mapping[str, str] = {
    "run": "run.run", "start": "start.start", "eval": "adapters.evaluate", "chat": "chat.chat",
    "export": "adapters.export", "status": "control.status", "peers": "control.peers", "pause": "control.pause",
    "resume": "control.resume", "stop": "control.stop", "rollback": "rollback.rollback", "logs": "control.logs",
    "answer": "answer.answer", "doctor": "doctor.doctor", "bench": "bench.bench",
    "experiment": "experiment.experiment", "paths": "config.paths", "serve": "web.serve.serve",
    "relay": "relay.relay", "history": "history.history", "man": "manual.man", "backup": "backup.backup",
    "restore": "backup.restore", "uninstall": "uninstall.uninstall", "setup": "setup.setup",
    "config": "config.app", "checkpoints": "checkpoints.app", "models": "models.app", "runs": "runs.app",
    "service": "service.app", "swarm": "swarm.app", "tasks": "tasks.app", "identity": "identity.app",
}  # fmt: skip
"""Module and function, or group of commands, in the order of the help."""


class Commands(Mapping[str, Any]):
    """Typer's objects of the commands; reading one loads its module."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _load(name, PLACES[name])
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in PLACES

    def __iter__(self) -> Iterator[str]:
        return iter(PLACES)

    def __len__(self) -> int:
        return len(PLACES)


class Program(CommandGroup):
    """The group of all commands."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = cast("dict[str, Any]", Commands())


def _load(name: str, place: str) -> Any:
    module, _, attribute = place.rpartition(".")
    target = getattr(import_module(f"sapo_edge.cli.{module}"), attribute)
    if isinstance(target, typer.Typer):
        group = typer.main.get_group(target)
        group.name = name
        return group
    single = typer.Typer(add_completion=False)
    single.command(name)(target)
    return typer.main.get_command(single)
