"""Asks where own questions are, or are to be."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input, Static

from sapo_edge.plain import printable
from sapo_edge.tui.node.launcher import JobResult, Launcher
from sapo_edge.tui.widgets.ask import typed_path
from sapo_edge.tui.widgets.dialog import WorkDialog
from sapo_edge.tui.widgets.job_line import JobLine

FOLDER = "my-questions"
"""Name of the proposed folder in the user's home directory."""
SUFFIXES = (".toml", ".jsonl", ".csv")
"""Of files that are taken; any other path becomes a folder."""
ABOUT = (
    "A folder is created with a manifest and a few questions, which you replace with your own. Or the path of a file "
    "that you have: a manifest (.toml), or questions (.jsonl, .csv)."
)


class NewQuestions(WorkDialog):
    """Takes a file, or writes a folder of questions to begin with. Stays open until it has one of both.

    Dismissed with whether it has.

    Attributes:
        file: the manifest, or the questions alone.
        written: whether both were written now.
    """

    DEFAULT_CSS = """
    NewQuestions #about { height: auto; }
    NewQuestions #path { border: none; height: 1; padding: 0 1; margin-top: 1; background: $panel; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "Cancel", id="path.cancel")]
    BUTTONS: ClassVar = {"take": ("OK", "take"), "close": ("Cancel", "leave")}
    AUTO_FOCUS = "#path"
    heading = "Your own questions"

    def __init__(self, launcher: Launcher) -> None:
        super().__init__()
        self._launcher = launcher
        self.file = self.questions = ""
        self.written = False

    def body(self) -> ComposeResult:
        yield Static(ABOUT, id="about", markup=False)
        yield Input(str(Path.home() / FOLDER), id="path", compact=True)
        yield JobLine(id="writing")

    @on(Input.Submitted)
    def action_take(self) -> None:
        line, typed = self.query_one(JobLine), self.query_one(Input).value.strip()
        if line.busy or not typed:
            return
        path = typed_path(typed)
        is_file, is_taken = os.path.isfile(path), Path(path).suffix.lower() in SUFFIXES
        if is_taken and is_file:
            self.file = self.questions = path
            self.finish()
        elif is_taken:
            line.say(f"there is no file {printable(path)}", "bad")
        elif is_file:
            line.say(f"{printable(path)} is neither a manifest nor questions: .toml, .jsonl or .csv", "bad")
        else:
            line.begin(self._launcher.job("tasks", "new", path), "writing", self._written)

    def _written(self, result: JobResult) -> None:
        self.file, self.questions = (str(result.record[name]) for name in ("manifest", "questions"))
        self.written = True
        self.finish()
