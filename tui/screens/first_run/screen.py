"""The first screen: shows what was found on this computer and asks for consent. Nothing starts before that."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any, ClassVar

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Horizontal, Vertical, VerticalScroll
from textual.events import Paste
from textual.widget import Widget
from textual.widgets import Button, Input, Static

from sapo_edge.errors import SapoError
from sapo_edge.plain import printable
from sapo_edge.tui.node.launcher import Choices, Consent, Finding, Findings, Launcher
from sapo_edge.tui.screens.first_run.choices import OneOf, Stepper
from sapo_edge.tui.screens.first_run.panels import Company, FoundRow, Plan
from sapo_edge.tui.widgets.dialog import WorkDialog
from sapo_edge.tui.widgets.footer import KeyFooter
from sapo_edge.tui.widgets.small import Tick, Waiting

LOGO = """\
┌─┐┌─┐┌─┐┌─┐
└─┐├─┤├─┘│ │
└─┘┴ ┴┴  └─┘"""
INTRO = (
    "Your computer trains a small language model: it answers questions with known solutions, and learns from the "
    "right answers. What it learns is a small file, which stays here."
)
CALM = "Nothing starts and nothing is sent before you agree."
LOOKING = "Checking this computer"
TOO_EARLY = f"{LOOKING} ... Enter works after the check."


class FirstRun(WorkDialog):
    """Asks for the user's consent. Dismissed with whether it was given.

    A modal screen, so that the app's own keys do nothing here. `at_login`, whether a node is to start at every login,
    is known once the user has agreed.
    """

    HELP_TEXT = """\
`Enter` starts learning with these choices; nothing is written, started or sent before. The screen shows what is set,
and `Enter` writes only what you changed. `Space` and the arrow keys change the highlighted choice, elsewhere `←` and
`→` what is learned. You can change everything later, on the screens Tasks and Settings or with `sapo config`. `d`
shows what was found on this computer, `F2` what the words mean.

**This network and the open swarm**: anyone who trains on the same questions can take part, and sees your model's
answers. **Alone**: no connection is opened. **An invite**: a line that begins with `sapo://`, for an open or a private
swarm; paste it anywhere on this screen.

**pause on battery**, **pause when busy**: the node pauses while the computer runs on battery, or while other programs
need most of the processor.

