"""For the pictures of the terminal app."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from textual.pilot import Pilot

from tests.tui.shell import still


@pytest.fixture
def snap_compare(snap_compare: Callable[..., bool]) -> Callable[..., bool]:
    """The plugin's, which takes its picture only when the app has drawn all that it was to draw."""

    def compare(app: Any, *, run_before: Callable[[Pilot[Any]], Any] | None = None, **more: Any) -> bool:
        async def before(pilot: Pilot[Any]) -> None:
            if run_before is not None:
                done = run_before(pilot)
                if inspect.isawaitable(done):
                    await done
            await still(pilot)

        return snap_compare(app, run_before=before, **more)

    return compare
