"""Where the program starts.

Without arguments it is the terminal app, which then keeps no parser of command lines in memory: 11 MB of 73.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from sapo_edge.cli.ending import run_to_end
from sapo_edge.cli.output import accept_any_text, has_terminal
from sapo_edge.errors import ExitCode


def main() -> NoReturn:
    """Run the terminal app or a command, and exit with its documented code."""
    if os.name == "nt":
        # Before anything is imported that is not there.
        sys.exit("sapo: Python has no Unix sockets on Windows; use its Subsystem for Linux: `wsl --install`")
    # A shell that asks for completions sets the variable.
    if len(sys.argv) == 1 and "_SAPO_COMPLETE" not in os.environ and has_terminal():
        accept_any_text()
        sys.exit(run_to_end(show_app))
    from sapo_edge.cli.main import main as run_command

    run_command()


def show_app() -> ExitCode:
    """Show the terminal app of the home in the environment until it is quit."""
    from sapo_edge.cli.terminal.app import run_app

    return run_app(None)
