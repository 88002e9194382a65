"""The base of the app's dialogs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.events import ScreenResume
from textual.screen import ModalScreen, ScreenResultType
from textual.widgets import Button

from sapo_edge.tui.widgets.footer import KeyFooter
from sapo_edge.tui.widgets.job_line import JobLine
from sapo_edge.tui.widgets.small import ScrollingScreen


class Dialog(ModalScreen[ScreenResultType], ScrollingScreen[ScreenResultType]):
    """A box with a title, a body, and a row of buttons, if there are any, above a footer.

    Attributes:
        BUTTONS: label and action of the screen, by the button's id.
        subtitle: the text in the lower border.
    """

    # The app's own keys do nothing in a modal screen, unless they have priority.
    BINDINGS: ClassVar[list[BindingType]] = [Binding("question_mark", "app.help", "Help", show=False, id="app.help")]
    BUTTONS: ClassVar[Mapping[str, tuple[str, str]]] = {}
    # Textual declares them as attributes of the instance.
    HORIZONTAL_BREAKPOINTS: list[tuple[int, str]] | None = [(0, "-slim"), (72, "-narrow"), (100, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS: list[tuple[int, str]] | None = [(0, "-tiny"), (20, "-short"), (32, "-tall")]  # noqa: RUF012

    heading = ""
    subtitle = ""

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            box.border_title, box.border_subtitle = Content(self.heading), Content(self.subtitle)
            yield from self.body()
            if self.BUTTONS:
                with Horizontal(classes="buttons"):
                    for name, (label, action) in self.BUTTONS.items():
                        yield Button(label, id=name, action=f"screen.{action}")
        if self.BUTTONS:
            yield KeyFooter(compact=True)

    def body(self) -> ComposeResult:
        """The widgets between title and buttons."""
        raise NotImplementedError

    def action_leave(self) -> None:
        """Stop the command that runs; without one, close."""
        for line in self.query(JobLine):
            if line.busy:
                line.stop()
                return
        self.dismiss(None)

    def on_resize(self) -> None:
        """Draw buttons on one line each where there are few lines."""
        for button in self.query(Button):
            button.compact = self.app.size.height < 20


class WorkDialog(Dialog[bool]):
    """A dialog whose work may end while another screen, such as the help, is in front of it."""

    _finished = False

    def finish(self) -> None:
        """Close with True, as soon as this dialog is in front: another screen would be closed in its place."""
        self._finished = True
        if self.app.screen is self:
            self.dismiss(True)

    def on_screen_resume(self, event: ScreenResume) -> None:
        if self._finished:
            self.dismiss(True)
