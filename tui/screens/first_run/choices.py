"""The inputs of the first screen: one of a few options, and a number. Their state shows without colours, too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Click
from textual.reactive import reactive
from textual.widget import Widget
from textual.widgets import Static

from sapo_edge.tui.widgets.small import Chip


class OneOf(Widget, can_focus=True):
    """A choice of one among a few; the arrow keys choose, a click does what the screen's key for it does.

    Textual's `RadioSet` doesn't fit: its arrow keys move a cursor and `Space` chooses, its value changes only after a
    message has gone round, so that a quick `Enter` would take the old one, and colour alone marks the choice.
    """

    DEFAULT_CSS = """
    OneOf { layout: horizontal; height: 1; width: 1fr; }
    OneOf Chip { padding: 0; margin-right: 3; color: $text-muted; }
    OneOf Chip:hover { color: $primary; }
    OneOf Chip.-chosen { color: $foreground; text-style: bold; }
    OneOf:focus Chip.-chosen { text-style: bold reverse; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,up", "move(-1)", "Other", show=False, id="choice.back"),
        Binding("right,down,space", "move(1)", "Other", key_display="←→", id="choice.on"),
    ]

    value: reactive[str] = reactive("", init=False)

    def __init__(self, options: Mapping[str, str], value: str, *, id: str) -> None:
        super().__init__(id=id)
        self._options = dict(options)
        self.set_reactive(OneOf.value, value)

    def compose(self) -> ComposeResult:
        for value in self._options:
            yield Chip(f"screen.choose('{value}')", id=f"one-of-{value}")

    def on_mount(self) -> None:
        self._mark()

    def _mark(self) -> None:
        for chip, (value, label) in zip(self.query(Chip), self._options.items(), strict=True):
            chip.set_class(value == self.value, "-chosen")
            chip.update(Text(f"({'●' if value == self.value else ' '}) {label}"))

    def validate_value(self, value: str) -> str:
        return value if value in self._options else self.value

    async def offer(self, options: Mapping[str, str], value: str) -> None:
        """Replace the options; choose one of them."""
        await self.remove_children()
        self._options = dict(options)
        await self.mount_all(self.compose())
        self._mark()
        self.value = value

    def watch_value(self) -> None:
        self._mark()

    def action_move(self, steps: int) -> None:
        values = list(self._options)
        self.value = values[(values.index(self.value) + steps) % len(values)]


class Stepper(Static, can_focus=True):
    """A number from 0 to `high`; the arrow keys and clicks on its two arrows change it.

    Textual's `Select` needs `Enter`, which starts the node on the only screen with a stepper; its `Input` can't show
    words in place of a number.
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

    def __init__(self, label: Callable[[int], str], value: int, *, id: str) -> None:
        super().__init__(markup=False, id=id)
        self._label = label
        self.set_reactive(Stepper.high, value)
        self.set_reactive(Stepper.value, value)

    def render(self) -> Text:
        return Text.assemble(
            ("◂ ", "" if self.value else "dim"),
            self._label(self.value),
            (" ▸", "" if self.value < self.high else "dim"),
        )

    def validate_value(self, value: int) -> int:
        return max(0, min(self.high, value))

    def watch_high(self) -> None:
        self.value = min(self.value, self.high)

    def action_step(self, by: int) -> None:
        self.value += by

    def on_click(self, event: Click) -> None:
        """Lower the number on a click on the left half, raise it on the right half."""
        event.stop()
        self.action_step(-1 if event.x < self.size.width // 2 else 1)
