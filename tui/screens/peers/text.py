"""Texts about the swarm and its peers, safe to show whatever others call themselves."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from typing import Any

from textual.content import Content

from sapo_edge.plain import counted, duration, format_time, printable, reasons, size
from sapo_edge.swarm.status import describe_search
from sapo_edge.tui.node.launcher import SwarmCard
from sapo_edge.tui.node.state import NodeState, Standing

CLOCK_SECONDS = 60
"""Clock difference from which the screen warns."""
SCORE_CUT_OFF = -5.0
"""Score below which a node ignores a peer."""
MAX_REASONS = 6
"""Most reasons that are named on one line."""
MAX_CHARACTERS = 600
"""Most characters of one value that are shown."""
NAME_WIDTH = 10
"""Columns of the labels."""

ALONE = """\
This node works alone: it sends nothing to others, and receives nothing.

F finds open swarms of strangers. u joins one with an invite that somebody sent you. n creates one, private or open.\
"""
NOT_HERE = (
    "The running node is not in this swarm yet: who joins now finds nobody here. Restart it first (Esc, then r), and "
    "press i again."
)
NOBODY = "No other node is connected yet. Meanwhile, this node trains on its own questions."
HOW_TO_MEET = """\
On the same network: start sapo on another machine. The two find each other.

Elsewhere: i makes an invite here; in the app on the other machine, u uses it.

