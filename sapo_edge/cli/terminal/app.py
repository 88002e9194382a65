"""Builds and runs the terminal app; only this module of the program loads Textual."""

from __future__ import annotations

from pathlib import Path

from sapo_edge.cli.terminal.launcher import ProgramLauncher
from sapo_edge.errors import ExitCode
from sapo_edge.state import logs
from sapo_edge.tui.app import SapoApp


def run_app(home: Path | None) -> ExitCode:
    """Show the terminal app until it is quit.

    Args:
        home: the directory of `--home`; None without it.

    Returns:
        The app's exit code; FAILED if it crashed, after it has printed why.
    """
    # The app owns the terminal: log lines would break its screen.
    logs.configure(stderr=False)
    app = SapoApp(ProgramLauncher(home))
    result = app.run()
    if result is not None:
        return result
    return ExitCode.FAILED if app.return_code else ExitCode.DONE
