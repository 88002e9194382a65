"""The peers screen: the state of the swarm, and who is connected."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from textual import getters, on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from sapo_edge.plain import printable
from sapo_edge.tui.node.launcher import SwarmCard
from sapo_edge.tui.node.state import Standing
from sapo_edge.tui.screens.peers.dialogs import Create, Invite, Join, Leave
from sapo_edge.tui.screens.peers.find import FindSwarms
from sapo_edge.tui.screens.peers.list import PeerList
from sapo_edge.tui.screens.peers.text import (
    NOT_HERE,
    card_text,
    nothing_text,
    peer_text,
    pending_text,
    running_card,
    swarm_text,
)
from sapo_edge.tui.screens.rollouts.screen import Rollouts
from sapo_edge.tui.screens.view import Change, View
from sapo_edge.tui.widgets.cursor_list import CursorList
from sapo_edge.tui.widgets.restart import restart

CHANGES = {"join": Join, "find": FindSwarms, "create": Create, "leave": Leave}
"""The dialogs that change the swarm."""


class Peers(View):
    """The swarm, its peers, and the details of one peer."""

    MODE = "peers"
    DEFAULT_CSS = """
    Peers #swarm { max-height: 7; padding: 0 1; background: $surface; }
    Peers #peers { min-height: 3; }
    Peers #peer { height: auto; max-height: 11; border-subtitle-color: $text-muted; }
    Peers.-short #swarm { max-height: 31%; }
    Peers.-short #peer { max-height: 40%; }
    Peers.-tall #peer { max-height: 16; }
    Peers.-tiny #peer, Peers.-empty #peer { display: none; }
    Peers.-tiny #swarm { max-height: 1; }
    Peers.-open #peer { display: block; height: 1fr; max-height: 100%; }
    Peers.-open #peers { display: none; }
    """
    HELP_TEXT = """\
Who is connected to this node now. **way**: who opened the connection, the peer (`in`) or this node (`out`). **got** and
**sent** are bytes from and to the peer; **refused** counts messages of the peer that this node rejected.

**Invite** (`i`) shows a line, a QR code and a short code for others; **join** (`u`) uses theirs; **find** (`F`) lists
the open swarms of strangers that are alive; **new** (`n`) creates one, private or open; `L` leaves. A running node
follows after a restart, which the app offers; until then the first lines say where it still is, and `r` restarts it.

**now**: new questions and answers of this peer arrive at once, without being asked for (the mesh of GossipSub).

**trust** falls with invalid messages and recovers with time; below -5 this node ignores the peer. Each node keeps its
own figures, and forgets them when it ends.

**Others can connect to you**: a node on another network has recently reached this one. A node that only connects to
others takes part like any other; two such nodes meet through a relay.

