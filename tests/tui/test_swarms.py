"""Swarms from the app: invite, join, create, leave; and how others reach this node, in words."""

from __future__ import annotations

import inspect
import re
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.events import Paste
from textual.pilot import Pilot
from textual.widgets import Input

import sapo_edge.cli.swarm
from sapo_edge.errors import ConfigError
from sapo_edge.tui.app import SapoApp
from sapo_edge.tui.node.launcher import SwarmCard
from sapo_edge.tui.node.processes import JobResult
from sapo_edge.tui.node.state import Standing
from sapo_edge.tui.screens.peers.dialogs import HERE, TOLD, Invite, Join, qr_text
from sapo_edge.tui.screens.peers.find import FindSwarms, JoinFound
from sapo_edge.tui.screens.peers.screen import Peers
from sapo_edge.tui.screens.peers.text import swarm_text
from sapo_edge.tui.widgets.dialog import Ask
from tests.tui.fake_launcher import INVITE, FakeLauncher
from tests.tui.shell import Pictured, Size, attached, is_harmless, notices, press, running, screen, text, until

SWARMS = [
    {"name": "starter", "swarm": "5a" * 32, "shipped": True, "members": 3, "joined": True, "tasks": "easy arithmetic",
     "asks": "answers of up to 64 tokens by your own model", "questions": [], "invite": INVITE},
    {"name": "letters", "swarm": "6b" * 32, "shipped": False, "members": 1, "joined": False,
     "tasks": "12 questions of its makers' own", "asks": "answers of up to 128 tokens by your own model",
     "questions": ["\u202e[bold]Who wrote[/bold] \x1b[31mthis?", "Why? " * 40, "When? " * 40, "At last?"],
     "invite": INVITE.replace("starter", "letters")},
]  # fmt: skip
"""What `sapo swarm find --json` prints of two swarms; a stranger's is hostile."""
FOUND = JobResult({"swarms": SWARMS, "shared": "in an open swarm anybody can read the questions"})
PRIVATE = SwarmCard("starter", private=True, id="a7" * 32)
NOTES = (
    "this invite leads here from the same local network only", "others paste it after: sapo swarm join",
    "somebody elsewhere can invite you instead; or create the swarm with --bootstrap and a relay's address",
)  # fmt: skip


async def opened(pilot: Pilot[Any], app: SapoApp, keys: str = "") -> None:
    await attached(pilot, app)
    await press(pilot, "3", then=lambda: isinstance(app.screen, Peers))
    if keys:
        await press(pilot, *keys, then=lambda: app.screen.is_modal)


async def test_an_invite_is_shown_copied_drawn_and_said_as_a_short_code(launcher: FakeLauncher) -> None:
    launcher.replies["swarm invite --code"] = JobResult(
        {"code": "7-guitar-revolver", "commands": [{"command": "sapo swarm join 7", "where": "on the same network"}]}
    )
    launcher.replies["swarm invite"] = JobResult({"invite": INVITE, "private": True}, NOTES)
    async with running(launcher, (120, 50), ready=partial(opened, keys="i")) as (pilot, app):
        await until(pilot, lambda: "only to people you trust" in screen(app) and "local network only" in screen(app))
        assert "sapo://join/v=1+swarm=" in screen(app) and "others paste it" not in screen(app)
        assert "set bootstrap (7, then /)" in screen(app) and "--bootstrap" not in screen(app)
        await pilot.press("c")
        assert app.clipboard == INVITE
        await press(pilot, "k", then=lambda: screen(app).count("▀") > 500)
        await press(pilot, "escape", then=lambda: "sapo://join" in screen(app) and isinstance(app.screen, Invite))
        await press(pilot, "escape", then=lambda: isinstance(app.screen, Peers))
        await press(pilot, "i", then=lambda: "sapo://join/v=1" in screen(app))
        await press(pilot, "w", then=lambda: "Say this code: 7-guitar-revolver" in screen(app))
        await until(pilot, lambda: "the other side has the invite" in screen(app))
        assert [words for words, _ in launcher.commands] == [*2 * [("swarm", "invite")], ("swarm", "invite", "--code")]


def test_notes_for_a_shell_are_those_of_the_command() -> None:
    source = re.sub(r"\(\s+", "(", inspect.getsource(sapo_edge.cli.swarm))
    assert [begin for begin in (*TOLD, *HERE) if f'narrate("{begin}' not in source] == []


