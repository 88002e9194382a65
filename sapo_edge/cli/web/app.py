"""The terminal app as `sapo web` runs it: one process for each page, which draws to a pipe."""

from __future__ import annotations

import asyncio
import sys

from textual.drivers.web_driver import WebDriver
from textual.events import Resize
from textual.geometry import Size
from textual.message import Message
from textual.messages import ExitApp

from sapo_edge.cli.ending import run_to_end
from sapo_edge.cli.entry import show_app


class Driver(WebDriver):
    """Textual's driver for the web, with two faults fixed."""

    def start_application_mode(self) -> None:
        self._loop = asyncio.get_running_loop()
        super().start_application_mode()

    def run_input_thread(self) -> None:
        """Read until the app or the server ends; the app ends with the server, even if that is killed."""
        super().run_input_thread()
        if not self.exit_event.is_set():
            self._post(ExitApp())

    def on_meta(self, packet_type: str, payload: dict[str, object]) -> None:
        if packet_type != "resize":
            super().on_meta(packet_type, payload)
            return
        width, height = payload["width"], payload["height"]
        assert isinstance(width, int) and isinstance(height, int)
        self._size = (width, height)
        # Posted like the first size, so that it can't overtake it: the app would keep the first one.
        self._post(Resize(Size(width, height), Size(width, height)))

    def _post(self, message: Message) -> None:
        asyncio.run_coroutine_threadsafe(self._app._post_message(message), self._loop)


if __name__ == "__main__":
    sys.exit(run_to_end(show_app))
