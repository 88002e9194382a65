"""Terminals too small to draw for, as the half of a split one may be for a while."""

from __future__ import annotations

from textual.events import Event, Resize
from textual.geometry import Size

SMALLEST = Size(20, 5)
"""Columns and lines below which a terminal is drawn for as if it had so many."""


def at_least_smallest(event: Event) -> Event:
    """A change of the terminal's size as the app takes it in, any other event as it is.

    The library fails to wrap lines where a widget has no columns left.
    """
    if not isinstance(event, Resize) or (event.size.width >= SMALLEST.width and event.size.height >= SMALLEST.height):
        return event
    size = Size(max(event.size.width, SMALLEST.width), max(event.size.height, SMALLEST.height))
    return Resize(size, size)
