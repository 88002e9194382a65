"""One line with a remedy for a command line that can't be understood."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from sapo_edge.errors import ConfigError
from sapo_edge.plain import did_you_mean, printable


class CommandGroup(TyperGroup):
    """A group of commands that names the command nearest to a wrong one."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that the first argument names."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            path = [] if ctx.parent is None else [ctx.info_name]
            raise _error(
                f"there is no command `{_join([*path, printable(name)])}`", name, self.list_commands(ctx), path
            )
        return super().resolve_command(ctx, args)


def usage_error(error: TyperException, app: typer.Typer, arguments: Sequence[str]) -> ConfigError | None:
    """The error for the user; None if the help of a group was printed already."""
    command: Any = typer.main.get_command(app)
    path = []
    for argument in arguments:
        if argument in getattr(command, "commands", {}):
            command = command.commands[argument]
            path.append(argument)
    if hasattr(error, "possibilities"):
        name = str(getattr(error, "option_name", ""))
        options = [option for parameter in command.params for option in parameter.opts if option.startswith("--")]
        return _error(f"`{_join(path)}` has no option {printable(name)}", name, options, path)
    text = " ".join(error.format_message().replace("Value error, ", "").split())
    if not text:
        return None
    return ConfigError(printable(text[0].lower() + text[1:].rstrip(".")), _see_help(path))


def _error(message: str, name: str, names: Sequence[str], path: Sequence[str]) -> ConfigError:
    """The error for a wrong name, with the one nearest to it."""
    help_command = _see_help(path)
    nearest = did_you_mean(name, names, "")
    return ConfigError(message, f"{nearest} S{help_command[1:]}" if nearest else help_command)


def _see_help(path: Sequence[str]) -> str:
    return f"see `{_join(path)} --help`"


def _join(path: Sequence[str]) -> str:
    return " ".join(["sapo", *path])
