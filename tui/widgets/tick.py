"""A tick box."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widgets import Checkbox


class Tick(Checkbox):
    """Textual's checkbox with "[x]" and "[ ]": Textual's own two states differ by colour alone."""

    DEFAULT_CSS = """
    Tick { background: transparent; }
    Tick > .toggle--button, Tick.-on > .toggle--button { color: $foreground; background: transparent; }
    Tick:hover > .toggle--button, Tick:hover > .toggle--label { color: $primary; }
    Tick:focus { background-tint: $foreground 0%; }
    Tick:focus > .toggle--button, Tick:focus > .toggle--label {
        color: $foreground; background: transparent; text-style: bold reverse;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("space", "toggle_button", "Change", id="tick.change")]
    BUTTON_LEFT = BUTTON_RIGHT = ""
    BUTTON_INNER = "[ ]"

    def __init__(self, label: str, value: bool, *, id: str) -> None:
        super().__init__(label, value, id=id, compact=True)

    def watch_value(self) -> None:
        self.BUTTON_INNER = "[x]" if self.value else "[ ]"
        super().watch_value()
