"""The texts of the dashboard: the progress of the round, whether the model learns, and the panels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rich.text import Text

from sapo_edge.plain import counted, duration, printable, size
from sapo_edge.tui.node.clock import STEPS
from sapo_edge.tui.node.history import History
from sapo_edge.tui.node.state import NodeState

PHASES = {"generate": "answers", "update": "update", "evaluate": "held-out"}
"""Names of the phases."""
ENOUGH_ROUNDS = 5
"""Rounds before which nothing is said about learning."""
BAR = 6
"""Columns of the bar of own and external groups; a panel has 22 columns in a terminal of 80."""
OWN, EXTERNAL, HELD_OUT = "#5fd38d", "#6cb6ff", "#f2b36f"
"""Colours of the curves and of what belongs to them; a mark or a word says the same without colours."""


def progress_text(state: NodeState, width: int) -> Text:
    """The progress of the round in one line of `width` columns."""
    clock = state.clock
    text = Text(no_wrap=True, overflow="ellipsis")
    evaluating = clock.phase == "evaluate"
    before_training = evaluating and not state.round
    number = state.round if evaluating else state.round + 1
    text.append("before training  " if before_training else f"round {number}  ", style="bold")
    bar = max(4, min(24, (width - 58) // 2))
    for step in STEPS:
        if (step == "evaluate") != evaluating and (before_training or not evaluating):
            continue
        share = clock.share(step)
        style = "bold green" if clock.phase == step else "" if share else "dim"
        text.append(f"{PHASES[step]} ", style=style)
        filled = round(share * bar)
        text.append("━" * filled, style="green")
        text.append("─" * (bar - filled), style="dim")
        text.append(f" {clock.done}/{clock.total} " if clock.phase == step else "  ")
    seconds = clock.left()
    text.append("paused" if state.paused else "" if seconds is None else f"{duration(seconds)} left", style="dim")
    next_evaluation = _next_evaluation(state)
    if next_evaluation and text.cell_len + len(next_evaluation) + 2 <= width:
        text.append(f", {next_evaluation}", style="dim")
    return text


def _next_evaluation(state: NodeState) -> str:
    every = int(state.settings.get("evaluate_every") or 0)
    if not every or state.clock.phase == "evaluate":
        return ""
    rounds = every - state.round % every
    return f"held-out in {rounds}" if rounds > 1 else "then held-out"


def is_it_working(history: History, status: Mapping[str, Any]) -> tuple[str, str]:
    """Say whether the model learns, from figures alone.

    Returns:
        A mood ("good", "bad", "unsure" or "early") and one or two short sentences.
    """
    share = status.get("informative_share")
    informative = "" if share is None else f"{100 * share:.0f} % of groups informative"
    if status.get("role") == "generator":
        reward = status.get("reward_own")
        last_reward = "" if reward is None else f"; mean reward of the last round {reward:.2f}"
        return "early", f"a generator answers and shares, it does not learn{last_reward}"
    if len(history.held_out) < 2:
        return _without_evaluations(history, informative)
    first, last, best = history.held_out[0], history.held_out[-1], history.best
    assert best is not None
    rounds = counted(last.round - first.round, "round")
    course = f"held-out {first.accuracy:.2f} → {last.accuracy:.2f} in {rounds}"
    if last.low > first.high:
        mood = "good"
    elif last.high < first.low:
        mood, course = "bad", f"{course}: it got worse"
    else:
        mood, course = "unsure", f"{course}: too close to tell"
    if best.low > last.high:
        mood, course = "bad", f"{course}; it was {best.accuracy:.2f} after round {best.round}, which is kept"
    if share is not None and share < 0.05:
        informative = "hardly any group is informative: little is learned now"
    return mood, f"{course}; {informative}" if informative else course


def _without_evaluations(history: History, informative: str) -> tuple[str, str]:
    """The verdict with fewer than two evaluations."""
    rounds = history.last_round
    parts = []
    if history.held_out:
        only = history.held_out[0]
        parts.append(f"held-out {only.accuracy:.2f} {f'after round {only.round}' if only.round else 'before training'}")
    if rounds < ENOUGH_ROUNDS:
        return "early", "; ".join([*parts, f"too early to tell after {counted(rounds, 'round')}"])
    own = history.curves.own
    width = max(1, len(own) // 4)
    parts.append(f"own reward {_mean(own[:width]):.2f} → {_mean(own[-width:]):.2f} in {counted(rounds, 'round')}")
    parts.append("no held-out evaluation to judge by yet")
    return "unsure", "; ".join([*parts, informative] if informative else parts)


def _mean(values: list[float]) -> float:
    numbers = [value for value in values if not math.isnan(value)]
    return sum(numbers) / len(numbers) if numbers else math.nan


def batch_text(status: Mapping[str, Any]) -> Text:
    """Own and external groups of the last update, how many were informative, and what was rejected."""
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
    text.append(f"{status.get('informative')}/{groups} informative\n")
    share = status.get("informative_share")
    text.append("\n" if share is None else f"{100 * share:.0f} % in 10 rounds\n", style="dim")
    rejections = status.get("rejections") or {}
    if not rejections:
        text.append("none rejected", style="dim")
        return text
    text.append(f"{sum(rejections.values())} rejected\n")
    for reason, number in sorted(rejections.items(), key=lambda item: (-item[1], item[0]))[:4]:
        text.append(f"  {printable(reason)} {number}\n", style="dim")
    return text


def peers_text(status: Mapping[str, Any]) -> Text:
    """Connected peers, and the rollouts and bytes exchanged."""
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
        return text.append("nobody yet: learning\nfrom own answers", style="yellow")
    for peer in sorted(peers, key=lambda peer: -int(peer.get("received") or 0))[:4]:
        text.append(f"{printable(peer.get('name', ''))[:14]:14} {size(float(peer.get('received') or 0)):>7}\n")
    return text


def machine_text(status: Mapping[str, Any]) -> Text:
    """Speed, memory, best checkpoint, seconds of a round."""
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
