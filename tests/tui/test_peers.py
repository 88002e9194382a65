"""The peers screen: the state of the swarm, and who is connected."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets._footer import FooterKey

from sapo_edge.swarm.joining.identity import readable_name
from sapo_edge.swarm.status import LastSeen, Search
from sapo_edge.tui.app import SapoApp
from sapo_edge.tui.node.launcher import SwarmCard
from sapo_edge.tui.node.state import Standing
from sapo_edge.tui.screens.peers.screen import Peers
from sapo_edge.tui.screens.peers.text import swarm_text
from sapo_edge.tui.screens.rollouts.screen import Rollouts
from sapo_edge.tui.screens.view import Change
from tests.tui.fake_launcher import FakeLauncher
from tests.tui.fake_node import BEGAN, FRIEND, HOSTILE, PEERS, STRANGER
from tests.tui.shell import Pictured, Size, connected, is_harmless, on, picture, press, until

NOW = BEGAN + 9000


@pytest.fixture
def launcher(launcher: FakeLauncher) -> FakeLauncher:
    tell(launcher, time=NOW)
    return launcher


def tell(launcher: FakeLauncher, **changes: Any) -> None:
    launcher.node.tell(swarm={**launcher.node.status_now["swarm"], **changes})


opened = partial(on, Peers, "3", ready=connected)


async def polled(pilot: Pilot[Any], screen: Peers, launcher: FakeLauncher, **changes: Any) -> None:
    """As if the app had asked for the status of a swarm that has changed."""
    tell(launcher, **changes)
    screen.sapo.state.set_status(launcher.node.status())
    screen.refresh_node(Change.STATUS)
    await pilot.pause()


def names(screen: Peers) -> list[str]:
    return [screen.peers.cells(peer)["name"][0] for peer in screen.peers.rows]


def title(screen: Peers) -> str:
    return screen.peers.render_line(0).text


async def test_the_swarm_is_shown_and_on_their_screen_the_rollouts_of_a_peer(launcher: FakeLauncher) -> None:
    async with opened(launcher) as (pilot, screen):
        for words in (
            "● connected to the open swarm starter; you connect to others", "at  /ip4/192.0.2.1/tcp/40123",
            "240 rollouts in, 120 out",
            "1.2 MB in, 800.0 kB out", "clock 2 s behind", "refused  signature 4096, rate 3, forged 1",
        ):  # fmt: skip
            assert words in picture(pilot.app), words
        assert "waiting" not in picture(pilot.app)
        await polled(
            pilot, screen, launcher, reachable=True, clock_ahead=-90, paused=["upload"], faults={"pull": 2}, restarts=1,
            addresses=[], rejections={f"reason {number}": number + 1 for number in range(40)},
        )  # fmt: skip
        for words in (
            "others can connect to you", "no address where", "clock is 1 min 30 s ahead: set it",
            "waiting, because of a limit in the settings: upload", "and 34 more reasons",
        ):  # fmt: skip
            await until(pilot, lambda words=words: words in picture(pilot.app))  # type: ignore[misc]
        await press(pilot, "a", then=lambda: isinstance(pilot.app.screen, Rollouts))
        other = pilot.app.screen
        assert isinstance(other, Rollouts)
        await until(pilot, lambda: {row.author for row in other.browser.pages.rows} == {FRIEND})
        await until(pilot, lambda: f"a {readable_name(FRIEND)}" in picture(pilot.app))
        # Again, when the other screen already shows a rollout, for a peer of which there is none.
        await press(pilot, "enter", "3", "down", "down", "a", then=lambda: "No rollout matches" in picture(pilot.app))
        await pilot.press("3")
        assert pilot.app.screen is screen and screen.peers.cursor == 2
    assert "faults  pull 2; 1 restart" in str(swarm_text(launcher.node.status()["swarm"], SwarmCard()))


async def test_one_peer_is_shown_whole_and_copied_and_the_cursor_follows_it(launcher: FakeLauncher) -> None:
    async with opened(launcher) as (pilot, screen):
        await pilot.press("down")
        for words in (
            STRANGER, "by the peer, 2027-01-15 08:10:00, 2 h 20 min ago", "65.4 kB from it, 54.3 kB to it",
            "at once, as soon", "rate 3, forged 1",
        ):  # fmt: skip
            assert words in picture(pilot.app), words
        await pilot.press("c")
        assert pilot.app.clipboard == STRANGER
        await pilot.press("enter")
        await pilot.pause()
        assert not screen.peers.display and "-2.2, below 0: some of what it sent was invalid" in picture(pilot.app)
        await pilot.press("escape")
        assert screen.peers.display and screen.peers.has_focus
        await pilot.press("enter", "enter")
        assert screen.peers.display
        before = launcher.node.status_now["swarm"]["peers"]
        await polled(pilot, screen, launcher, peers=[{**before[2], "peer_id": "new", "since": BEGAN - 50}, *before[1:]])
        assert screen.peers.chosen is not None and screen.peers.chosen["peer_id"] == STRANGER
        await polled(pilot, screen, launcher, peers=before[2:3])
        assert screen.peers.chosen["peer_id"] == before[2]["peer_id"] and screen.peers.cursor == 0
        many = [{**before[0], "peer_id": f"p{number}", "received": number} for number in range(400)]
        await polled(pilot, screen, launcher, peers=many)
        await pilot.press("end")
        assert screen.peers.cursor == 399


async def test_every_column_can_be_sorted_by_and_a_click_on_its_title_does_too(launcher: FakeLauncher) -> None:
    async with opened(launcher, (120, 40)) as (pilot, screen):
        assert "for▼" in title(screen)
        kept = screen.peers.chosen
        seen = []
        for _ in range(len(screen.peers.COLUMNS)):
            await pilot.press("o")
            seen.append(screen.peers.sorted_by)
            assert screen.peers.chosen == kept
            assert f"{screen.peers.sorted_by}" and ("▼" in title(screen)) == screen.peers.descending
        assert sorted(seen) == sorted(column.key for column in screen.peers.COLUMNS) and seen[-1] == "since"
        await pilot.press("o")
        assert screen.peers.sorted_by == "received" and names(screen)[0].startswith("evil")
        await pilot.press("O")
        assert names(screen)[-1].startswith("evil") and "got▲" in title(screen)
        await pilot.click("#peers", offset=(title(screen).index("refused"), 0))
        await until(pilot, lambda: screen.peers.sorted_by == "refused")
        assert names(screen)[0].startswith("evil") and names(screen)[1] == readable_name(STRANGER)
        await pilot.click("#peers", offset=(title(screen).index("refused"), 0))
        await until(pilot, lambda: not screen.peers.descending)
        await pilot.click("#peers", offset=(title(screen).index("peer"), 0))
        await until(pilot, lambda: screen.peers.sorted_by == "name")
        await pilot.click("#peers", offset=(4, 2))
        await pilot.pause()
        assert screen.peers.cursor == 1 and screen.peers.display
        await pilot.click("#peers", offset=(4, 2), times=2)
        await until(pilot, lambda: screen.has_class("-open"))


async def test_without_peers_the_search_for_a_first_member_is_shown_and_what_to_do(launcher: FakeLauncher) -> None:
    tell(launcher, state="alone", peers=[])
    async with opened(launcher) as (pilot, screen):

        def offers_details() -> bool:
            (key,) = [key for key in screen.query(FooterKey) if key.description == "Details"]
            return not key.has_class("-disabled")

        for search, words in (
            (None, "No other node is connected yet."),
            (Search(NOW - 30, 2, last=LastSeen(1, 1_800_014_400)),
             "Looking for the swarm ... 2 addresses found, dialling (last found on 2027-01-15: 1 member)."),
            (Search(NOW - 61, trouble="names"), "The names of the first contacts of BitTorrent's public table"),
        ):  # fmt: skip
            await polled(pilot, screen, launcher, search=search and asdict(search))
            await until(pilot, lambda words=words: words in " ".join(picture(pilot.app).split()))  # type: ignore[misc]
            shown = " ".join(picture(pilot.app).split())
            assert "i makes an invite here" in shown and "what to do." in shown
        await polled(pilot, screen, launcher, search=None, reachable=None)
        for words in ("○ no peer yet", "not known yet", "another machine", "i makes an invite", "sapo doctor"):
            await until(pilot, lambda words=words: words in picture(pilot.app))  # type: ignore[misc]
        assert "clock" not in picture(pilot.app).splitlines()[4]
        assert not offers_details()
        await polled(pilot, screen, launcher, peers=[asdict(PEERS[0])], state="connected")
        await until(pilot, lambda: names(screen) == [readable_name(FRIEND)] and FRIEND in picture(pilot.app))
        await until(pilot, offers_details)
        await pilot.press("enter")
        await polled(pilot, screen, launcher, peers=[], state="failed")
        await until(pilot, lambda: "✗ the connection to the swarm failed" in picture(pilot.app))
        assert not screen.has_class("-open")
        assert screen.peers.has_focus


async def test_a_node_alone_says_how_to_join(alone: FakeLauncher) -> None:
    async with opened(alone) as (pilot, screen):
        assert "This node works alone" in picture(pilot.app) and "u joins one with an invite" in picture(pilot.app)
        await pilot.press("enter", "o", "a", "c", "O", "down")
        assert pilot.app.screen is screen and not screen.has_class("-open") and pilot.app.clipboard == ""


async def test_without_a_node_no_peers_are_shown(launcher: FakeLauncher) -> None:
    async with opened(launcher) as (pilot, screen):
        await pilot.press("enter")
        launcher.die()
        app = screen.sapo
        await until(pilot, lambda: app.state.standing is Standing.ENDED and app.screen is not screen)
        await press(pilot, "escape", then=lambda: app.screen is screen and "No node runs" in picture(pilot.app))
        assert "Press s to start one" in picture(pilot.app) and readable_name(FRIEND) not in picture(pilot.app)
        await press(pilot, "a", "c", "enter", "s", then=lambda: readable_name(FRIEND) in picture(pilot.app))


async def test_text_of_peers_is_harmless(launcher: FakeLauncher) -> None:
    async with opened(launcher, (120, 40)) as (pilot, screen):
        for _ in PEERS:
            await pilot.press("down")
            await pilot.pause()
            seen = picture(pilot.app)
            assert is_harmless(pilot.app)
            if screen.peers.chosen is not None and screen.peers.chosen["peer_id"] == HOSTILE:
                assert "[bold red]\\u202e" in seen and "10 TB" in seen and "this node ignores the peer" in seen
                await pilot.press("c")
        assert pilot.app.clipboard and "\x1b" not in pilot.app.clipboard


def test_pictures(pictured: Pictured, look: Size) -> None:
    async def ready(pilot: Pilot[Any], app: SapoApp) -> None:
        await connected(pilot, app)
        await press(pilot, "3", "down", then=lambda: STRANGER in picture(app) and "5 peers" in picture(app))

    assert pictured(ready, look)
