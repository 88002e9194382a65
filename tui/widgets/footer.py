"""The footer, which is rebuilt only when other keys work than before."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Footer
from textual.widgets._footer import FooterKey

LAST = 2
"""Keys at the end that are shown at any width: the help and the way out."""
PALETTE = "-command-palette"
"""The class of the key of the palette, which stands apart at the right behind a line."""


class KeyFooter(Footer):
    """Textual's, without the rebuild that takes a third of each switch of screens; it updates without focus, too."""

    _shown: tuple[tuple[str, str, bool], ...] | None = None

    def compose(self) -> ComposeResult:
        keys = [*super().compose()]
        for key in keys:
            # Textual adds this after the styles are applied, and applies them again.
            key.add_class("-compact", update=False)
        self._fit(keys)
        yield from keys

    def on_resize(self) -> None:
        self._fit([*self.query(FooterKey)])

    def _fit(self, widgets: Sequence[Widget]) -> None:
        """Leave out what has no room: the palette first, then the keys before the last ones, which F1 lists, too."""
        keys = [widget for widget in widgets if isinstance(widget, FooterKey)]
        palette = [key for key in keys if key.has_class(PALETTE)]
        others = [key for key in keys if key not in palette]
        # The last key needs no space after it; the palette has a line before it.
        missing = sum(map(_width, keys)) - 1 + len(palette) - self.app.size.width
        for key in [*palette, *reversed(others[:-LAST])]:
            key.display = missing <= 0
            missing -= 0 if key.display else _width(key)

    def bindings_changed(self, screen: Screen[object]) -> None:
        """Show the keys that work now, if they have changed."""
        if not self.is_attached or screen is not self.screen:
            return
        keys = tuple(
            (active.binding.key, active.binding.description, active.enabled)
            for active in screen.active_bindings.values()
            if active.binding.show
        )
        if keys == self._shown:
            return
        self._shown = keys
        super().bindings_changed(screen)
        if not self.app.app_focus:
            self.call_after_refresh(self.recompose)


def _width(key: FooterKey) -> int:
    return cell_len(f"{key.key_display} {key.description} ")