If a node should be here: sapo doctor checks port, multicast, bootstrap peers and clock, and says what to do.\
"""
_PORT = re.compile(r"/tcp/(\d{1,5})(?:/|$)")
_STATES = {
    "starting": ("◌", "$text-warning", "the swarm is starting"),
    "connected": ("●", "$text-success", "connected"),
    "alone": ("○", "$text-warning", "no peer yet"),
    "failed": ("✗", "$text-error", "the connection to the swarm failed and is starting again"),
    "closed": ("○", "$text-muted", "closed"),
}


def nothing_text(state: NodeState) -> str:
    """Why no peer is shown, and what to do."""
    if state.standing is not Standing.ATTACHED:
        return state.no_node_text("Peers appear here")
    swarm = state.status.get("swarm")
    if swarm is None:
        return ALONE
    first = f"{describe_search(search, swarm['time'])}." if (search := swarm.get("search")) else NOBODY
    return f"{first[:1].upper()}{first[1:]}\n\n{HOW_TO_MEET}"


def running_card(status: Mapping[str, Any]) -> SwarmCard:
    """The swarm that a running node takes part in."""
    swarm = status.get("swarm")
    if swarm is None:
        return SwarmCard()
    return SwarmCard(str(status.get("manifest", "")), bool(swarm.get("private")), str(swarm.get("swarm")))


def pending_text(running: SwarmCard, following: SwarmCard) -> str:
    """That a running node does not do yet what is set; "" if it does."""
    if running.id == following.id:
        return ""
    until = f"shares with the {card_text(running)}" if running.name else "works alone"
    return f"From the next start on: {card_text(following)}. Until then the node {until}; r restarts it."


def swarm_text(swarm: Mapping[str, Any], card: SwarmCard, pending: str = "") -> Content:
    """The state of the swarm: connection, what the next start changes (`pending_text`), address, traffic, problems."""
    mark, style, word = _STATES.get(str(swarm.get("state")), ("○", "", printable(swarm.get("state", ""))))
    ahead = float(swarm.get("clock_ahead") or 0)
    clock = f"{duration(abs(ahead))} {'behind' if ahead > 0 else 'ahead'}"
    parts = [
        f"{swarm.get('rollouts_in', 0)} rollouts in, {swarm.get('rollouts_out', 0)} out",
        f"{size(swarm.get('bytes_in') or 0)} in, {size(swarm.get('bytes_out') or 0)} out",
    ]
    if swarm.get("peers") and abs(ahead) < CLOCK_SECONDS:
        parts.append("clock agrees" if abs(ahead) < 1 else f"clock {clock}")
    named = f" to the {card_text(card)}" if card.name else ""
    lines = [
        Content.assemble((f"{mark} {word}", f"bold {style}"), f"{named}; {_reachable(swarm)}"),
        *([Content.styled(pending, "$text-warning")] if pending else []),
        _addresses(swarm),
        Content("  ·  ".join(parts)),
    ]
    if refused := reasons(swarm.get("rejections") or {}, MAX_REASONS):
        lines.append(Content.assemble(("refused  ", "dim"), refused))
    if text := advice(swarm):
        lines.append(Content.styled(text, "$text-muted"))
    if paused := swarm.get("paused"):
        warning = f"waiting, because of a limit in the settings: {printable(', '.join(map(str, paused)))}"
        lines.append(Content.styled(warning, "$text-warning"))
    if abs(ahead) >= CLOCK_SECONDS:
        warning = f"this machine's clock is {clock}: set it, or others reject this node's rollouts"
        lines.append(Content.styled(warning, "$text-warning"))
    if faults := reasons(swarm.get("faults") or {}, MAX_REASONS):
        restarts = counted(int(swarm.get("restarts") or 0), "restart")
        lines.append(Content.styled(f"faults  {faults}; {restarts}", "$text-warning"))
    return Content("\n").join(lines)


def peer_text(peer: Mapping[str, Any], now: float, width: int) -> Content:
    """Everything about one peer of a status, which is of `now`, in Unix seconds."""
    since, score = float(peer.get("since") or 0), float(peer.get("score") or 0)
    opened = {"in": "by the peer", "out": "by this node"}.get(str(peer.get("direction")), "unknown")
    mesh = "at once, as soon as one of both has them" if peer.get("mesh") else "when one of both asks for them"
    member = "" if peer.get("subscribed") else "; not a member of this swarm"
    rows = [
        ("peer id", peer.get("peer_id", ""), "bold"),
        ("address", peer.get("address") or "unknown", ""),
        ("opened", f"{opened}, {format_time(since)}, {duration(max(0.0, now - since))} ago", ""),
        ("bytes", f"{size(peer.get('received') or 0)} from it, {size(peer.get('sent') or 0)} to it", ""),
        ("arrive", mesh + member, ""),
        ("refused", reasons(peer.get("rejected") or {}) or "nothing", ""),
        ("trust", _score(score), "$text-error" if score < SCORE_CUT_OFF else ""),
    ]
    lines: list[Content] = []
    for name, value, style in rows:
        wrapped = textwrap.wrap(printable(value)[:MAX_CHARACTERS], max(10, width - NAME_WIDTH), break_on_hyphens=False)
        lines += (
            Content.assemble((f"{'' if number else name:{NAME_WIDTH}}", "dim"), (text, style))
            for number, text in enumerate(wrapped)
        )
    return Content("\n").join(lines)


def _score(score: float) -> str:
    if score < SCORE_CUT_OFF:
        return f"{score:.1f}: below {SCORE_CUT_OFF:.0f}, so this node ignores the peer"
    return f"{score:.1f}, " + ("below 0: some of what it sent was invalid" if score < 0 else "no complaints")


def _reachable(swarm: Mapping[str, Any]) -> str:
    match swarm.get("reachable"):
        case None:
            return "not known yet whether others can connect to you"
        case True:
            return "others can connect to you"
        case _ if any("/p2p-circuit" in str(address) for address in swarm.get("addresses") or ()):
            return "others connect to you through a relay"
        case _:
            return "you connect to others, they can't connect to you"


def card_text(card: SwarmCard) -> str:
    if not card.name:
        return "works alone"
    return f"{'private' if card.private else 'open'} swarm {printable(card.name)[:40]}"


def advice(swarm: Mapping[str, Any]) -> str:
    """What the owner can do about a machine that others can't connect to; "" if nothing is needed."""
    if swarm.get("reachable") is not False:
        return ""
    port = next((match[1] for address in swarm.get("addresses") or () if (match := _PORT.search(str(address)))), "")
    router = "your router forwards no port when asked" if swarm.get("router") == "silent" else "taking part works"
    forward = f"forward TCP port {port} to this machine in the router" if port else "forward its TCP port in the router"
    return f"{router}; to be reachable from other networks, {forward}"


def _addresses(swarm: Mapping[str, Any]) -> Content:
    addresses = swarm.get("addresses") or ()
    if not addresses:
        return Content.styled("no address where others can reach it", "dim")
    more = f"  and {len(addresses) - 1} more" if len(addresses) > 1 else ""
    # All of them end with the node's own id.
    first = printable(str(addresses[0]).removesuffix(f"/p2p/{swarm.get('peer_id')}"))
    return Content.assemble(("at  ", "dim"), first, (more, "dim"))