async def test_an_invite_is_pasted_whole_refused_or_joined(launcher: FakeLauncher) -> None:
    launcher.replies["swarm join"] = ConfigError("the invite is cut off at its end", "ask for the line again")
    launcher.set("network", "solo")
    async with running(launcher, ready=partial(opened, keys="u")) as (pilot, app):
        app.post_message(Paste(f"\n {INVITE[:40]}\n{INVITE[40:]} \n"))
        await until(pilot, lambda: app.screen.query_one(Input).value)
        assert app.screen.query_one(Input).value == INVITE
        app.screen.query_one(Input).value = ""
        app.post_message(Paste(" 7 guitar revolver\n"))
        await until(pilot, lambda: app.screen.query_one(Input).value)
        assert app.screen.query_one(Input).value == "7 guitar revolver", "spaces may stand for hyphens"
        app.screen.query_one(Input).value = "sapo://join/x"
        await press(pilot, "enter", then=lambda: "cut off at its end; ask for the line again" in screen(app))
        assert isinstance(app.screen, Join)
        await press(pilot, "escape", then=lambda: isinstance(app.screen, Peers))
        launcher.replies["swarm join"] = JobResult({"joined": True})
        await press(pilot, "u", then=lambda: isinstance(app.screen, Join))
        app.screen.query_one(Input).value = INVITE
        launcher.card = PRIVATE
        await press(pilot, "enter", then=lambda: isinstance(app.screen, Ask))
        # The invite is never among the arguments, which anybody on this machine can read.
        assert launcher.commands[1:] == [(("swarm", "join"), f"{INVITE}\n\n")]
        assert launcher.changes[-1] == ("network", "swarm"), "who joins wants to take part"
        assert "open swarm starter → private swarm starter" in screen(app)
        await press(pilot, "y", then=lambda: launcher.starts == 1)


async def test_what_was_found_stays_when_the_search_is_stopped_and_is_joined(launcher: FakeLauncher) -> None:
    launcher.replies["swarm find"] = ConfigError("it was stopped", "start it again when you like")
    launcher.printed = FOUND.record
    async with running(launcher, ready=partial(opened, keys="F")) as (pilot, app):
        await until(pilot, lambda: "3 members" in screen(app) and "it was stopped" in screen(app))
        found_nobody = JobResult({"swarms": [], "shared": ""})
        launcher.replies |= {"swarm find": found_nobody, "swarm join": JobResult({"joined": True})}
        launcher.printed = {}
        await press(pilot, "r", then=lambda: "nobody was seen" in screen(app))
        await pilot.press("enter")
        assert isinstance(app.screen, FindSwarms)
        launcher.replies["swarm find"] = FOUND
        await press(pilot, "r", then=lambda: "letters" in screen(app) and "nobody was seen" not in screen(app))
        await until(pilot, lambda: "3 members    easy arithmetic" in screen(app))
        assert "* starter" in screen(app) and "  letters" in screen(app) and is_harmless(app)
        await press(pilot, "down", "enter", then=lambda: isinstance(app.screen, JoinFound))
        said = screen(app)
        about = ("1 member seen", "Strangers named it", "128 tokens", "anybody can read", "[bold]Who wrote[/bold]")
        assert [words for words in about if words not in said] == [] and "At last?" not in said
        await press(pilot, *["down"] * 20, then=lambda: "At last?" in screen(app))
        assert is_harmless(app) and launcher.commands == 3 * [(("swarm", "find"), "")], "nothing is joined before"
        launcher.card = PRIVATE
        await press(pilot, "enter", then=lambda: isinstance(app.screen, Ask))
        assert launcher.commands[-1] == (("swarm", "join"), f"{SWARMS[1]['invite']}\n\n")


async def test_the_swarm_that_runs_is_shown_until_the_node_restarts(launcher: FakeLauncher) -> None:
    launcher.replies["swarm create"] = JobResult({"joined": True})
    launcher.replies["swarm invite"] = JobResult({"invite": INVITE, "private": True}, NOTES)
    async with running(launcher, ready=partial(opened, keys="n")) as (pilot, app):
        launcher.card = PRIVATE
        for keys, kind in (("right enter", "--open"), ("n enter", "--private")):
            await press(pilot, *keys.split(), then=lambda: isinstance(app.screen, Ask))
            assert launcher.commands[-1] == (("swarm", "create", kind), "")
            await press(pilot, "escape", then=lambda: isinstance(app.screen, Peers))
        both = "From the next start on: private swarm starter. Until then the node shares with the open swarm"
        await until(pilot, lambda: both in text(app, "#swarm").replace("\n", " "))
        assert "connected to the open swarm starter" in text(app, "#swarm").replace("\n", " ")
        await press(pilot, "i", then=lambda: isinstance(app.screen, Invite) and "sapo://join" in screen(app))
        assert "who joins now finds nobody here" in text(app, "#warning")
        await press(pilot, "escape", then=lambda: isinstance(app.screen, Peers))
        await press(pilot, "r", then=lambda: isinstance(app.screen, Ask))
        assert "open swarm starter → private swarm starter" in screen(app)
        await press(pilot, "y", then=lambda: launcher.starts == 1)
        # The new node joins its swarm only after the app has found it.
        await until(pilot, lambda: app.state.standing is Standing.ATTACHED and "r Restart" in screen(app))
        launcher.node.tell(swarm={**launcher.node.status()["swarm"], "swarm": PRIVATE.id, "private": True})
        await until(pilot, lambda: "to the private swarm starter" in text(app, "#swarm"))
        await until(pilot, lambda: "next start" not in text(app, "#swarm") and "r Restart" not in screen(app))


