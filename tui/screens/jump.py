"""Jump mode: a letter over each part of a screen that takes the focus; typing the letter goes there."""

from __future__ import annotations

from collections.abc import Iterable

from textual.app import ComposeResult
from textual.events import Key, Resize
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Static

LETTERS = "asdfghjklqwertyuiopzxcvbnm"
"""Letters in the order of their use: those below the fingers first."""


class Jump(ModalScreen[Widget | None]):
    """Offers what the screen below can focus, in order. Dismissed with the chosen part; None without a choice."""

    DEFAULT_CSS = """
    Jump { layers: letters; }
    Jump Static {
        layer: letters; position: absolute; width: 3; height: 1;
        background: $primary; color: $background; text-style: bold reverse;
    }
    """

    def __init__(self, parts: Iterable[Widget]) -> None:
        super().__init__()
        self._parts = dict(zip(LETTERS, parts, strict=False))

    def compose(self) -> ComposeResult:
        self._laid_out = self.app.size
        for letter, part in self._parts.items():
            label = Static(f" {letter} ", markup=False)
            label.styles.offset = part.region.offset
            yield label

    def on_resize(self, event: Resize) -> None:
        """Close: the parts have moved."""
        # It may be told of a size twice.
        if event.size != self._laid_out and self.is_current:
            self.dismiss(None)

    def on_key(self, event: Key) -> None:
        event.stop()
        self.dismiss(self._parts.get(event.key))

    def on_click(self) -> None:
        self.dismiss(None)
