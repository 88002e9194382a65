"""Fixtures of the tests of the terminal app."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from textual import _wait
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet
from textual.pilot import Pilot

from sapo_edge.tui.app import SapoApp
from sapo_edge.tui.node.state import RoundClock
from tests.tui.fake_launcher import FakeLauncher, hosted
from tests.tui.shell import TRUECOLOR, Pictured, Ready, Size, still

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


launcher = hosted()
"""Consent was given, and a node runs."""
fresh = hosted(rounds=0)
"""A node runs that has finished no round."""
alone = hosted(alone=True)
"""A node runs that is in no swarm."""
starting = hosted(running=False, hold=True)
"""A node is started, and does not answer before `arrive`."""


@pytest.fixture(params=["80x24", "120x40"])
def look(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Size:
    """Columns and lines of a terminal, which perhaps has no colours."""
    if request.param == "colourless":
        monkeypatch.setenv("NO_COLOR", "1")
        return 80, 24
    columns, rows = map(int, request.param.split("x"))
    return columns, rows


@pytest.fixture
def pictured(
    request: pytest.FixtureRequest, snap_compare: Callable[..., bool], monkeypatch: pytest.MonkeyPatch
) -> Pictured:
    """Compares the app with its picture, once it is ready and nothing changes; the clock of a round stands still."""
    monkeypatch.setattr(RoundClock, "_elapsed", lambda self: 0.0)

    def compare(
        ready: Ready, size: Size = (80, 24), environ: Mapping[str, str] = TRUECOLOR, *, dialog: bool = False,
        launcher: FakeLauncher | None = None,
    ) -> bool:  # fmt: skip
        app = SapoApp(launcher or request.getfixturevalue("launcher"), environ)

        async def before(pilot: Pilot[Any]) -> None:
            await ready(pilot, app)
            if dialog:
                app.screen.styles.background = app.theme_variables["background"]
            await still(pilot)

        return snap_compare(app, terminal_size=size, run_before=before)

    return compare
