"""A search input of one line, shown while the user types."""

from __future__ import annotations

from textual.widgets import Input


class FindLine(Input):
    """Hidden until it is opened.

    Args:
        placeholder: what to type, and that Esc leaves.
    """

    DEFAULT_CSS = """
    FindLine, FindLine:focus { display: none; height: 1; border: none; padding: 0 1; background: $panel; }
    FindLine.-open { display: block; }
    """

    def __init__(self, placeholder: str) -> None:
        super().__init__(id="find", placeholder=placeholder, compact=True)

    @property
    def is_open(self) -> bool:
        return self.has_class("-open")

    def open(self) -> None:
        self.add_class("-open")
        self.focus()

    def shut(self) -> None:
        self.remove_class("-open")
