"""Where the user types a question, and chooses how the models are asked."""

from __future__ import annotations

from collections import deque
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.events import Key, Paste
from textual.widgets import Static, TextArea

from sapo_edge.plain import counted, printable
from sapo_edge.tui.screens.chat.transcript import describe_temperature
from sapo_edge.tui.widgets.small import Chip

MAX_QUESTION = 2000
"""Most characters of a question; the models read little more."""
MAX_EARLIER = 50
"""Earlier questions that the up arrow brings back."""
TEMPERATURES = (0.0, 0.7, 1.0)
TASK = "asked as in training: with the task's prompt"
PLAIN = "without the task's prompt: training shows less"


class AskBox(TextArea):
    """Grows with its text. Enter asks, Ctrl+J starts a new line, the up arrow brings earlier questions back."""

    DEFAULT_CSS = """
    AskBox {
        height: auto; min-height: 3; max-height: 8; padding: 0 1;
        border: round $border; border-title-color: $primary; border-title-style: bold;
        border-subtitle-color: $text-muted; background: $background;
    }
    AskBox:focus { border: round $primary; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "screen.submit", "Ask", id="chat.submit"),
        Binding("escape", "screen.back", "Other keys", id="chat.leave"),
        Binding("ctrl+j,shift+enter", "newline", "New line", show=False, id="chat.newline"),
    ]

    def __init__(self, *, id: str) -> None:
        super().__init__(
            id=id, soft_wrap=True, show_line_numbers=False, highlight_cursor_line=False, placeholder="type a question"
        )
        self._earlier: deque[str] = deque(maxlen=MAX_EARLIER)
        # An index into them; behind the last is the draft.
        self._shown = 0
        self._draft = ""

    def put(self, text: str) -> None:
        self.text = text
        self.move_cursor(self.document.end)

    def remember(self, text: str) -> None:
        if not self._earlier or self._earlier[-1] != text:
            self._earlier.append(text)
        self._shown, self._draft = len(self._earlier), ""
        self.text = ""

    async def _on_key(self, event: Key) -> None:
        if event.key == "enter":
            # TextArea would start a new line; the binding asks instead.
            event.prevent_default()

    async def _on_paste(self, event: Paste) -> None:
        # TextArea would draw escape sequences unchanged.
        event.prevent_default()
        event.stop()
        text = printable(event.text.replace("\r\n", "\n").replace("\r", "\n"), lines=True)
        self._put_in(text[: max(0, 2 * MAX_QUESTION - len(self.text) + len(self.selected_text))])

    def action_newline(self) -> None:
        self._put_in("\n")

    def _put_in(self, text: str) -> None:
        # TextArea's `insert` would leave what is selected.
        self.replace(text, *self.selection, maintain_selection_offset=False)

    def action_cursor_up(self, select: bool = False) -> None:
        """Go up; from the first line, to the question before."""
        if select or not self.cursor_at_first_line or not self._recall(-1):
            super().action_cursor_up(select)

    def action_cursor_down(self, select: bool = False) -> None:
        """Go down; from the last line, to the question after."""
        if select or not self.cursor_at_last_line or not self._recall(1):
            super().action_cursor_down(select)

    def _recall(self, step: int) -> bool:
        index = self._shown + step
        if not 0 <= index <= len(self._earlier):
            return False
        if self._shown == len(self._earlier):
            self._draft = self.text
        self._shown = index
        self.put(self._draft if index == len(self._earlier) else self._earlier[index])
        return True


class AskOptions(Horizontal):
    """One line that says how the next question is asked; a task has the manifest's prompt, as in the training."""

    DEFAULT_CSS = """
    AskOptions { height: 1; padding: 0 1; }
    AskOptions Chip { margin-right: 1; background: $panel; }
    AskOptions Chip:hover { background: $primary 30%; }
    AskOptions #why { width: 1fr; color: $text-muted; text-wrap: nowrap; text-overflow: ellipsis; }
    """

    as_task = True
    temperature = TEMPERATURES[0]

    def compose(self) -> ComposeResult:
        yield Chip("screen.task", id="task")
        yield Chip("screen.temperature", id="temperature")
        yield Static(markup=False, id="why")

    def show(self, remembered: int) -> None:
        """Show how it is asked, and how many questions the models remember."""
        self.query_one("#task", Static).update("as a task" if self.as_task else "plain chat")
        self.query_one("#temperature", Static).update(describe_temperature(self.temperature))
        plain = f"remembers {counted(remembered, 'question')} (n: new conversation)" if remembered else PLAIN
        self.query_one("#why", Static).update(TASK if self.as_task else plain)
