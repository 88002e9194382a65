"""One question and what the two models said to it."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import ItemGrid, Vertical
from textual.content import Content
from textual.widgets import Static

from sapo_edge.errors import SapoError
from sapo_edge.plain import printable
from sapo_edge.tui.node.launcher import ChatAnswer

MAX_SHOWN = 8000
"""Characters of an answer that are shown and copied; a model that never ends would fill the memory."""
TITLES = ("base model", "adapter")


class AnswerBox(Static, can_focus=True):
    """What one model says; grows while it says it.

    Args:
        adapter: whether it is the adapter's.
    """

    DEFAULT_CSS = """
    AnswerBox { width: 1fr; height: auto; min-height: 3; padding: 0 1; border: round $border; }
    AnswerBox { border-title-color: $text-secondary; border-subtitle-color: $text-muted; }
    AnswerBox.-adapter { border-title-color: $primary; border-title-style: bold; }
    AnswerBox.-silent { color: $text-muted; }
    AnswerBox:focus { border: round $primary; }
    """

    def __init__(self, adapter: bool) -> None:
        super().__init__(markup=False, classes="-silent")
        self.adapter = adapter
        self.set_class(adapter, "-adapter")
        self.border_title = TITLES[adapter]
        self.said = ""
        self.done = False

    def wait(self, text: str) -> None:
        """Say what it waits for."""
        if not self.said and not self.done:
            self.update(Content(printable(text)))

    def show(self, answer: ChatAnswer) -> None:
        """Show what has been said so far."""
        self.said = printable(answer.text[:MAX_SHOWN], lines=True).strip("\n")
        self.done = answer.done
        if answer.tokens_per_second:
            self.border_subtitle = f"{answer.tokens_per_second:.1f} tokens/s"
        self.set_class(not self.said.strip(), "-silent")
        if not self.said.strip():
            self.update(Content("said nothing" if self.done else "thinks ..."))
            return
        cut = Content.styled(" ... the rest is not shown", "dim") if len(answer.text) > MAX_SHOWN else Content()
        self.update(Content(self.said) + (cut if self.done or cut else Content.styled("▌", "$primary")))

    def end(self, why: str) -> None:
        """No more comes: say why, unless the answer was complete."""
        if self.done:
            return
        self.done = True
        # What was said stands there without the cursor behind it.
        self.update(Content(self.said or why))
        if self.said:
            self.border_subtitle = why


class Turn(Vertical):
    """A question and two answers.

    Args:
        question: as it was asked.
        task: whether it was asked with the prompt of the training.
        temperature: 0 is greedy.
    """

    DEFAULT_CSS = """
    Turn { height: auto; margin-bottom: 1; }
    Turn .asked { height: auto; padding: 0 1; }
    Turn .answers { height: auto; grid-size: 2; grid-rows: auto; }
    Turn .trouble { height: auto; padding: 0 1; color: $text-error; display: none; }
    Turn.-failed .trouble { display: block; }
    """

    def __init__(self, question: str, *, task: bool, temperature: float) -> None:
        super().__init__()
        self.question, self.as_task, self.temperature = question, task, temperature
        self.boxes = (AnswerBox(False), AnswerBox(True))
        self.failed = False
        self._news: dict[bool, ChatAnswer] = {}

    def compose(self) -> ComposeResult:
        """Question, answers, what went wrong."""
        how = f"{'as a task' if self.as_task else 'plain chat'}, {warmth(self.temperature)}"
        asked = Content.assemble(
            ("▸ ", "$primary bold"), (printable(self.question, lines=True), "bold"), (f"  {how}", "dim")
        )
        yield Static(asked, classes="asked")
        with ItemGrid(classes="answers"):
            yield from self.boxes
        yield Static(markup=False, classes="trouble")

    def take(self, answer: ChatAnswer) -> None:
        """Keep what is newest, to be drawn by `draw`; may be called from any thread."""
        self._news[answer.adapter] = answer

    def draw(self) -> bool:
        """Show what was taken since the last time; True if these are the adapter's first words."""
        silent = not self.boxes[True].said
        for adapter in list(self._news):
            self.boxes[adapter].show(self._news.pop(adapter))
        return silent and bool(self.boxes[True].said)

    def wait(self, text: str) -> None:
        """Say what takes time, where nothing is said yet."""
        self.boxes[0].wait(text)
        self.boxes[1].wait("answers after the base model")

    def end(self, why: str) -> None:
        """No more comes."""
        self.draw()
        for box in self.boxes:
            box.end(why)

    def fail(self, error: SapoError) -> None:
        """No more comes, for a reason; it can be tried again."""
        self.end("failed")
        self.trouble(f"✗ {printable(error.message)}: {printable(error.remedy)} (r tries again)")

    def trouble(self, text: str) -> None:
        """Say what went wrong."""
        self.failed = True
        self.add_class("-failed")
        self.query_one(".trouble", Static).update(Content(text))


def warmth(temperature: float) -> str:
    """A temperature in words."""
    return f"temperature {temperature:.1f}" if temperature else "greedy"
