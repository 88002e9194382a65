"""The command line: `sapo` and `sapo-edge`."""

from __future__ import annotations

import os
import sys
from typing import Annotated, NoReturn

import typer
from typer.exceptions import TyperException

import sapo_edge
from sapo_edge.cli.commands import PLACES, Program
from sapo_edge.cli.ending import run_to_end
from sapo_edge.cli.options import Home
from sapo_edge.cli.output import accept_any_text, has_terminal
from sapo_edge.errors import ConfigError, ExitCode
from sapo_edge.plain import printable
from sapo_edge.state.paths import HOME_VARIABLE, Paths

app = typer.Typer(
    name="sapo",
    cls=Program,
    help="Post-train a small language model with reinforcement learning, alone or in a swarm that shares rollouts.\n\n"
    "Without a command: the terminal app.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print(f"sapo-edge {sapo_edge.__version__}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    home: Home = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Run the terminal app if there is no command; otherwise set the home directory for the command."""
    if context.invoked_subcommand is not None:
        if home is not None:
            # A command's own --home wins over the environment.
            os.environ[HOME_VARIABLE] = str(Paths.default(home).home)
        return
    if not has_terminal():
        print(context.get_help())
        raise typer.Exit(ExitCode.USAGE)
    from sapo_edge.cli.terminal.app import run_app

    raise typer.Exit(run_app(home))


def main() -> NoReturn:
    """Run a command and exit with its documented code."""
    accept_any_text()
    sys.exit(run_to_end(_run_command))


def _run_command() -> object:
    try:
        # The name is that of the completion, too, however the program was started.
        return app(prog_name="sapo", standalone_mode=False)
    except TyperException as error:
        text = " ".join(error.format_message().replace("Value error, ", "").split()).rstrip(".")
        # Without a text, the help of a group was printed already.
        if text:
            context = getattr(error, "ctx", None)
            named = " ".join(["sapo", *[word for word in sys.argv[1:] if word in PLACES][:1]])
            command = named if context is None else context.command_path
            problem = ConfigError(printable(text[0].lower() + text[1:]), f"see `{command} --help`")
            print(f"sapo: {problem}", file=sys.stderr)
        return ExitCode.USAGE
    except typer.Abort:
        print("sapo: the input ended; answer the questions of the command", file=sys.stderr)
        return ExitCode.FAILED
