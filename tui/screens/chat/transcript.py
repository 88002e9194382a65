"""What was asked and answered in the chat."""

from __future__ import annotations

from collections import deque

from textual.containers import VerticalScroll
from textual.widget import Widget

from sapo_edge.tui.screens.chat.turn import AnswerBox, Turn

MAX_TURNS = 20
"""Questions whose answers are kept; older ones go."""


class Transcript(VerticalScroll):
    """The last questions, the newest at the end."""

    DEFAULT_CSS = "Transcript { height: 1fr; scrollbar-size-vertical: 1; }"

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._turns: deque[Turn] = deque()

    @property
    def last(self) -> Turn | None:
        """The newest; None before the first."""
        return self._turns[-1] if self._turns else None

    def begin(self, question: str, *, task: bool, temperature: float) -> Turn:
        """Show a question, without answers yet."""
        turn = Turn(question, task=task, temperature=temperature)
        self.mount(turn)
        self._turns.append(turn)
        if len(self._turns) > MAX_TURNS:
            self._turns.popleft().remove()
        self.scroll_end(animate=False)
        return turn

    def draw(self, turn: Turn, doing: str) -> None:
        """Show what was said since the last time, and go along to its end.

        Args:
            turn: the one that is answered.
            doing: what takes time where nothing is said yet.
        """
        # Who has scrolled up wants to read there.
        follows = self.scroll_y >= self.max_scroll_y - 1
        began = turn.draw()
        turn.wait(doing)
        if follows and began and turn.boxes[0].region.y == turn.boxes[1].region.y:
            # Beside a long answer of the base model, it begins far above the end.
            self.scroll_to_widget(turn, top=True, animate=False)
        elif follows:
            self.scroll_end(animate=False)

    def to_copy(self, focused: Widget | None) -> AnswerBox | None:
        """The answer in focus, or else the newest that says something; None if there is none."""
        if isinstance(focused, AnswerBox):
            return focused if focused.said else None
        boxes = self.last.boxes if self.last is not None else ()
        return next((box for box in reversed(boxes) if box.said), None)
