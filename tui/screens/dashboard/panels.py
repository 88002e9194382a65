"""The texts of the dashboard's panels, from a node's status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.text import Text

from sapo_edge.plain import counted, printable, size

BAR = 6
"""Columns of the bar of own and external groups; a panel has 22 columns in a terminal of 80."""
OWN, EXTERNAL, HELD_OUT = "#5fd38d", "#6cb6ff", "#f2b36f"
"""Colours of the curves and of what belongs to them; a mark or a word says the same where there are no colours."""


def batch_text(status: Mapping[str, Any]) -> Text:
    """Where the groups of the last update came from, how many teach, and what was refused."""
    own, external = status.get("own"), status.get("external")
    if own is None:
        return Text("no round is finished yet", style="dim")
    external = external or 0
    filled = round(BAR * own / (own + external)) if own + external else 0
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f"{own} own ")
    text.append("█" * filled, style=OWN)
    text.append("▒" * (BAR - filled), style=EXTERNAL)
    text.append(f" {external} others\n")
    groups = (status.get("last_round") or {}).get("groups") or 0
    text.append(f"{status.get('informative')} of {groups} groups teach\n")
    share = status.get("informative_share")
    text.append("\n" if share is None else f"{100 * share:.0f} % in 10 rounds\n", style="dim")
    rejections = status.get("rejections") or {}
    if not rejections:
        text.append("nothing was refused", style="dim")
        return text
    text.append(f"refused {sum(rejections.values())}\n")
    for reason, number in sorted(rejections.items(), key=lambda item: (-item[1], item[0]))[:4]:
        text.append(f"  {printable(reason)} {number}\n", style="dim")
    return text


def peers_text(status: Mapping[str, Any]) -> Text:
    """Who is connected and what came of them."""
    swarm = status.get("swarm")
    if swarm is None:
        return Text("alone: nothing is sent to anybody. The setting network (7) changes that.", style="dim")
    peers = swarm.get("peers") or ()
    waiting = (status.get("pool") or {}).get("rollouts", 0)
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f"{counted(len(peers), 'peer')}, {waiting} waiting\n")
    text.append(f"{swarm.get('rollouts_out', 0)} sent, {swarm.get('rollouts_in', 0)} got\n")
    text.append(f"{size(swarm.get('bytes_out', 0))} / {size(swarm.get('bytes_in', 0))}\n", style="dim")
    if not peers:
        return text.append("nobody yet: own\nquestions stand in", style="yellow")
    for peer in sorted(peers, key=lambda peer: -int(peer.get("received") or 0))[:4]:
        text.append(f"{printable(peer.get('name', ''))[:14]:14} {size(float(peer.get('received') or 0)):>7}\n")
    return text


def machine_text(status: Mapping[str, Any]) -> Text:
    """Speed, memory, best checkpoint."""
    speed, memory, best = status.get("tokens_per_second"), status.get("memory") or {}, status.get("best")
    last = status.get("last_round") or {}
    lines = [
        "no speed yet" if speed is None else f"{speed:.0f} tokens/s",
        f"{size(memory['rss'])}, peak {size(memory['peak'])}" if memory.get("rss") else "memory unknown",
        f"best {best['accuracy']:.2f}, round {best['round']}" if best else "best: none yet",
    ]
    if last:
        lines.append(f"{last.get('seconds_generate', 0):.1f} s + {last.get('seconds_update', 0):.1f} s a round")
    lines.append(printable(status.get("backend", "")))
    return Text("\n".join(lines), no_wrap=True, overflow="ellipsis")
