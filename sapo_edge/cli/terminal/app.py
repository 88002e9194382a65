"""Builds and runs the terminal app; only this module of the program loads Textual."""

from __future__ import annotations

from pathlib import Path

from sapo_edge.backends.machine.allocator import share_one_heap
from sapo_edge.care.garbage import loading
from sapo_edge.errors import ExitCode
from sapo_edge.state import logs


def run_app(home: Path | None) -> ExitCode:
    """Show the terminal app until it is quit; returns its exit code, FAILED if it crashed and has printed why."""
    # The app owns the terminal: log lines would break its screen.
    logs.configure()
    share_one_heap()
    # Looking through all that loads takes a tenth of the start, and later 0.1 s of whichever key comes then.
    with loading() as loaded:
        from sapo_edge.cli.terminal.launcher import ProgramLauncher
        from sapo_edge.tui.app import SapoApp

        app = SapoApp(ProgramLauncher(home), loaded=loaded)
        result = app.run()
    if result is not None:
        return result
    return ExitCode.FAILED if app.return_code else ExitCode.DONE
