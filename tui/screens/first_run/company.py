"""With whom the model learns: the choice on the first screen, and what it means for what leaves the machine."""

from __future__ import annotations

from typing import cast

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.events import Paste
from textual.widgets import Input, Static

from sapo_edge.tui.node.launcher import Network
from sapo_edge.tui.widgets.choices import Choice

MAX_INVITE = 8192
"""Characters of a pasted line that are looked at; an invite has at most half of that."""
PREFIX = "sapo://"
"""How an invite begins."""
ROOMY = 100
"""Columns of a terminal from which on there is room for whole sentences."""

NETWORKS: dict[str, str] = {"swarm": "This network and the open swarm", "solo": "Alone", "invite": "An invite"}
ABOUT = {
    "swarm": "Nodes on this network find each other. Until there are others, your computer learns alone.",
    "solo": "Your computer learns from its own answers. The setting network lets you join others later.",
    "invite": "For the line that somebody sent you: `sapo swarm invite` prints it. Paste it here.",
}
"""What a choice means, where there is room."""
_TEXTS = "questions, your model's answers as text, a public key, this machine's address on the network"
SHARED = {
    "swarm": ("with all who take part: questions, answers, public key, address", f"with all who take part: {_TEXTS}"),
    "solo": ("nothing: no connection to anybody is opened", "nothing: no connection to anybody is opened"),
    "invite": ("with members of its swarm: questions, answers, key, address", f"with members of its swarm: {_TEXTS}"),
}
"""What leaves the machine, on one line and in full. README, "What leaves your machine", has every detail."""
NEVER = (
    "weights, adapter, rewards, files, settings, your user's name",
    "weights, the adapter, rewards, files, settings, the name of your user or your machine",
)


class InviteInput(Input):
    """Takes an invite however a chat program broke it into lines."""

    def _on_paste(self, event: Paste) -> None:
        event.stop()
        # The library's own handler takes the first line alone.
        event.prevent_default()
        self.replace(bare(event.text), *self.selection)


class Company(Vertical):
    """The choice, the field of an invite, and what is shared and what never is."""

    DEFAULT_CSS = """
    Company { height: auto; }
    Company #about { display: none; height: auto; color: $text-muted; margin: 1 0; }
    Company #invite { display: none; border: none; height: 1; padding: 0 1; background: $panel; }
    Company #wrong { display: none; height: auto; color: $text-error; }
    Company.-inviting #invite { display: block; }
    Company.-wrong #wrong { display: block; }
    Company .told { height: auto; }
    Company .told .name { width: 8; text-style: bold; }
    Company .told .what { width: 1fr; height: auto; }
    Company.-roomy Choice { layout: vertical; height: auto; }
    Company.-roomy #about { display: block; }
    Company.-roomy .told { margin-top: 1; }
    """

    def compose(self) -> ComposeResult:
        """The widgets."""
        yield Choice(NETWORKS, "swarm", id="network")
        yield Static(id="about", markup=False)
        yield InviteInput(placeholder="paste sapo://join/... here; Esc leaves", max_length=MAX_INVITE, id="invite")
        yield Static(id="wrong", markup=False)
        for name in ("shared", "never"):
            with Horizontal(classes="told"):
                yield Static(name.title(), classes="name", markup=False)
                yield Static(id=name, classes="what", markup=False)

    def on_mount(self) -> None:
        """Begin with the choice that is made."""
        self.tell()

    def on_resize(self) -> None:
        """Say as much as there is room for."""
        self.tell()

    @property
    def network(self) -> Network:
        """With whom."""
        return cast(Network, self.query_one(Choice).value)

    @property
    def invite(self) -> str:
        """The pasted line; empty unless it is what was chosen."""
        return self.query_one(Input).value.strip() if self.network == "invite" else ""

    def choose(self, network: str, invite: str | None = None) -> None:
        """Choose, and fill in the field."""
        self.query_one(Choice).value = network
        if invite is not None:
            self.query_one(Input).value = bare(invite)

    def refuse(self, why: str) -> None:
        """Show at the field what is wrong with it."""
        self.query_one("#wrong", Static).update(Text(why))
        self.add_class("-wrong")
        self.query_one(Input).focus()

    @on(Choice.Changed)
    def tell(self) -> None:
        """Say what the choice means."""
        chosen, roomy = self.network, self.app.size.width >= ROOMY
        self.set_class(roomy, "-roomy")
        self.set_class(chosen == "invite", "-inviting")
        if chosen != "invite":
            self.remove_class("-wrong")
        self.query_one("#about", Static).update(ABOUT[chosen])
        self.query_one("#shared", Static).update(SHARED[chosen][roomy])
        self.query_one("#never", Static).update("anything at all" if chosen == "solo" else NEVER[roomy])

    @on(Input.Changed)
    def _mended(self) -> None:
        self.remove_class("-wrong")


def bare(text: str) -> str:
    """A pasted line without spaces and line ends, of bounded length."""
    return "".join(text[:MAX_INVITE].split())
