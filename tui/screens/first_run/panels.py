"""The panels of the first screen: what learning means, what was found on this computer, with whom the model learns."""

from __future__ import annotations

from typing import cast

from rich.table import Table
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widget import Widget
from textual.widgets import Input, Static

from sapo_edge.plain import counted, printable
from sapo_edge.tasks.about import SKILL_WORDS
from sapo_edge.tui.node.launcher import Choices, Finding, Findings, Network
from sapo_edge.tui.screens.first_run.choices import OneOf, Stepper
from sapo_edge.tui.widgets.inputs import MAX_INVITE, InviteInput, in_one_line
from sapo_edge.tui.widgets.small import Waiting

ROOMY_COLUMNS, ROOMY_LINES = 100, 34
"""Size of a terminal that has room for whole sentences."""

NETWORKS: dict[str, str] = {"swarm": "This network and the open swarm", "solo": "Alone", "invite": "An invite"}
MAX_NAME = 12
"""Most characters of a swarm's name in the row of networks."""
ABOUT = {
    "swarm": "Nodes on this network find each other. Until others join, your computer learns alone.",
    "solo": "Your computer learns from its own answers. You can join others later: setting network.",
    "invite": "Paste the invite you received. A member of a swarm creates one with `sapo swarm invite`.",
    "joined": "The swarm that this computer has joined already.",
}
"""What each choice means, for terminals with room for it."""
_TEXTS = "questions, your model's answers as text, a public key, this machine's address on the network"
_MEMBERS = ("with members of its swarm: questions, answers, key, address", f"with members of its swarm: {_TEXTS}")
SHARED = {
    "swarm": (
        "with all who take part: questions, answers, key; publicly: address",
        f"with all who take part: {_TEXTS}; strangers find that address in BitTorrent's public table",
    ),
    "solo": ("nothing: no connection is opened", "nothing: no connection is opened"),
    "invite": _MEMBERS,
    "joined": _MEMBERS,
}
"""What leaves the machine, on one line and in full."""
NEVER = (
    "weights, adapter, rewards, files, settings, your user name",
    "weights, the adapter, rewards, files, settings, the name of your user or your machine",
)


GAIN = ("to chat with, or to export", "to chat with here, or to export to other programs")
"""What the user can do with what is learned, on one line and in full."""
GAIN_COLUMNS = 66
"""Width from which it is said."""
COST = (
    "all of the processor: warmth, noise, power",
    "the processor works all the time: the machine gets warm, its fan may run, and it takes more power",
)
"""What learning costs, likewise."""
SPEEDS = {"starter": "2 cores learned most in 12 minutes", "home": "2 cores learned most in 15 minutes"}
"""How long learning takes by manifest, as docs/results.md and docs/skills.md have it; of others it is not known."""


class Fact(Horizontal):
    """A name, and beside it what is said about it."""

    DEFAULT_CSS = """
    Fact { height: auto; }
    Fact > .name { width: 10; text-style: bold; }
    Fact > Static { width: 1fr; }
    Fact > Stepper { width: auto; margin-right: 1; }
    """

    def __init__(self, name: str, *about: Static) -> None:
        super().__init__(Static(name, classes="name", markup=False), *about)


class Company(Vertical):
    """The choice of the network, the input for an invite, what is shared, and what never is."""

    DEFAULT_CSS = """
    Company { height: auto; }
    Company #about { display: none; color: $text-muted; margin: 1 0; }
    Company #invite { display: none; border: none; height: 1; padding: 0 1; background: $panel; }
    Company #wrong { display: none; color: $text-error; }
    Company.-inviting #invite { display: block; }
    Company.-wrong #wrong { display: block; }
    Company.-roomy #about { display: block; }
    Company Fact > .name { width: 8; }
    Company.-roomy Fact { margin-top: 1; }
    """

    def __init__(self, choices: Choices, *, id: str, classes: str) -> None:
        super().__init__(id=id, classes=classes)
        self._choices = choices

    def compose(self) -> ComposeResult:
        yield OneOf(_networks(self._choices), self._choices.network, id="network")
        yield Static(id="about", markup=False)
        yield InviteInput(placeholder="paste sapo://join/... here; Esc leaves", max_length=MAX_INVITE, id="invite")
        yield Static(id="wrong", markup=False)
        yield Fact("Shared", Static(id="shared", markup=False))
        yield Fact("Never", Static(id="never", markup=False))

    def on_mount(self) -> None:
        self.watch(self.query_one(OneOf), "value", self.explain)

    def on_resize(self) -> None:
        self.explain()

    async def offer(self, choices: Choices, network: Network) -> None:
        """Offer the networks again, after what is set has changed; choose one of them, or else what is set."""
        self._choices = choices
        networks = _networks(choices)
        await self.query_one(OneOf).offer(networks, network if network in networks else choices.network)
        self.explain()

    @property
    def network(self) -> Network:
        return cast(Network, self.query_one(OneOf).value)

    @property
    def invite(self) -> str:
        return self.query_one(Input).value.strip() if self.network == "invite" else ""

    def choose(self, network: str, invite: str | None = None) -> None:
        self.query_one(OneOf).value = network
        if invite is not None:
            self.query_one(Input).value = in_one_line(invite)

    def show_error(self, text: str) -> None:
        self.query_one("#wrong", Static).update(Text(text))
        self.add_class("-wrong")
        self.query_one(Input).focus()
        self.call_after_refresh(self.query_one("#wrong").scroll_visible, animate=False)

    def explain(self) -> None:
        network, roomy = self.network, is_roomy(self)
        self.set_class(roomy, "-roomy")
        self.set_class(network == "invite", "-inviting")
        if network != "invite":
            self.remove_class("-wrong")
        else:
            # It has no place before this screen is laid out.
            self.call_after_refresh(self.query_one(Input).scroll_visible, animate=False)
        self.query_one("#about", Static).update(ABOUT[network])
        shared, never = SHARED[network][roomy], "anything at all" if network == "solo" else NEVER[roomy]
        if self._choices.curves:
            figures = f"figures of each round, to {self._choices.curves}"
            shared, never = (figures, "anything else") if network == "solo" else (f"{shared}; {figures}", never)
        self.query_one("#shared", Static).update(shared)
        self.query_one("#never", Static).update(never)

    @on(Input.Changed)
    def _clear_error(self) -> None:
        self.remove_class("-wrong")


