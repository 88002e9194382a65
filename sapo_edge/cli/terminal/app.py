"""The terminal app, put together: nothing else of the program loads Textual."""

from __future__ import annotations

from pathlib import Path

from sapo_edge.cli.terminal.launcher import ProgramLauncher
from sapo_edge.errors import ExitCode
from sapo_edge.state import logs
from sapo_edge.tui.app import SapoApp


def run_app(home: Path | None) -> ExitCode:
    """Show the terminal app until it is quit.

    Args:
        home: that the user named with --home; None if there is none.

    Returns:
        What the app ended with; FAILED if it crashed, which it has then told on the terminal.
    """
    # The terminal is the app's: nobody else may write to it.
    logs.configure(stderr=False)
    app = SapoApp(ProgramLauncher(home))
    result = app.run()
    if result is not None:
        return result
    return ExitCode.FAILED if app.return_code else ExitCode.DONE
