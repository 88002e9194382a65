"""The first line of the dashboard after a time in which nobody looked."""

from __future__ import annotations

from sapo_edge.errors import StateError
from sapo_edge.tui.node.state import Standing
from sapo_edge.tui.screens.dashboard.screen import Dashboard
from sapo_edge.tui.screens.results.screen import Results
from tests.tui.fake_launcher import FakeLauncher
from tests.tui.shell import begin, following, lines, notices, press, screen, until

TOLD = "118 rounds since you last looked: 82 → 104 of 200 new questions right; gain +0.11 (95 % +0.05 to +0.17)"


async def test_it_tells_what_was_learned_until_another_screen_is_shown_and_after_the_next_start(
    launcher: FakeLauncher,
) -> None:
    launcher.told = TOLD
    async with following(launcher) as (pilot, app):
        await until(pilot, lambda: "118 rounds" in screen(app))
        # The first line below the state of the node and the row of screens.
        assert "118 rounds since you last looked" in lines(app)[2] and "8 shows more" in screen(app)
        await press(pilot, "8", then=lambda: isinstance(app.screen, Results))
        await press(pilot, "1", then=lambda: isinstance(app.screen, Dashboard) and "118 rounds" not in screen(app))
        launcher.finish(done=False)
        await until(pilot, lambda: app.state.standing is Standing.ENDED)
        # What happens from here on nobody sees.
        assert launcher.looks == [None, 40]
        await begin(pilot, app, "s")
        await until(pilot, lambda: "118 rounds" in screen(app))
    assert launcher.looks == [None, 40, None, 40]


async def test_news_that_can_not_be_read_are_an_error_that_is_shown(launcher: FakeLauncher) -> None:
    launcher.refusal = StateError("the journal is damaged", "rename it")
    async with following(launcher) as (pilot, app):
        await until(pilot, lambda: "the journal is damaged" in notices(app))
