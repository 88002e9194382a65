"""Fixtures of the tests of the terminal app."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from textual import _wait
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet
from textual.pilot import Pilot
from textual.widgets import Input, TextArea

from sapo_edge.tui.node.clock import RoundClock
from tests.tui.fake_launcher import FakeLauncher
from tests.tui.shell import still

# After each key Textual waits twice until the process has used hardly any processor time for this long; its own 20 ms
# would be most of the time of these tests.
_wait.SLEEP_GRANULARITY = 0.01

_parse_rules = Stylesheet._parse_rules
_parsed: dict[tuple[object, ...], list[RuleSet]] = {}


def _parse_once(self: Stylesheet, css: str, *where: Any, **more: Any) -> list[RuleSet]:
    key = (css, *where, *more.items(), *self._variables.items())
    if key not in _parsed:
        _parsed[key] = _parse_rules(self, css, *where, **more)
    return _parsed[key]


# Every app parses the same styles at its start, which takes a good part of a test.
Stylesheet._parse_rules = _parse_once  # type: ignore[method-assign]


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Times are shown by the clock of the machine."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[FakeLauncher]:
    """A launcher with a consent and a running node."""
    launcher = FakeLauncher(tmp_path)
    yield launcher
    launcher.close()


@pytest.fixture(params=["80x24", "120x40", "colourless"])
def look(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Columns and lines of a terminal, which perhaps has no colours."""
    if request.param == "colourless":
        monkeypatch.setenv("NO_COLOR", "1")
    return (120, 40) if request.param == "120x40" else (80, 24)


@pytest.fixture
def snap_compare(snap_compare: Callable[..., bool], monkeypatch: pytest.MonkeyPatch) -> Callable[..., bool]:
    """The plugin's fixture, which also stops the clock of a round and the cursor, and waits until nothing changes."""
    monkeypatch.setattr(RoundClock, "_elapsed", lambda self: 0.0)

    def compare(app: Any, *, run_before: Callable[[Pilot[Any]], Any] | None = None, **more: Any) -> bool:
        async def before(pilot: Pilot[Any]) -> None:
            if run_before is not None:
                done = run_before(pilot)
                if inspect.isawaitable(done):
                    await done
            for field in (*pilot.app.screen.query(Input), *pilot.app.screen.query(TextArea)):
                field.cursor_blink = False
            await still(pilot)

        return snap_compare(app, run_before=before, **more)

    return compare
