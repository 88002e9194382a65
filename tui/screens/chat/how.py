"""How the models are asked: as in training or plainly, greedily or by chance."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.events import Click
from textual.widgets import Static

from sapo_edge.tui.screens.chat.turn import warmth

TEMPERATURES = (0.0, 0.7, 1.0)
TASK = "asked as in training: with the task's prompt"
PLAIN = "without the task's prompt: training shows less"


class Choice(Static):
    """Something that a click changes.

    Args:
        action: of the screen.
    """

    DEFAULT_CSS = """
    Choice { width: auto; padding: 0 1; margin-right: 1; background: $panel; }
    Choice:hover { background: $primary 30%; }
    """

    def __init__(self, action: str, *, id: str) -> None:
        super().__init__(markup=False, id=id)
        self._action = action

    async def on_click(self, event: Click) -> None:
        """Change it."""
        event.stop()
        await self.screen.run_action(self._action)


class HowLine(Horizontal):
    """One line with both choices and the reason for the first.

    Attributes:
        as_task: with the manifest's prompt, which the adapter was trained with.
        temperature: 0 is greedy.
    """

    DEFAULT_CSS = """
    HowLine { height: 1; padding: 0 1; }
    HowLine #why { width: 1fr; color: $text-muted; text-wrap: nowrap; text-overflow: ellipsis; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.as_task = True
        self.temperature = TEMPERATURES[0]

    def compose(self) -> ComposeResult:
        """The widgets."""
        yield Choice("task", id="task")
        yield Choice("temperature", id="warmth")
        yield Static(markup=False, id="why")

    def on_mount(self) -> None:
        """Show what is chosen."""
        self._show()

    def next_way(self) -> None:
        """As in training, or plainly."""
        self.as_task = not self.as_task
        self._show()

    def next_temperature(self) -> None:
        """Greedy, or one of two temperatures."""
        self.temperature = TEMPERATURES[(TEMPERATURES.index(self.temperature) + 1) % len(TEMPERATURES)]
        self._show()

    def _show(self) -> None:
        self.query_one("#task", Static).update("as a task" if self.as_task else "plain chat")
        self.query_one("#warmth", Static).update(warmth(self.temperature))
        self.query_one("#why", Static).update(TASK if self.as_task else PLAIN)
