"""The first screen: what was found on this computer, and what its owner agrees to. Nothing starts before that."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Horizontal, Vertical, VerticalScroll
from textual.events import Paste, ScreenResume
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static

from sapo_edge.errors import SapoError
from sapo_edge.plain import printable
from sapo_edge.tui.node.launcher import Consent, Finding, Findings
from sapo_edge.tui.screens.first_run.company import PREFIX, Company
from sapo_edge.tui.screens.first_run.found import FoundRow
from sapo_edge.tui.widgets.choices import Stepper, Tick
from sapo_edge.tui.widgets.footer import KeyFooter

if TYPE_CHECKING:
    from sapo_edge.tui.app import SapoApp

LOGO = """\
┌─┐┌─┐┌─┐┌─┐
└─┐├─┤├─┘│ │
└─┘┴ ┴┴  └─┘"""
INTRO = (
    "Your computer teaches a small language model: it answers questions with known solutions, and learns from the "
    "right ones. What it learned, a LoRA adapter, stays with you."
)
CALM = "Nothing starts and nothing is sent before you agree."
LOOKING = "Looking at this computer ..."


class FirstRun(ModalScreen[bool]):
    """Asks for the owner's consent. Dismissed with whether it was given.

    A modal screen, so that the app's own keys do nothing here.
    """

    HELP_TEXT = """\
`Enter` starts with what is chosen, wherever you are; nothing is written, started or sent before. `Space` and the arrow
keys change what has the focus. Everything can be changed later, on the screen Settings or with `sapo config`.

**This network and the open swarm**: whoever trains on the same questions may take part, and sees what your model
answers. **Alone**: no connection is opened. **An invite**: a line that begins with `sapo://`, of an open or a private
swarm; paste it anywhere.

