"""What makes the app quick: work that is done once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from textual.color import Color
from textual.css.stylesheet import Stylesheet
from textual.dom import DOMNode
from textual.widgets._footer import FooterKey

from sapo_edge.tui.look import themes
from sapo_edge.tui.screens.view import VIEWS, NavItem
from tests.tui.fake_launcher import FakeLauncher
from tests.tui.shell import following, until

MOST = {"answer": 3}
"""Times that a screen's styles are applied, where a class says what it found; once everywhere else."""


async def test_screens_get_their_styles_once(launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch) -> None:
    apply, parse = Stylesheet.apply, Stylesheet.reparse
    applied: Counter[DOMNode] = Counter()
    parsed: list[str] = []

    def counted(self: Stylesheet, node: DOMNode, **more: Any) -> None:
        applied[node] += 1
        apply(self, node, **more)

    def parsed_again(self: Stylesheet) -> None:
        parsed.append(app.theme)
        parse(self)

    monkeypatch.setattr(Stylesheet, "apply", counted)
    monkeypatch.setattr(Stylesheet, "reparse", parsed_again)
    async with following(launcher) as (pilot, app):
        for mode in VIEWS:
            await app.switch_mode(mode)
            await until(pilot, lambda: app.screen.query(FooterKey))
            shown = app.screen
            fixed = [shown, shown.query_one("#head"), *shown.query(NavItem), *shown.query(FooterKey)]
            assert max(applied[node] for node in fixed) <= MOST.get(mode, 1), mode
        assert parsed == []
        app.theme = themes.LIGHT.name
        for mode in ("settings", "chat", "dashboard"):
            await app.switch_mode(mode)
            await until(pilot, lambda: app.screen.styles.background == Color.parse(themes.LIGHT.background or ""))
        assert parsed == [themes.LIGHT.name]
