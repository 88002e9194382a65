"""Shows a person how far something is: a bar on a terminal or in a notebook, lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from sapo_edge.plain import size

if TYPE_CHECKING:
    from rich.progress import Progress

    from sapo_edge.policy import CallHandle

STEP = 10
"""Without a terminal, a line about a download comes at so many per cent."""
BAR_WIDTH = 24


def new_bar(*columns: Any, **options: Any) -> Progress:
    """A bar on stderr, which is gone when it ends; where stderr is no terminal it shows nothing."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True, highlight=False)
    # In a notebook a bar that changes in place is a widget.
    can_draw = console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)
    return Progress(*columns, console=console, transient=True, disable=not can_draw, **options)


@contextmanager
def answering(name: str) -> Iterator[CallHandle]:
    """Show how many questions a policy has answered."""
    from rich.progress import BarColumn

    from sapo_edge.policy import CallHandle

    with new_bar(name, BarColumn(BAR_WIDTH), "{task.completed:.0f}/{task.total:.0f} questions") as bar:
        task = bar.add_task(name, total=1)
        yield CallHandle(lambda done, total: bar.update(task, completed=done, total=total))


class DownloadReport:
    """Told about a download, as `sapo_edge.backends.hub.download.Progress`; shows nothing until it begins."""

    def __init__(self, name: str, say: Callable[[str], None]) -> None:
        self._name, self._say = name, say
        self._shown = -1
        self._bar: Progress | None = None

    def __call__(self, done: int, total: int) -> None:
        if self._shown < 0:
            self._say(f"downloading {self._name}, {size(total)}; the Hugging Face hub sees this machine's address")
            if sys.stderr.isatty():
                self._bar = _download_bar(total)
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done)
            self._bar.refresh()
        percent = 100 * done // total if total else 100
        if self._bar is None and percent // STEP > max(self._shown, 0) // STEP:
            self._say(f"{percent} % of {self._name}")
        self._shown = percent
        if done >= total:
            self.close()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _download_bar(total: int) -> Progress:
    from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn, TransferSpeedColumn

    bar = new_bar(BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(), auto_refresh=False)
    bar.add_task("", total=total)
    bar.start()
    return bar
