"""A text that is drawn only when it changes."""

from __future__ import annotations

from rich.text import Text
from textual.widgets import Static


class Steady(Static):
    """Leaves the terminal alone while a node repeats what it has said."""

    _put: tuple[str | Text, str] | None = None

    def __init__(self, *, id: str, classes: str = "") -> None:
        super().__init__(id=id, classes=classes, markup=False)

    def put(self, text: str | Text, *, layout: bool = True) -> None:
        """Show a text.

        Args:
            layout: whether its size may differ from that of the text before.
        """
        # Texts of Rich are equal regardless of their base style.
        put = (text, str(text.style) if isinstance(text, Text) else "")
        if put != self._put:
            self._put = put
            self.update(text, layout=layout)
