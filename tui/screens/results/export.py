"""Exports the adapter: a format, a folder, and the command that loads the result."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from sapo_edge.backends.adapter.export import BITS, DEFAULT_QUANTISATION, ExportFormat, Quantisation
from sapo_edge.plain import printable
from sapo_edge.tui.node.launcher import Launcher
from sapo_edge.tui.node.processes import JobResult
from sapo_edge.tui.widgets.dialog import Dialog, typed_path
from sapo_edge.tui.widgets.job_line import JobLine

ADAPTERS = {
    ExportFormat.GGUF: "adapter for llama.cpp",
    ExportFormat.PEFT: "adapter for transformers and PEFT",
    ExportFormat.MLX: "adapter for mlx-lm on a Mac",
}
"""Formats of the adapter without its model."""
ABOUT = "A whole model is a file for Ollama, LM Studio and others. An adapter is small, and needs its model beside it."
FOLDER = "sapo-adapter"
"""Name of the proposed folder in the user's home directory."""


def choices() -> dict[str, tuple[tuple[str, ...], str]]:
    """Every format: the flags of `sapo export` and a description, by name; the recommended one first."""
    bits = {form: f"whole model, {BITS[form]:.0f} bits a number" for form in Quantisation}
    # Without a quantisation, a model that is a directory can be merged, too.
    best = {str(DEFAULT_QUANTISATION): (("--to", "merged"), f"{bits.pop(DEFAULT_QUANTISATION)}, recommended")}
    merged = {str(form): (("--to", "merged", "--quantisation", str(form)), text) for form, text in bits.items()}
    adapters = {str(form): (("--to", str(form)), text) for form, text in ADAPTERS.items()}
    return {**best, **merged, **adapters}


class Export(Dialog[None]):
    """Writes the best adapter for another program, and says how to load it there."""

    HELP_TEXT = """\
**A whole model** is one file that Ollama, LM Studio and llama.cpp load as it is; fewer bits make it smaller and a
little worse. **Only the adapter** is a few megabytes, and needs the model that it was trained on beside it.

Choose a format with the arrow keys, and a folder with `Tab`; `Enter` writes. Existing files of the same name are
replaced. `c` copies the first command that loads the result.
"""
    DEFAULT_CSS = """
    Export #about { margin-bottom: 1; color: $text-muted; }
    Export #formats { max-height: 12; border: none; padding: 0; background: $surface; }
    Export #folder { padding: 0 1; background: $panel; }
    Export .label { height: 1; margin-top: 1; color: $text-muted; }
    Export #loads { margin-top: 1; display: none; }
    Export.-written #loads { display: block; }
    Export.-short #formats { max-height: 6; }
    Export.-short.-written #about { display: none; }
    Export.-tiny #formats { max-height: 3; }
    Export.-tiny #about { display: none; }
    Export.-tiny .label { margin-top: 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "write", "Write", key_display="⏎", id="export.write"),
        Binding("c", "copy", "Copy the command", id="export.copy"),
        Binding("escape", "leave", "Close", id="export.close"),
    ]
    BUTTONS: ClassVar = {"write": ("Write", "write"), "close": ("Close", "leave")}
    AUTO_FOCUS = "#formats"
    heading = "Export what was learned"

    def __init__(self, launcher: Launcher) -> None:
        super().__init__()
        self._launcher = launcher
        self._usage: dict[str, str] = {}

    def body(self) -> ComposeResult:
        yield Static(ABOUT, id="about", markup=False)
        yield OptionList(
            *(Option(Content(f"{name:7} {text}"), id=name) for name, (_, text) in choices().items()), id="formats"
        )
        yield Static("Folder", classes="label", markup=False)
        yield Input(str(Path.home() / FOLDER), id="folder", compact=True)
        yield JobLine(id="writing")
        yield Static(id="loads", markup=False)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action != "copy" or bool(self._usage)

    @on(OptionList.OptionSelected)
    @on(Input.Submitted)
    def action_write(self) -> None:
        line = self.query_one(JobLine)
        option = self.query_one("#formats", OptionList).highlighted_option
        folder = self.query_one("#folder", Input).value.strip()
        if line.busy or option is None or option.id is None:
            return
        if not folder:
            line.say("name a folder first", "bad")
            return
        flags, _ = choices()[option.id]
        self.remove_class("-written")
        line.begin(self._launcher.job("export", typed_path(folder), *flags), f"writing {option.id}", self._written)

    def _written(self, result: JobResult) -> None:
        self._usage = {printable(name): printable(text) for name, text in result.record["usage"].items()}
        self.query_one(JobLine).say(f"✓ written: {printable(result.record['path'])}", "good")
        lines = (f"{program:12} {command}" for program, command in self._usage.items())
        self.query_one("#loads", Static).update("\n".join(("Load it with:", *lines)))
        self.add_class("-written")
        self.refresh_bindings()

    def action_copy(self) -> None:
        program, command = next(iter(self._usage.items()))
        self.app.copy_to_clipboard(command)
        self.notify(f"the command for {program} is copied", timeout=3)
