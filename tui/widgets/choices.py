"""A tick, a choice among few, and a number, on one line each. They differ by characters, not by colours alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Click
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget
from textual.widgets import Static


class Tick(Static, can_focus=True):
    """Something that is so or not.

    Args:
        label: what.
        value: whether at first.
    """

    DEFAULT_CSS = """
    Tick { width: auto; height: 1; }
    Tick:hover { color: $primary; }
    Tick:focus { text-style: bold reverse; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("space", "change", "Change", id="tick.change")]
    ALLOW_SELECT = False

    value: reactive[bool] = reactive(False, init=False)

    class Changed(Message):
        """It was ticked or not any more."""

        def __init__(self, tick: Tick) -> None:
            super().__init__()
            self.tick = tick

        @property
        def control(self) -> Tick:
            """For `on`."""
            return self.tick

    def __init__(self, label: str, value: bool, *, id: str | None = None) -> None:
        super().__init__(markup=False, id=id)
        self._label = label
        self.set_reactive(Tick.value, value)

    def render(self) -> Text:
        """The box and its label."""
        return Text(f"[{'x' if self.value else ' '}] {self._label}")

    def watch_value(self) -> None:
        """Tell."""
        self.post_message(self.Changed(self))

    def action_change(self) -> None:
        """Change it."""
        self.value = not self.value

    def on_click(self, event: Click) -> None:
        """As the key does."""
        event.stop()
        self.action_change()


class _Option(Static):
    """One of a choice; a click takes it."""

    ALLOW_SELECT = False

    def __init__(self, name: str, label: str) -> None:
        super().__init__(markup=False, name=name)
        self._label = label

    def mark(self, chosen: bool) -> None:
        self.set_class(chosen, "-chosen")
        self.update(Text(f"({'●' if chosen else ' '}) {self._label}"))

    def on_click(self, event: Click) -> None:
        event.stop()
        assert isinstance(self.parent, Choice) and self.name is not None
        self.parent.value = self.name
        self.parent.focus()


class Choice(Widget, can_focus=True):
    """One of a few. The arrow keys take the next one at once, so that what is marked is what holds.

    Args:
        options: labels by value.
        value: the one at first.
    """

    DEFAULT_CSS = """
    Choice { layout: horizontal; height: 1; width: 1fr; }
    Choice.-stacked { layout: vertical; height: auto; }
    Choice _Option { width: auto; height: 1; margin-right: 3; color: $text-muted; }
    Choice _Option:hover { color: $primary; }
    Choice _Option.-chosen { color: $foreground; text-style: bold; }
    Choice:focus _Option.-chosen { text-style: bold reverse; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,up", "move(-1)", "Other", show=False, id="choice.back"),
        Binding("right,down,space", "move(1)", "Other", key_display="←→", id="choice.on"),
    ]

    value: reactive[str] = reactive("", init=False)

    class Changed(Message):
        """Another one was taken."""

        def __init__(self, choice: Choice) -> None:
            super().__init__()
            self.choice = choice

        @property
        def control(self) -> Choice:
            """For `on`."""
            return self.choice

    def __init__(self, options: Mapping[str, str], value: str, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._options = dict(options)
        self.set_reactive(Choice.value, value)

    def compose(self) -> ComposeResult:
        """Its options."""
        for value, label in self._options.items():
            option = _Option(value, label)
            option.mark(value == self.value)
            yield option

    def validate_value(self, value: str) -> str:
        """Nothing but an option."""
        return value if value in self._options else self.value

    def watch_value(self) -> None:
        """Mark it and tell."""
        for option in self.query(_Option):
            option.mark(option.name == self.value)
        self.post_message(self.Changed(self))

    def action_move(self, steps: int) -> None:
        """Take the next one, or the one before."""
        values = list(self._options)
        self.value = values[(values.index(self.value) + steps) % len(values)]


class Stepper(Static, can_focus=True):
    """A number that the arrow keys change, and clicks on its two arrows.

    Args:
        label: what it is, in words, for each number.
        high: the largest; the smallest is 0.
    """

    DEFAULT_CSS = """
    Stepper { width: auto; height: 1; }
    Stepper:focus { text-style: bold reverse; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,down,minus", "step(-1)", "Fewer", show=False, id="stepper.fewer"),
        Binding("right,up,plus,space", "step(1)", "More", key_display="←→", id="stepper.more"),
    ]
    ALLOW_SELECT = False

    value: reactive[int] = reactive(0, init=False, layout=True)
    high: reactive[int] = reactive(0, init=False, layout=True)

    def __init__(self, label: Callable[[int], str], high: int = 0, *, id: str | None = None) -> None:
        super().__init__(markup=False, id=id)
        self._label = label
        self.set_reactive(Stepper.high, high)

    def render(self) -> Text:
        """Between two arrows, dim where it ends."""
        return Text.assemble(
            ("◂ ", "" if self.value else "dim"),
            self._label(self.value),
            (" ▸", "" if self.value < self.high else "dim"),
        )

    def validate_value(self, value: int) -> int:
        """Within its bounds."""
        return max(0, min(self.high, value))

    def watch_high(self) -> None:
        """Nothing is above it."""
        self.value = min(self.value, self.high)

    def action_step(self, by: int) -> None:
        """Change it by so much."""
        self.value += by

    def on_click(self, event: Click) -> None:
        """A click on its left half lowers it, on its right half raises it."""
        event.stop()
        self.action_step(-1 if event.x < self.size.width // 2 else 1)
