"""The questions of the chat, each with the answers of both models."""

from __future__ import annotations

from collections import deque

from textual.app import ComposeResult
from textual.containers import ItemGrid, Vertical, VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from sapo_edge.errors import SapoError
from sapo_edge.plain import printable
from sapo_edge.tui.node.processes import ChatAnswer

MAX_TURNS = 20
"""Questions that are kept; older ones are removed."""
MAX_SHOWN = 8000
"""Characters of an answer that are shown and copied; a model that never ends would fill the memory."""


class AnswerBox(Static, can_focus=True):
    """The answer of one model, which grows while it is generated."""

    DEFAULT_CSS = """
    AnswerBox { width: 1fr; min-height: 3; padding: 0 1; border: round $border; }
    AnswerBox { border-title-color: $text-secondary; border-subtitle-color: $text-muted; }
    AnswerBox.-adapter { border-title-color: $primary; border-title-style: bold; }
    AnswerBox.-silent { color: $text-muted; }
    AnswerBox:focus { border: round $primary; }
    """

    def __init__(self, adapter: bool) -> None:
        super().__init__(markup=False, classes="-silent")
        self.set_class(adapter, "-adapter")
        self.border_title = "adapter" if adapter else "base model"
        self.answer = ""
        self.done = False

    def wait(self, reason: str) -> None:
        if not self.answer and not self.done:
            self.update(Content(printable(reason)))

    def show(self, answer: ChatAnswer) -> None:
        self.answer = printable(answer.text[:MAX_SHOWN], lines=True).strip("\n")
        self.done = answer.done
        if answer.tokens_per_second:
            self.border_subtitle = f"{answer.tokens_per_second:.1f} tokens/s"
        self.set_class(not self.answer.strip(), "-silent")
        if not self.answer.strip():
            self.update(Content("an empty answer" if self.done else "thinking ..."))
            return
        cut = Content.styled(" ... the rest is not shown", "dim") if len(answer.text) > MAX_SHOWN else Content()
        self.update(Content(self.answer) + (cut if self.done or cut else Content.styled("▌", "$primary")))

    def end(self, why: str) -> None:
        if self.done:
            return
        self.done = True
        self.update(Content(self.answer or why))
        if self.answer:
            self.border_subtitle = why


class Turn(Vertical):
    """A question, asked with the prompt of the training if `as_task`, and its two answers."""

    DEFAULT_CSS = """
    Turn { height: auto; margin-bottom: 1; }
    Turn .asked { padding: 0 1; }
    Turn .answers { height: auto; grid-size: 2; grid-rows: auto; }
    Turn .trouble { padding: 0 1; color: $text-error; display: none; }
    Turn.-failed .trouble { display: block; }
    """

    def __init__(self, question: str, *, as_task: bool, temperature: float) -> None:
        super().__init__()
        self.question, self.as_task, self.temperature = question, as_task, temperature
        self.boxes = (AnswerBox(False), AnswerBox(True))
        self._news: dict[bool, ChatAnswer] = {}

    def compose(self) -> ComposeResult:
        how = f"{'as a task' if self.as_task else 'plain chat'}, {describe_temperature(self.temperature)}"
        asked = Content.assemble(
            ("▸ ", "$primary bold"), (printable(self.question, lines=True), "bold"), (f"  {how}", "dim")
        )
        yield Static(asked, classes="asked")
        with ItemGrid(classes="answers"):
            yield from self.boxes
        yield Static(markup=False, classes="trouble")

    def take(self, answer: ChatAnswer) -> None:
        """Keep an answer until `draw` shows it. Any thread may call it."""
        self._news[answer.adapter] = answer

    def draw(self) -> bool:
        """Show the newest answers; whether these are the adapter's first words."""
        was_silent = not self.boxes[True].answer
        for adapter in list(self._news):
            self.boxes[adapter].show(self._news.pop(adapter))
        return was_silent and bool(self.boxes[True].answer)

    def wait(self, reason: str) -> None:
        self.boxes[0].wait(reason)
        self.boxes[1].wait("answers after the base model")

    def end(self, why: str) -> None:
        self.draw()
        for box in self.boxes:
            box.end(why)

    def fail(self, error: SapoError) -> None:
        """End with an error. The question can be asked again."""
        self.end("failed")
        self.add_class("-failed")
        self.query_one(".trouble", Static).update(Content(f"✗ {printable(error)} (r tries again)"))


class Transcript(VerticalScroll):
    """The last questions, the newest at the end."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._turns: deque[Turn] = deque()

    @property
    def last(self) -> Turn | None:
        return self._turns[-1] if self._turns else None

    def add(self, question: str, *, as_task: bool, temperature: float) -> Turn:
        turn = Turn(question, as_task=as_task, temperature=temperature)
        self.mount(turn)
        self._turns.append(turn)
        if len(self._turns) > MAX_TURNS:
            self._turns.popleft().remove()
        self.scroll_end(animate=False)
        return turn

    def draw(self, turn: Turn, doing: str) -> None:
        """Show the newest answers, or what takes time meanwhile; scroll with them unless the user has scrolled up."""
        follows = self.scroll_y >= self.max_scroll_y - 1
        before = [box.answer for box in turn.boxes]
        adapter_starts = turn.draw()
        turn.wait(doing)
        if follows and adapter_starts and turn.boxes[0].region.y == turn.boxes[1].region.y:
            # Beside a long answer of the base model, it starts far above the end.
            self.scroll_to_widget(turn, top=True, animate=False)
        elif follows and before != [box.answer for box in turn.boxes]:
            # Textual scrolls later: without news, it would undo what the adapter's first words have done.
            self.scroll_end(animate=False)

    def to_copy(self, focused: Widget | None) -> AnswerBox | None:
        if isinstance(focused, AnswerBox):
            return focused if focused.answer else None
        boxes = self.last.boxes if self.last is not None else ()
        return next((box for box in reversed(boxes) if box.answer), None)


def describe_temperature(temperature: float) -> str:
    return f"temperature {temperature:.1f}" if temperature else "greedy"