async def test_while_the_node_stops_for_a_restart_another_change_does_not_call_it_off(
    launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher.card = PRIVATE
    end = launcher.node._end
    # The round takes longer than the keys.
    monkeypatch.setattr(launcher.node, "_end", lambda: None)
    async with running(launcher, ready=opened) as (pilot, app):
        await until(pilot, lambda: "r Restart" in screen(app))
        await press(pilot, "r", then=lambda: isinstance(app.screen, Ask))
        await press(pilot, "y", then=lambda: "starts again" in notices(app))
        await press(pilot, "L", then=lambda: app.screen.is_modal)
        await press(pilot, "escape", then=lambda: isinstance(app.screen, Peers))
        await press(pilot, "r", then=lambda: "stopping already" in notices(app))
        end()
        await until(pilot, lambda: launcher.starts == 1 and app.state.standing is Standing.ATTACHED)


async def test_leaving_needs_a_second_key(launcher: FakeLauncher) -> None:
    launcher.replies["swarm leave"] = JobResult({"left": "5a"})
    async with running(launcher, ready=partial(opened, keys="L")) as (pilot, app):
        await press(pilot, "enter", then=lambda: isinstance(app.screen, Peers))
        assert launcher.commands == [] and "works alone" not in notices(app)
        await press(pilot, "L", then=lambda: app.screen.is_modal)
        launcher.card = SwarmCard()
        await press(pilot, "left", "enter", then=lambda: isinstance(app.screen, Ask) and "→ works alone" in screen(app))
        assert launcher.commands == [(("swarm", "leave"), "")] and launcher.changes == []


@pytest.mark.parametrize(("changes", "words"), [
    ({"reachable": True}, "others can connect to you"),
    ({"reachable": None}, "not known yet whether others can connect"),
    ({"reachable": False}, "they can't connect to you"),
    ({"reachable": False}, "forward TCP port 40123 to this machine"),
    ({"reachable": False, "addresses": ["/ip4/1.2.3.4/tcp/443/p2p/x/p2p-circuit/p2p/y"]}, "through a relay"),
])  # fmt: skip
def test_how_others_reach_a_node_is_said_in_words(launcher: FakeLauncher, changes: dict[str, Any], words: str) -> None:
    text = str(swarm_text({**launcher.node.status()["swarm"], **changes}, PRIVATE))
    assert words in text and "private swarm starter" in text


@given(st.text(st.characters(codec="ascii"), min_size=1, max_size=1000))
def test_a_qr_code_fits_or_says_what_is_missing(text: str) -> None:
    picture, missing = qr_text(text, 116, 46)
    assert (picture is None) == bool(missing)
    if picture is not None:
        lines = picture.plain.split("\n")
        assert len({len(line) for line in lines}) == 1 and len(lines[0]) <= 116 and len(lines) <= 46


def test_a_qr_code_is_the_librarys() -> None:
    import segno

    picture, _ = qr_text(INVITE, 200, 100)
    assert picture is not None
    rows = [list(row) for row in segno.make_qr(INVITE, error="l").matrix_iter(border=2)]
    styles = [str(span.style) for span in picture.spans]
    for index, style in enumerate(styles):
        row, column = divmod(index, len(rows[0]))
        pair = (rows[2 * row][column], rows[2 * row + 1][column] if 2 * row + 1 < len(rows) else 0)
        assert style == " on ".join("#000000" if module else "#ffffff" for module in pair)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
@pytest.mark.parametrize("key", ["i", "u", "n"])
def test_pictures(launcher: FakeLauncher, pictured: Pictured, size: Size, key: str) -> None:
    launcher.replies["swarm invite"] = JobResult({"invite": INVITE, "private": True}, NOTES)
    assert pictured(partial(opened, keys=key), size, dialog=True)
