"""The footer: made anew only when other keys work than before."""

from __future__ import annotations

from textual.screen import Screen
from textual.widgets import Footer

Shown = tuple[tuple[str, str, bool], ...]


class KeyFooter(Footer):
    """Textual's footer, which by itself makes its keys anew at every switch of screens, a third of the time that takes.

    It also follows what can be done while the terminal is not in front.
    """

    _shown: Shown | None = None

    def bindings_changed(self, screen: Screen[object]) -> None:
        """Show the keys that work now, if they are others than before."""
        if not self.is_attached or screen is not self.screen:
            return
        now = tuple(
            (active.binding.key, active.binding.description, active.enabled)
            for active in screen.active_bindings.values()
            if active.binding.show
        )
        if now == self._shown:
            return
        self._shown = now
        super().bindings_changed(screen)
        if not self.app.app_focus:
            self.call_after_refresh(self.recompose)