Click a column's title to sort by it, and again to reverse the order; `o` and `O` do the same.
"""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "details", "Details", id="peers.details"),
        Binding("i", "invite", "Invite", tooltip="Invite others into this swarm", id="peers.invite"),
        Binding("u", "change('join')", "Join", tooltip="Join a swarm with an invite or a code", id="peers.join"),
        Binding("F,shift+f", "change('find')", "Find", tooltip="Find the open swarms that are alive", id="peers.find"),
        Binding("n", "change('create')", "New", tooltip="Create a swarm, private or open", id="peers.create"),
        Binding("r", "restart", "Restart", tooltip="Restart the node with the swarm that is set", id="peers.restart"),
        Binding(
            "L,shift+l",
            "change('leave')",
            "Leave",
            tooltip="Leave the swarm and work alone",
            show=False,
            id="peers.leave",
        ),
        Binding("o", "sort", "Order", show=False, id="peers.sort"),
        Binding("a", "rollouts", "Rollouts", tooltip="Only the rollouts of this author", id="peers.rollouts"),
        Binding("shift+o,O", "reverse", "Reverse the order", show=False, id="peers.reverse"),
        Binding("c", "copy", "Copy the peer id", show=False, id="peers.copy"),
        Binding("escape", "back", "Back", show=False, id="peers.back"),
    ]

    _next: SwarmCard | None = None
    _keys_for = "", True
    """What decides which keys work: what is pending, and whether anybody is connected."""
    peers = getters.query_one(PeerList)

    def content(self) -> ComposeResult:
        yield Static(id="swarm", markup=False)
        yield PeerList(id="peers")
        with VerticalScroll(id="peer", classes="panel") as panel:
            panel.border_title = "Peer"
            panel.border_subtitle = "c copies the id"
            yield Static(id="about", markup=False)

    def on_mount(self) -> None:
        self.peers.focus()

    def node_changed(self, change: Change) -> None:
        if not change & (Change.STATUS | Change.STANDING):
            return
        if change & Change.STANDING:
            self._read_card()
        state = self.sapo.state
        attached = state.standing is Standing.ATTACHED
        swarm = state.status.get("swarm") if attached else None
        line, pending = self.query_one("#swarm", Static), self._pending
        line.display = swarm is not None or bool(pending)
        line.update(Content(pending) if swarm is None else swarm_text(swarm, self._in, pending))
        peers = (swarm or {}).get("peers") or ()
        self.peers.say("" if peers else nothing_text(state))
        self.peers.show(peers, float((swarm or {}).get("time") or 0))
        if (pending, bool(peers)) != self._keys_for:
            self._keys_for = pending, bool(peers)
            self.refresh_bindings()
        self.set_class(not peers, "-empty")
        if not peers:
            self.action_back()
        self._show_details()

    @property
    def _in(self) -> SwarmCard:
        return running_card(self.sapo.state.status)

    @property
    def _pending(self) -> str:
        if self._next is None or self.sapo.state.standing is not Standing.ATTACHED:
            return ""
        return pending_text(self._in, self._next)

    @work(group="swarm-card", exclusive=True)
    async def _read_card(self) -> None:
        self._next = await asyncio.to_thread(self.sapo.launcher.swarm)
        self.refresh_node(Change.STATUS)

    def action_invite(self) -> None:
        self.app.push_screen(Invite(self.sapo.launcher, NOT_HERE if self._pending else ""))

    @work(group="swarm-change")
    async def action_restart(self) -> None:
        await self._restart()

    async def _restart(self) -> None:
        if self._next is not None:
            await restart(self.sapo, [("swarm", card_text(self._in), card_text(self._next))])

    @work(group="swarm-change")
    async def action_change(self, dialog: str) -> None:
        if not await self.app.push_screen_wait(CHANGES[dialog](self.sapo.launcher)):
            return
        self._next = await asyncio.to_thread(self.sapo.launcher.swarm)
        self.refresh_node(Change.STATUS)
        if self._pending:
            await self._restart()
        elif self._next is not None and self.sapo.state.standing is not Standing.ATTACHED:
            self.notify(f"The next node: {card_text(self._next)}.", markup=False)

    def on_resize(self) -> None:
        self.call_after_refresh(self._show_details)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "back":
            return self.has_class("-open")
        if action == "restart":
            return self.is_mounted and bool(self._pending)
        if action in ("details", "rollouts", "copy", "sort", "reverse"):
            return True if self.is_mounted and self.peers.chosen is not None else None
        return True

    @on(CursorList.Opened)
    def action_details(self) -> None:
        if self.has_class("-open"):
            self.action_back()
            return
        self.add_class("-open")
        self.query_one("#peer").focus()

    def action_back(self) -> None:
        self.remove_class("-open")
        if self.focused is not self.peers:
            self.peers.focus()

    def action_sort(self) -> None:
        self.peers.sort_by_next()

    def action_reverse(self) -> None:
        self.peers.sort_by(self.peers.sorted_by)

    async def action_rollouts(self) -> None:
        peer = self.peers.chosen
        if peer is None:
            return
        await self.app.switch_mode("rollouts")
        screen = self.app.screen
        if isinstance(screen, Rollouts):
            screen.show_author(str(peer.get("peer_id", "")), printable(peer.get("name", ""))[:60])

    def action_copy(self) -> None:
        peer = self.peers.chosen
        text = self.get_selected_text() or ("" if peer is None else printable(peer.get("peer_id", "")))
        if text:
            self.app.copy_to_clipboard(text)
            self.notify(f"copied {text[:60]}", timeout=3, markup=False)

    @on(CursorList.Moved)
    def _show_details(self) -> None:
        peer = self.peers.chosen
        if peer is not None:
            now = float((self.sapo.state.status.get("swarm") or {}).get("time") or 0)
            # Border and padding at both sides, and perhaps a scroll bar.
            width = self.size.width - 5
            self.query_one("#about", Static).update(peer_text(peer, now, width))
