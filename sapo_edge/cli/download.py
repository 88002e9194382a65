"""Shows a person how far the download of a model is: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from sapo_edge.cli.output import narrate
from sapo_edge.plain import size

if TYPE_CHECKING:
    from rich.progress import Progress

STEP = 10
"""Without a terminal, a line comes at so many per cent."""


class DownloadReport:
    """Told about a download, as `sapo_edge.backends.hub.download.Progress`; shows nothing until it begins."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._shown = -1
        self._bar: Progress | None = None

    def __call__(self, done: int, total: int) -> None:
        if self._shown < 0:
            narrate(f"downloading {self._name}, {size(total)}; the Hugging Face hub sees this machine's address")
            if sys.stderr.isatty():
                self._bar = _bar(total)
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done)
            self._bar.refresh()
        percent = 100 * done // total if total else 100
        if self._bar is None and percent // STEP > max(self._shown, 0) // STEP:
            narrate(f"{percent} % of {self._name}")
        self._shown = percent
        if done >= total:
            self.close()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _bar(total: int) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    bar = Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False)
    bar.add_task("", total=total)
    bar.start()
    return bar