**start a node whenever you log in**: writes a service of this user, and says where. `:` takes it back later. It is
offered where a service manager answers, and not for a run of so many rounds.
"""

    DEFAULT_CSS = """
    FirstRun #page { width: 100%; max-width: 124; height: 100%; max-height: 46; padding: 0 1; }
    FirstRun #top { height: 4; padding: 1 1 0 1; }
    FirstRun #logo { width: 15; height: 3; color: $primary; }
    FirstRun #intro { width: 1fr; height: 3; color: $text-muted; }
    FirstRun #body { height: 1fr; overflow-y: auto; scrollbar-size: 1 1; }
    FirstRun #plan { height: 1fr; min-height: 4; }
    FirstRun #found { display: none; height: 1fr; min-height: 4; }
    FirstRun .-details #plan { display: none; }
    FirstRun .-details #found { display: block; }
    FirstRun #choices, FirstRun #limits, FirstRun #care { height: auto; }
    FirstRun #cores, FirstRun Tick { margin-right: 3; }
    FirstRun #mains, FirstRun #login, FirstRun #again { display: none; }
    FirstRun .-battery #mains, FirstRun .-login #login, FirstRun .-blocked #again { display: block; }
    FirstRun #bar { height: 3; }
    FirstRun #say { width: 1fr; height: 100%; padding: 0 1; content-align: left middle; color: $text-muted; }
    FirstRun #say.-bad { color: $text-error; }
    FirstRun Button { margin-left: 2; min-width: 11; }

    FirstRun.-wide #body { layout: horizontal; }
    FirstRun.-wide #left { width: 1fr; height: 100%; margin-right: 1; }
    FirstRun.-wide OneOf { layout: vertical; height: auto; }
    FirstRun.-wide.-tall #plan { display: block; height: auto; }
    FirstRun.-wide.-tall #found { display: block; }
    FirstRun.-wide #choices { width: 1fr; height: 100%; }
    FirstRun.-wide Company { height: 1fr; }
    FirstRun.-wide #care { layout: vertical; }
    FirstRun.-wide.-tall #top { height: 6; padding: 2 8 1 2; }
    FirstRun.-wide.-tall #bar { height: 5; padding: 1 0; }
    FirstRun.-wide.-tall FoundRow { margin-bottom: 1; }

    FirstRun.-tiny #top, FirstRun.-tiny #plan { display: none; }
    FirstRun.-tiny #left { height: auto; }
    FirstRun.-tiny #found { display: none; height: auto; min-height: 1; }
    FirstRun.-tiny .-blocked #found { display: block; }
    FirstRun.-tiny #bar { height: 1; align-horizontal: right; }
    FirstRun.-tiny #say { height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
    FirstRun.-slim #left, FirstRun.-slim #plan { height: auto; }
    FirstRun.-slim #found { height: 8; }
    FirstRun.-slim #logo, FirstRun.-slim #say { display: none; }
    FirstRun.-slim .-blocked #say { display: block; }
    FirstRun.-slim .-blocked #start { display: none; }
    FirstRun.-slim OneOf, FirstRun.-slim #care { layout: vertical; height: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "agree", "Start", priority=True, id="first.start"),
        Binding("tab", "app.focus_next", "Next", id="first.next"),
        Binding("n", "choose('swarm')", "Network", id="first.swarm", tooltip="This network and the open swarm"),
        Binding("a", "choose('solo')", "Alone", id="first.alone", tooltip="Share nothing"),
        Binding("i", "choose('invite')", "Invite", id="first.invite", tooltip="Join the swarm of an invite"),
        Binding("d", "details", "Details", id="first.details", tooltip="What was found on this computer"),
        Binding("f2", "app.words", "Words", id="first.words", tooltip="What the words here mean"),
        Binding("r", "look", "Check again", show=False, id="first.look"),
        Binding("left", "learn(-1)", "Learn another", show=False, id="first.learn_back"),
        Binding("right", "learn(1)", "Learn another", show=False, id="first.learn_on"),
        Binding("up,pageup", "scroll(0, -1)", "Scroll", show=False, id="first.up"),
        Binding("down,pagedown", "scroll(0, 1)", "Scroll", show=False, id="first.down"),
        Binding("escape,q", "leave", "Leave", id="first.leave"),
    ]
    AUTO_FOCUS = "#start"

    _findings: Findings | None = None
    _cores = 0
    _agreeing = _details = at_login = False

    def __init__(self, launcher: Launcher) -> None:
        super().__init__(launcher)
        self._choices = launcher.choices()

    def compose(self) -> ComposeResult:
        with Vertical(id="page"):
            with Horizontal(id="top"):
                yield Static(LOGO, id="logo", markup=False)
                yield Static(INTRO, id="intro", markup=False)
            with Container(id="body"):
                with Vertical(id="left"):
                    rounds, hottest = (int(self._launcher.setting(name)) for name in ("rounds", "max_temperature"))
                    yield Plan(rounds, hottest, self._choices.manifest, id="plan", classes="panel")
                    yield VerticalScroll(id="found", classes="panel", can_focus=False)
                with Vertical(id="choices"):
                    choices = self._choices
                    yield Company(choices, id="with", classes="panel")
                    with Vertical(id="limits", classes="panel"):
                        with Horizontal(id="care"):
                            yield Stepper(self._threads_text, choices.threads, id="cores")
                            yield Tick("pause on battery", choices.mains_only, id="mains")
                            yield Tick("pause when busy", choices.yield_to_others, id="busy")
                        yield Tick("start a node whenever you log in", False, id="login")
            with Horizontal(id="bar"):
                yield Static(CALM, id="say", markup=False)
                yield Button("Check again", id="again", action="screen.look")
                yield Button("Start learning", id="start", action="screen.agree")
                yield Button("Leave", id="leave", action="screen.leave")
        yield KeyFooter(compact=True)

    def on_mount(self) -> None:
        titles = {"plan": "What happens", "found": "This computer", "with": "Learn with", "limits": "Limits"}
        for name, title in titles.items():
            self.query_one(f"#{name}").border_title = title
        self.query_one("#busy").tooltip = "while other programs need most of the processor"
        self.watch(self.query_one(OneOf), "value", self._follow)
        self.action_look()

    def action_look(self) -> None:
        self._findings = None
        self._block("")
        self._look()

    @work(exclusive=True, group="look")
    async def _look(self) -> None:
        panel = self.query_one("#found")
        await panel.remove_children()
        waiting = Waiting(LOOKING, id="looking", classes="muted")
        await panel.mount(waiting)
        waiting.begin()
        self.query_one("#ready", Waiting).begin()
        try:
            findings = await asyncio.to_thread(self._launcher.findings)
        except SapoError as error:
            findings = Findings((Finding("Host", error.message, error.remedy, good=False),), 0, False, error.message)
        problems = [row for row in findings.rows if not row.good]
        # Drawn all at once: what is visible can be agreed to.
        with self.app.batch_update():
            await panel.remove_children()
            # Problems come first, to be seen without scrolling.
            await panel.mount_all(FoundRow(row) for row in sorted(findings.rows, key=lambda row: row.good))
            shown = {"-battery": findings.battery, "-login": findings.login, "-details": bool(problems)}
            self.query_one("#page").update_classes(shown)
            await self._show_choices(self._launcher.choices(), findings.cores)
            self._findings = findings
            self._block(findings.blocked)
            self.query_one(Plan).show(findings, on_battery=self._choices.mains_only)
        if problems and not findings.blocked:
            # An estimate, such as that of memory, may be wrong: the user decides.
            name, value = printable(problems[0].name), printable(problems[0].value)
            self._say(f"✗ {name}: {value}. It may fail; you can try.", bad=True)

    async def _show_choices(self, choices: Choices, cores: int) -> None:
        """Show what is set; what the user has changed before stays changed."""
        changes = {name: value for name, value in asdict(self._consent()).items() if value is not None}
        chosen = asdict(choices) | changes
        before, self._choices = self._choices, choices
        if choices != before:
            await self.query_one(Company).offer(choices, chosen["network"])
            self.query_one(Plan).offer(choices.manifest)
        threads = self.query_one("#cores", Stepper)
        self._cores = cores
        threads.high = max(chosen["threads"], choices.threads, cores)
        threads.value = chosen["threads"]
        threads.refresh(layout=True)
        self.query_one("#mains", Tick).value = chosen["mains_only"]
        self.query_one("#busy", Tick).value = chosen["yield_to_others"]

    def _block(self, reason: str) -> None:
        start, again = self.query_one("#start", Button), self.query_one("#again", Button)
        self.query_one("#page").set_class(bool(reason), "-blocked")
        self._say(f"✗ Can't start yet: {printable(reason)}" if reason else CALM, bad=bool(reason))
        move_focus = self.focused in (None, start, again)
        start.disabled = bool(reason)
        if move_focus:
            (again if reason else start).focus()

    def _say(self, text: str, *, bad: bool = False) -> None:
        say = self.query_one("#say", Static)
        say.set_class(bad, "-bad")
        say.update(Text(text))

    def _threads_text(self, threads: int) -> str:
        limit = f"at most {threads}" if threads else "automatic,"
        return f"cores: {limit} of {self._cores}" if self._cores else f"cores: {limit.rstrip(',')}"

    def _follow(self) -> None:
        self.query_one(Plan).follow(self.query_one(Company).network)

    def on_paste(self, event: Paste) -> None:
        """Put a pasted invite into its input, wherever the focus is; anything, if an invite is asked for."""
        if event.text.strip().startswith("sapo://") or self.query_one(Company).network == "invite":
            event.stop()
            self.query_one(Company).choose("invite", event.text)
            self.query_one(Input).focus()

    def action_choose(self, network: str) -> None:
        self.query_one(Company).choose(network)
        self.query_one("#invite" if network == "invite" else "#start").focus()

    def action_learn(self, by: int) -> None:
        """Choose what is learned, while nothing that the arrow keys change has the focus."""
        what = self.query_one("#what", Stepper)
        if self.query_one(Plan).display and not what.disabled:
            what.action_step(by)

    def action_details(self) -> None:
        page = self.query_one("#page")
        page.toggle_class("-details")
        self._details = page.has_class("-details")

    @property
    def scrolled(self) -> Widget:
        found = self.query_one("#found")
        return found if found.display and found.max_scroll_y else self.query_one("#body")

    def action_agree(self) -> None:
        """Accept the choices, unless a node can't start; with the focus on another button, press that."""
        focused = self.focused
        if isinstance(focused, Button) and focused.id in ("leave", "again"):
            focused.press()
        elif self._findings is None:
            # Nobody can agree to what is not shown yet.
            self._say(TOO_EARLY)
        elif not self.query_one("#start", Button).disabled and not self._agreeing:
            self._agreeing = True
            login = self.query_one("#login", Tick)
            # Kept here: the screen's widgets are gone when its caller goes on.
            self.at_login = bool(login.display and login.value)
            self._agree(self._consent())

    def _consent(self) -> Consent:
        company = self.query_one(Company)
        chosen: dict[str, Any] = {
            "network": company.network,
            "threads": self.query_one("#cores", Stepper).value,
            "mains_only": self.query_one("#mains", Tick).value,
            "yield_to_others": self.query_one("#busy", Tick).value,
        }
        changes = {name: value for name, value in chosen.items() if value != getattr(self._choices, name)}
        return Consent(**changes, invite=company.invite, manifest=self.query_one(Plan).manifest)

    @work(exclusive=True, group="agree")
    async def _agree(self, consent: Consent) -> None:
        self._say("Saving your choices ...")
        try:
            if consent.network == "invite" and not consent.invite:
                raise SapoError("there is no invite yet", "paste the line that begins with sapo://")
            await asyncio.to_thread(self._launcher.accept, consent)
        except SapoError as error:
            self._agreeing = False
            text = f"✗ {printable(error)}"
            if consent.network == "invite":
                self._say(CALM)
                self.query_one(Company).show_error(text)
            else:
                self._say(text, bad=True)
        else:
            self.finish()

    def action_leave(self) -> None:
        """Leave the input of the invite, or the details; else leave the app without a trace."""
        if isinstance(self.focused, Input):
            start = self.query_one("#start", Button)
            # A disabled button takes no focus.
            (self.query_one("#again", Button) if start.disabled else start).focus()
        elif self._details and not self.query_one(Plan).display:
            self.action_details()
        elif not self._agreeing:
            self.dismiss(False)
