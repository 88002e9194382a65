"""The glossary (F2): the words of the current screen first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import RenderableType
from textual.screen import Screen

from sapo_edge.tui.glossary import GLOSSARY, shown_in
from sapo_edge.tui.look.terminal import screen_text
from sapo_edge.tui.widgets.pages import Pages, Row


class WordsScreen(Pages):
    """Explains words.

    Args:
        here: the words that the screen below shows.
    """

    heading = "What the words mean"

    def __init__(self, here: Iterable[str]) -> None:
        super().__init__()
        self._here = list(here)

    @classmethod
    def of(cls, screen: Screen[Any]) -> WordsScreen:
        """The glossary over a screen in its current state."""
        return cls(shown_in(screen_text(screen)))

    def matching(self, search: str) -> Iterator[RenderableType]:
        """The words that contain the search, or whose meaning does."""
        others = [name for name in GLOSSARY if name not in self._here]
        yield from self.section("On this screen", word_rows(self._here, search))
        yield from self.section("Other words" if self._here else "", word_rows(others, search))


def word_rows(names: Iterable[str], search: str = "") -> list[Row]:
    """Words with their meanings.

    Args:
        search: in lower case; what word or meaning contain.
    """
    rows = [(name, GLOSSARY[name].meaning, "") for name in names]
    return [row for row in rows if search in f"{row[0]} {row[1]}".casefold()]
