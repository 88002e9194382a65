"""The footer, which is rebuilt only when other keys work than before."""

from __future__ import annotations

from textual.screen import Screen
from textual.widgets import Footer

ShownKeys = tuple[tuple[str, str, bool], ...]


class KeyFooter(Footer):
    """Textual's footer without its rebuild at every switch of screens, which takes a third of the switch.

    It also updates while the terminal has no focus.
    """

    _shown: ShownKeys | None = None

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