class Plan(Vertical):
    """What the user gets, how long it takes, what it costs, and whether this computer can do it, in plain words.

    The node stops after `rounds` and pauses above `hottest` °C of the processor, unless they are 0.
    """

    def __init__(self, rounds: int, hottest: int, manifest: str, *, id: str, classes: str) -> None:
        super().__init__(id=id, classes=classes)
        self._rounds, self._hottest = rounds, hottest
        self._offered = _manifests(manifest)
        self._set = manifest
        self._what = Stepper(self._taught, self._offered.index(manifest), id="what")
        self._what.set_reactive(Stepper.high, len(self._offered) - 1)
        self._battery = False

    def compose(self) -> ComposeResult:
        yield Fact("Learns", self._what, Static(id="gain", markup=False))
        for name, label in (("time", "Takes"), ("cost", "Costs")):
            yield Fact(label, Static(id=name, markup=False))
        yield Fact("Computer", Waiting("checking ...", id="ready"))

    def on_mount(self) -> None:
        self.on_resize()
        self.watch(self._what, "value", self.on_resize, init=False)

    def on_resize(self) -> None:
        roomy = is_roomy(self)
        end = counted(self._rounds, "round") if self._rounds else "until you stop it"
        gain = self.query_one("#gain", Static)
        gain.update(GAIN[roomy])
        gain.display = self.size.width >= GAIN_COLUMNS
        speed = "" if self._what.disabled else SPEEDS.get(self._offered[self._what.value], "")
        self.query_one("#time", Static).update("; ".join(filter(None, (end, speed))))
        pauses = ["on battery"] if self._battery else []
        pauses += [f"above {self._hottest} °C"] if self._hottest else []
        pause = f"; pauses {' and '.join(pauses)}" if pauses else ""
        self.query_one("#cost", Static).update(COST[roomy] + pause)

    @property
    def manifest(self) -> str | None:
        """The chosen manifest; None if it is the one that is set, or the swarm's of an invite."""
        chosen = self._offered[self._what.value]
        return None if self._what.disabled or chosen == self._set else chosen

    def offer(self, manifest: str) -> None:
        """Offer the manifests again, after another one was set; what was chosen stays chosen."""
        chosen = self.manifest or manifest
        self._offered, self._set = _manifests(manifest), manifest
        self._what.high = len(self._offered) - 1
        self._what.value = self._offered.index(chosen)

    def follow(self, network: Network) -> None:
        self._what.disabled = network in ("invite", "joined")
        self._what.refresh(layout=True)
        self.on_resize()

    def _taught(self, index: int) -> str:
        if self._what.disabled:
            return "what its swarm learns"
        return SKILL_WORDS.get(self._offered[index], "questions of your own")

    def show(self, findings: Findings, *, on_battery: bool) -> None:
        self._battery = findings.battery and on_battery
        self.on_resize()
        problems = [f"{row.name}: {row.value}" for row in findings.rows if not row.good]
        # The rest of each is among the details.
        values = [row.value.partition(",")[0] for row in findings.rows if row.name in ("Model", "Processor", "Memory")]
        text = f"✗ {'; '.join(problems)}" if problems else f"✓ ready: {'; '.join(values)}"
        self.query_one("#ready", Waiting).done(printable(text))


class FoundRow(Static):
    """One finding: its name, value and reason; whole if it is bad or there is room, else on one line."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(markup=False)
        self._finding = finding

    def on_mount(self) -> None:
        self.on_resize()

    def on_resize(self) -> None:
        finding, whole = self._finding, self.screen.has_class("-wide") or not self._finding.good
        mark, strong, weak = ("✓ ", "bold", "dim") if finding.good else ("✗ ", "bold red", "")
        value, reason = (printable(finding.value), strong), (printable(finding.reason), weak)
        text = Text.assemble(value, "\n" if whole else "  ", reason)
        table = Table.grid(padding=(0, 1), expand=True)
        table.add_column(width=12, no_wrap=True)
        table.add_column(ratio=1, no_wrap=not whole, overflow="fold" if whole else "ellipsis")
        table.add_row(Text.assemble((mark, "green" if finding.good else strong), printable(finding.name)), text)
        self.update(table)


def is_roomy(widget: Widget) -> bool:
    size = widget.app.size
    return size.width >= ROOMY_COLUMNS and size.height >= ROOMY_LINES


def _manifests(manifest: str) -> list[str]:
    return list(dict.fromkeys([*SKILL_WORDS, manifest]))


def _networks(choices: Choices) -> dict[str, str]:
    """Labels of the networks: with a joined swarm, that of the open one is short; own questions have no open swarm."""
    networks = {key: label for key, label in NETWORKS.items() if key != "swarm" or not choices.private}
    if not choices.swarm:
        return networks
    name = printable(choices.swarm)
    name = name if len(name) <= MAX_NAME else name[: MAX_NAME - 1] + "…"
    return {"joined": name, **networks, **({} if choices.private else {"swarm": "The open swarm"})}