**rest on battery**, **rest when busy**: the node pauses while the machine has no mains power, or while other programs
need most of the processor.
"""

    DEFAULT_CSS = """
    FirstRun #page { width: 100%; max-width: 124; height: 100%; max-height: 37; padding: 0 1; }
    FirstRun #top { height: 4; padding: 1 1 0 1; }
    FirstRun #logo { width: 15; height: 3; color: $primary; }
    FirstRun #intro { width: 1fr; height: 3; color: $text-muted; }
    FirstRun #body { height: 1fr; overflow-y: auto; scrollbar-size: 1 1; }
    FirstRun #found { height: 1fr; min-height: 4; scrollbar-size: 1 1; }
    FirstRun #choices, FirstRun #limits, FirstRun #care { height: auto; }
    FirstRun Stepper, FirstRun Tick { margin-right: 3; }
    FirstRun #mains { display: none; }
    FirstRun .-battery #mains { display: block; }
    FirstRun #bar { height: 3; }
    FirstRun #say { width: 1fr; height: 100%; padding: 0 1; content-align: left middle; color: $text-muted; }
    FirstRun #say.-bad { color: $text-error; }
    FirstRun Button { margin-left: 2; min-width: 11; }
    FirstRun #again { display: none; }
    FirstRun .-blocked #again { display: block; }

    FirstRun.-wide #body { layout: horizontal; }
    FirstRun.-wide #found { width: 1fr; height: 100%; margin-right: 1; }
    FirstRun.-wide #choices { width: 1fr; height: 100%; }
    FirstRun.-wide Company { height: 1fr; }
    FirstRun.-wide #care { layout: vertical; }
    FirstRun.-wide FoundRow, FirstRun.-wide FoundRow .what { height: auto; }
    FirstRun.-wide FoundRow .what { layout: vertical; }
    FirstRun.-wide FoundRow .what Static {
        width: 100%; max-width: 100%; height: auto; text-wrap: wrap; text-overflow: fold; margin-right: 0;
    }
    FirstRun.-wide.-tall #top { height: 6; padding: 2 8 1 2; }
    FirstRun.-wide.-tall #bar { height: 5; padding: 1 0; }
    FirstRun.-wide.-tall FoundRow { margin-bottom: 1; }

    FirstRun.-tiny #top { display: none; }
    FirstRun.-tiny #found { display: none; height: auto; min-height: 1; }
    FirstRun.-tiny .-blocked #found { display: block; }
    FirstRun.-tiny #bar { height: 1; align-horizontal: right; }
    FirstRun.-tiny #say { height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
    FirstRun.-slim #logo, FirstRun.-slim #say { display: none; }
    FirstRun.-slim .-blocked #say { display: block; }
    FirstRun.-slim .-blocked #start { display: none; }
    FirstRun.-slim Choice, FirstRun.-slim #care { layout: vertical; height: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "agree", "Start learning", priority=True, id="first.start"),
        Binding("tab", "app.focus_next", "Next", id="first.next"),
        Binding("n", "choose('swarm')", "Network", id="first.swarm", tooltip="With others here and in the open swarm"),
        Binding("a", "choose('solo')", "Alone", id="first.alone", tooltip="Share nothing"),
        Binding("i", "choose('invite')", "Invite", id="first.invite", tooltip="With those who sent you a line"),
        Binding("r", "look", "Look again", show=False, id="first.look"),
        Binding("up,pageup", "scroll(-1)", "Scroll", show=False, id="first.up"),
        Binding("down,pagedown", "scroll(1)", "Scroll", show=False, id="first.down"),
        Binding("escape,q", "leave", "Leave", id="first.leave"),
    ]
    # Textual declares them as attributes of the instance.
    HORIZONTAL_BREAKPOINTS: list[tuple[int, str]] | None = [(0, "-slim"), (66, "-narrow"), (100, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS: list[tuple[int, str]] | None = [(0, "-tiny"), (20, "-short"), (32, "-tall")]  # noqa: RUF012
    AUTO_FOCUS = "#start"

    def __init__(self) -> None:
        super().__init__()
        self._findings: Findings | None = None
        self._wanted = False
        self._agreeing = False
        self._agreed = False

    def compose(self) -> ComposeResult:
        """Who this is, what was found, the choices, and the button."""
        with Vertical(id="page"):
            with Horizontal(id="top"):
                yield Static(LOGO, id="logo", markup=False)
                yield Static(INTRO, id="intro", markup=False)
            with Container(id="body"):
                yield VerticalScroll(id="found", classes="panel", can_focus=False)
                with Vertical(id="choices"):
                    yield Company(id="with", classes="panel")
                    with Vertical(id="limits", classes="panel"), Horizontal(id="care"):
                        yield Stepper(self._cores, id="cores")
                        yield Tick("rest on battery", True, id="mains")
                        yield Tick("rest when busy", True, id="busy")
            with Horizontal(id="bar"):
                yield Static(CALM, id="say", markup=False)
                yield Button("Look again", id="again")
                yield Button("Start learning", id="start")
                yield Button("Leave", id="leave")
        yield KeyFooter(compact=True)

    def on_mount(self) -> None:
        """Name the panels, and look."""
        for name, title in (("found", "Found here"), ("with", "Learn with"), ("limits", "Limits")):
            self.query_one(f"#{name}").border_title = title
        self.query_one("#busy").tooltip = "while other programs need most of the processor"
        self.action_look()

    def on_resize(self) -> None:
        """Buttons of one line where there are few."""
        for button in self.query(Button):
            button.compact = self.app.size.height < 20

    @property
    def sapo(self) -> SapoApp:
        """The app, with its own type."""
        from sapo_edge.tui.app import SapoApp

        assert isinstance(self.app, SapoApp)
        return self.app

    # What was found.

    def action_look(self) -> None:
        """Look at the host, again if something stood in the way."""
        self._findings = None
        self._block("")
        self._look()

    @work(exclusive=True, group="look")
    async def _look(self) -> None:
        found = self.query_one("#found")
        await found.remove_children()
        await found.mount(Static(LOOKING, classes="muted", markup=False))
        try:
            findings = await asyncio.to_thread(self.sapo.launcher.findings)
        except SapoError as error:
            findings = Findings((Finding("Host", error.message, error.remedy, good=False),), 0, False, error.message)
        await found.remove_children()
        # What stands in the way comes first: it must be seen without scrolling.
        await found.mount_all(FoundRow(row) for row in sorted(findings.rows, key=lambda row: row.good))
        self.query_one("#page").set_class(findings.battery, "-battery")
        self.query_one(Stepper).high = max(0, findings.cores)
        self._findings = findings
        self._block(findings.blocked)
        bad = [row for row in findings.rows if not row.good]
        if bad and not findings.blocked:
            # An estimate, such as that of memory, may be wrong: the owner decides.
            self._say(f"✗ {printable(bad[0].name)}: {printable(bad[0].value)}. It may fail; you can try.", bad=True)
        wanted, self._wanted = self._wanted and not bad and not findings.blocked, False
        if wanted and self.app.screen is self:
            self.action_agree()

    def _block(self, why: str) -> None:
        """Let nothing start for a reason; without one, let it."""
        start, again = self.query_one("#start", Button), self.query_one("#again", Button)
        self.query_one("#page").set_class(bool(why), "-blocked")
        self._say(f"✗ Can't start yet: {printable(why)}" if why else CALM, bad=bool(why))
        moved = self.focused in (None, start, again)
        start.disabled = bool(why)
        if moved:
            (again if why else start).focus()

    def _say(self, text: str, *, bad: bool = False) -> None:
        say = self.query_one("#say", Static)
        say.set_class(bad, "-bad")
        say.update(Text(text))

    def _cores(self, threads: int) -> str:
        high = 0 if self._findings is None else self._findings.cores
        if not threads:
            return f"cores: automatic, of {high}" if high else "cores: automatic"
        return f"cores: at most {threads} of {high}"

    # What is chosen.

    def on_paste(self, event: Paste) -> None:
        """An invite that is pasted anywhere is meant for its field."""
        if event.text.strip().startswith(PREFIX):
            event.stop()
            self.query_one(Company).choose("invite", event.text)
            self.query_one(Input).focus()

    def action_choose(self, network: str) -> None:
        """Choose with whom to learn."""
        self.query_one(Company).choose(network)
        self.query_one("#invite" if network == "invite" else "#start").focus()

    def action_scroll(self, pages: int) -> None:
        """Show more of what was found."""
        found, body = self.query_one("#found"), self.query_one("#body")
        place = found if found.display and found.max_scroll_y else body
        place.scroll_relative(y=pages * max(1, place.size.height - 1), animate=False)

    # The end.

    @on(Button.Pressed, "#start")
    def action_agree(self) -> None:
        """Take what is chosen, unless something stands in the way."""
        focused = self.focused
        if isinstance(focused, Button) and focused.id in ("leave", "again"):
            focused.press()
        elif self._findings is None:
            self._wanted = True
            self._say(f"{LOOKING} It starts if all is well.")
        elif not self.query_one("#start", Button).disabled and not self._agreeing:
            self._agreeing = True
            self._agree(self._consent())

    def _consent(self) -> Consent:
        company = self.query_one(Company)
        return Consent(
            network=company.network,
            invite=company.invite,
            threads=self.query_one(Stepper).value,
            mains_only=self.query_one("#mains", Tick).value,
            yield_to_others=self.query_one("#busy", Tick).value,
        )

    @work(exclusive=True, group="agree")
    async def _agree(self, consent: Consent) -> None:
        self._say("Writing down what you chose ...")
        try:
            if consent.network == "invite" and not consent.invite:
                raise SapoError("the field is empty", "paste the line that you were sent")
            await asyncio.to_thread(self.sapo.launcher.accept, consent)
        except SapoError as error:
            self._agreeing = False
            told = f"✗ {printable(error.message)}: {printable(error.remedy)}"
            if consent.network == "invite":
                self._say(CALM)
                self.query_one(Company).refuse(told)
            else:
                self._say(told, bad=True)
        else:
            self._agreed = True
            if self.app.screen is self:
                self.dismiss(True)

    def on_screen_resume(self, event: ScreenResume) -> None:
        """Go on with what was agreed to while the help was in front."""
        if self._agreed:
            self.dismiss(True)

    @on(Button.Pressed, "#again")
    def _pressed_again(self) -> None:
        self.action_look()

    @on(Button.Pressed, "#leave")
    def _pressed_leave(self) -> None:
        self.action_leave()

    def action_leave(self) -> None:
        """Leave the field of the invite, else leave without a trace."""
        if isinstance(self.focused, Input):
            self.query_one("#start").focus()
        elif not self._agreeing:
            self.dismiss(False)
