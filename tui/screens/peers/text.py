"""Texts of the swarm and its peers, harmless whatever others call themselves."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from textual.content import Content

from sapo_edge.plain import counted, duration, printable, reasons, size
from sapo_edge.tui.node.state import NodeState, Standing
from sapo_edge.tui.screens.rollouts.text import moment

CLOCK_SECONDS = 60
"""Difference of clocks that is worth a warning."""
SCORE_CUT_OFF = -5.0
"""Score below which a node reads nothing of a peer any more."""
MAX_REASONS = 6
"""Reasons that are named on one line."""
MAX_TOLD = 600
"""Most characters that are shown of one thing that others said."""
NAME_WIDTH = 10
"""Columns of the names at the left."""

ALONE = """\
This node works alone: nothing is sent to anybody, and nothing comes.

To learn with others, set network to swarm in Settings (7), or take an invite with

    sapo swarm join LINE

then stop the node (s), and start it again (s).\
"""
NOBODY = """\
Nobody is here yet. The node goes on with questions of its own meanwhile.

On this network: start sapo on another machine. The two find each other by themselves.

Elsewhere: run sapo swarm invite here; the line that it prints goes into sapo swarm join on the other machine.

Somebody should be here? sapo doctor checks port, multicast, bootstrap peers and clock, and says what to do.\
"""
_STATES = {
    "starting": ("◌", "$text-warning", "the swarm is starting"),
    "connected": ("●", "$text-success", "connected"),
    "alone": ("○", "$text-warning", "no peer yet"),
    "failed": ("✗", "$text-error", "the connection to the swarm fell, and starts again"),
    "closed": ("○", "$text-muted", "closed"),
}


def nothing_text(state: NodeState, why: str) -> str:
    """Why no peer is shown, and what to do about it.

    Args:
        state: of the node.
        why: no node runs, in words; empty while one does.
    """
    if state.standing is Standing.ENDED:
        return f"No node runs: {printable(why)}\n\nPress s to start one."
    if state.standing is not Standing.ATTACHED:
        return "Peers appear here as soon as the node runs."
    return ALONE if state.status.get("swarm") is None else NOBODY


def swarm_text(swarm: Mapping[str, Any]) -> Content:
    """The swarm's own state: how it stands, where it is reached, what went over it, what is wrong."""
    mark, style, word = _STATES.get(str(swarm.get("state")), ("○", "", printable(swarm.get("state", ""))))
    ahead = float(swarm.get("clock_ahead") or 0)
    clock = f"{duration(abs(ahead))} {'behind' if ahead > 0 else 'ahead'}"
    parts = [
        f"{swarm.get('rollouts_in', 0)} rollouts in, {swarm.get('rollouts_out', 0)} out",
        f"{size(swarm.get('bytes_in') or 0)} in, {size(swarm.get('bytes_out') or 0)} out",
    ]
    if swarm.get("peers") and abs(ahead) < CLOCK_SECONDS:
        parts.append("clock agrees" if abs(ahead) < 1 else f"clock {clock}")
    lines = [
        Content.assemble((f"{mark} {word}", f"bold {style}"), f", {_reachable(swarm)}"),
        _addresses(swarm),
        Content("  ·  ".join(parts)),
    ]
    if refused := _most(swarm.get("rejections")):
        lines.append(Content.assemble(("refused  ", "dim"), refused))
    if held := swarm.get("paused"):
        told = f"held back by a cap in the settings: {printable(', '.join(map(str, held)))}"
        lines.append(Content.styled(told, "$text-warning"))
    if abs(ahead) >= CLOCK_SECONDS:
        told = f"the clock is {clock}: set it right, or others refuse what it says"
        lines.append(Content.styled(told, "$text-warning"))
    if faults := _most(swarm.get("faults")):
        restarts = counted(int(swarm.get("restarts") or 0), "restart")
        lines.append(Content.styled(f"faults  {faults}; {restarts}", "$text-warning"))
    return Content("\n").join(lines)


def peer_text(peer: Mapping[str, Any], now: float, width: int) -> Content:
    """Everything about one peer.

    Args:
        peer: as the node tells it.
        now: Unix seconds of what is told.
        width: columns.
    """
    since, score = float(peer.get("since") or 0), float(peer.get("score") or 0)
    opened = {"in": "by the peer", "out": "by this node"}.get(str(peer.get("direction")), "by whom is not known")
    mesh = "in the mesh: rollouts flow without being asked for" if peer.get("mesh") else "not in the mesh"
    member = "" if peer.get("subscribed") else "; takes no part in this swarm"
    rows = [
        ("peer id", peer.get("peer_id", ""), "bold"),
        ("address", peer.get("address") or "unknown", ""),
        ("opened", f"{opened}, {moment(since)}, {duration(max(0.0, now - since))} ago", ""),
        ("bytes", f"{size(peer.get('received') or 0)} from it, {size(peer.get('sent') or 0)} to it", ""),
        ("messages", mesh + member, ""),
        ("refused", reasons(peer.get("rejected") or {}) or "nothing", ""),
        ("score", _score(score), "$text-error" if score < SCORE_CUT_OFF else ""),
    ]
    lines: list[Content] = []
    for name, told, style in rows:
        wrapped = textwrap.wrap(printable(told)[:MAX_TOLD], max(10, width - NAME_WIDTH), break_on_hyphens=False)
        lines += (
            Content.assemble((f"{'' if number else name:{NAME_WIDTH}}", "dim"), (text, style))
            for number, text in enumerate(wrapped)
        )
    return Content("\n").join(lines)


def _score(score: float) -> str:
    if score < SCORE_CUT_OFF:
        return f"{score:.1f}: below {SCORE_CUT_OFF:.0f}, so nothing of it is read any more"
    return f"{score:.1f}, " + (
        "below 0: some of what it sent was invalid" if score < 0 else "nothing speaks against it"
    )


def _reachable(swarm: Mapping[str, Any]) -> str:
    match swarm.get("reachable"):
        case None:
            return "nobody has tried yet to reach it from another network"
        case True:
            return "reachable from other networks"
        case _:
            return "other networks can't dial it; it dials them"


def _addresses(swarm: Mapping[str, Any]) -> Content:
    found = swarm.get("addresses") or ()
    if not found:
        return Content.styled("no address at which others could dial it", "dim")
    more = f"  and {len(found) - 1} more" if len(found) > 1 else ""
    # All of them end with the node's own id.
    first = printable(str(found[0]).removesuffix(f"/p2p/{swarm.get('peer_id')}"))
    return Content.assemble(("at  ", "dim"), first, (more, "dim"))


def _most(counts: Mapping[str, int] | None) -> str:
    ordered = sorted((counts or {}).items(), key=lambda item: (-item[1], item[0]))
    told = ", ".join(f"{printable(name)[:40]} {number}" for name, number in ordered[:MAX_REASONS] if number)
    return f"{told} and {len(ordered) - MAX_REASONS} more reasons" if len(ordered) > MAX_REASONS else told
