"""The base of the app's dialogs, and the one that asks for a text, one of a few values, or whether to go on."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.events import Key, ScreenResume
from textual.screen import ModalScreen, ScreenResultType
from textual.widgets import Button, Input, OptionList, Static
from textual.widgets.option_list import Option

from sapo_edge.tui.node.launcher import Launcher
from sapo_edge.tui.widgets.footer import KeyFooter
from sapo_edge.tui.widgets.job_line import JobLine
from sapo_edge.tui.widgets.small import ScrollingScreen


class Dialog(ModalScreen[ScreenResultType], ScrollingScreen[ScreenResultType]):
    """A box with a title, a body, and a row of buttons, if there are any, above a footer; its border has a subtitle."""

    # The app's own keys do nothing in a modal screen, unless they have priority.
    BINDINGS: ClassVar[list[BindingType]] = [Binding("question_mark", "app.help", "Help", show=False, id="app.help")]
    BUTTONS: ClassVar[Mapping[str, tuple[str, str]]] = {}
    """Label and action of the screen, by the button's id."""
    HORIZONTAL_BREAKPOINTS = [(0, "-slim"), (72, "-narrow"), (100, "-wide")]  # noqa: RUF012

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
        for button in self.query(Button):
            button.compact = self.app.size.height < 20


class WorkDialog(Dialog[bool]):
    """A dialog whose work may end while another screen, such as the help, is in front of it."""

    _finished = False

    def __init__(self, launcher: Launcher) -> None:
        super().__init__()
        self._launcher = launcher

    def finish(self) -> None:
        """Close with True, as soon as this dialog is in front: another screen would be closed in its place."""
        self._finished = True
        if self.app.screen is self:
            self.dismiss(True)

    def on_screen_resume(self, event: ScreenResume) -> None:
        if self._finished:
            self.dismiss(True)


def typed_path(text: str) -> str:
    """The absolute path that somebody typed, perhaps with `~`."""
    # Unlike `Path.expanduser`, this takes the name of a user whom nobody knows as it is.
    path = os.path.expanduser(text)
    try:
        return os.path.abspath(path)
    except FileNotFoundError:
        # The directory in which the app was started is gone.
        return path


class Ask(Dialog[str | None]):
    """Dismissed with the text or value; with "yes" if it only asks whether to go on; with None if it was cancelled.

    Args:
        text: proposed, to be changed; None if there is nothing to type.
        values: labels of the values to choose from, in place of a text to type; `text` is the one of now.
        problem: says what is wrong with a typed text; "" if nothing. A wrong text can't be taken.
        hint: what an empty text means.
        key: takes it, where nothing is typed.
    """

    DEFAULT_CSS = """
    Ask #about { height: auto; max-height: 12; }
    Ask #values { max-height: 8; border: none; padding: 0 1; margin-top: 1; background: $panel; }
    Ask.-tiny #about { max-height: 4; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,up", "app.focus_previous", "Other", show=False, id="ask.back"),
        Binding("right,down", "app.focus_next", "Other", show=False, id="ask.on"),
        Binding("escape", "leave", "Cancel", id="ask.cancel"),
    ]
    BUTTONS: ClassVar = {"take": ("OK", "take"), "close": ("Cancel", "leave")}

    def __init__(
        self,
        heading: str,
        about: str | Content,
        text: str | None = None,
        *,
        values: Mapping[str, str] | None = None,
        problem: Callable[[str], str] = lambda text: "",
        hint: str = "",
        labels: tuple[str, str] = ("OK", "Cancel"),
        key: str = "y",
    ) -> None:
        super().__init__()
        self.heading = heading
        self._about = about
        self._text = text
        self._values = dict(values or {})
        self._problem = problem
        self._hint = hint
        self._labels = labels
        self._key = key

    def body(self) -> ComposeResult:
        with VerticalScroll(id="about", can_focus=False):
            yield Static(self._about, markup=False)
        if self._values:
            yield OptionList(*(Option(Content(label)) for label in self._values.values()), id="values")
        elif self._text is not None:
            yield Input(self._text, placeholder=self._hint, id="text", compact=True)
            yield Static(id="wrong", markup=False)

    def on_mount(self) -> None:
        for name, label in zip(self.BUTTONS, self._labels, strict=True):
            self.query_one(f"#{name}", Button).label = label
        self.query_one("#values" if self._values else "#take" if self._text is None else "#text").focus()
        if self._text in self._values:
            self.query_one(OptionList).highlighted = list(self._values).index(self._text)

    def on_key(self, event: Key) -> None:
        if self._text is None and event.key in (self._key, "n"):
            # The screen below would take the key, too.
            event.stop()
            self.dismiss("yes" if event.key == self._key else None)

    @on(Input.Changed)
    def _check(self, event: Input.Changed) -> None:
        self.query_one("#wrong", Static).update(self._problem(event.value))

    @on(OptionList.OptionSelected)
    @on(Input.Submitted)
    def action_take(self) -> None:
        if self._values:
            index = self.query_one(OptionList).highlighted
            self.dismiss(None if index is None else list(self._values)[index])
        elif self._text is None:
            self.dismiss("yes")
        elif not self._problem(text := self.query_one(Input).value.strip()):
            self.dismiss(text)
