"""The texts of the dashboard: the progress of the round, whether the model learns, and the panels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from sapo_edge.control.event_words import describe_moment
from sapo_edge.plain import counted, duration, energy, printable, size
from sapo_edge.swarm.status import describe_search
from sapo_edge.tui.look.themes import CurveColors
from sapo_edge.tui.node.history import History
from sapo_edge.tui.node.machine import Load
from sapo_edge.tui.node.state import STEPS, NodeState, Standing
from sapo_edge.tui.widgets.bars import add_bar, add_tasks

if TYPE_CHECKING:
    from sapo_edge.care.power import Source
    from sapo_edge.control.report import TaskCourse

PHASES = {"generate": "answers", "update": "update", "evaluate": "held-out"}
"""Names of the phases."""
POWER_SOURCES: dict[Source, str] = {"battery": "whole machine", "processor": "processor", "estimate": "an estimate"}
"""What a number of watts is of."""
ENOUGH_ROUNDS = 5
"""Rounds before which nothing is said about learning."""
RECENT = 10
"""Most rounds over which the node counts the share of questions that teach."""
BAR = 6
"""Columns of the bar of own and external groups; a panel has 22 columns in a terminal of 80."""
MOST_ROWS = 5
"""Most reasons and peers that a panel lists."""
MOST_BAR, LEAST_BAR = 24, 4
"""Most columns of the bar of a phase; columns below which only the current phase has one."""


def now_text(state: NodeState, output: Sequence[str], width: int) -> Text:
    """What the node does, in one line; without a running node, why not. A starting one has output, newest line last."""
    match state.standing:
        case Standing.ATTACHED:
            return _progress_text(state, width)
        case Standing.STARTING:
            doing = printable(output[-1]) if output else "it loads"
            return Text("; ".join(filter(None, (f"Starting the node: {doing}", crowded_text(state.load)))))
        case Standing.LOOKING:
            return Text("The connection to the node is lost; looking for it ...")
        case _:
            style = "" if state.ending.expected else "bold red"
            then = "8 shows what was learned" if state.ending.done else "s starts it from the last checkpoint"
            return Text(f"No node runs: {state.ended_text}. {then}.", style)


def crowded_text(load: Load) -> str:
    """That other programs slow the node; "" if they don't."""
    if not load.is_crowded:
        return ""
    return f"other programs use {load.others:.1f} of {counted(load.of, 'core')}, so it takes longer"


def _progress_text(state: NodeState, width: int) -> Text:
    clock = state.clock
    if clock.phase == "head_start":
        return _head_start_text(state, width)
    evaluating = clock.phase == "evaluate"
    before_training = evaluating and not state.round
    number = state.round if evaluating else state.round + 1
    title = f"round {number}  "
    if before_training:
        # The untrained model is asked first, then the head start's.
        title = "head start  " if state.history.held_out else "before training  "
    steps = [step for step in STEPS if (step == "evaluate") == evaluating or (evaluating and not before_training)]
    counts = {step: f"{clock.done}/{clock.total}  " if clock.phase == step else "" for step in steps}
    tail = _time_left(state)
    words = sum(len(f"{PHASES[step]}  {counts[step]}") for step in steps)
    bar = (width - len(title) - words - len(tail)) // len(steps)
    if bar < LEAST_BAR:
        steps = [step for step in steps if step == clock.phase] or steps[:1]
        bar = (width - len(title) - len(f"{PHASES[steps[0]]}  {counts[steps[0]]}") - len(tail)) // len(steps)
    bar = max(0, min(MOST_BAR, bar))
    text = Text(no_wrap=True, overflow="ellipsis").append(title, style="bold")
    for step in steps:
        share = clock.share(step)
        style = "bold green" if clock.phase == step else "" if share else "dim"
        text.append(f"{PHASES[step]} ", style=style)
        add_bar(text, share, bar, "green")
        text.append(f" {counts[step]}")
    return text.append(tail, style="dim")


def _head_start_text(state: NodeState, width: int) -> Text:
    """The updates until the next validation of a head start, and what the last one gave."""
    clock, last = state.clock, state.head_start
    title, count = "head start  ", f" {clock.done}/{clock.total} updates  "
    tail = "" if last is None else f"held-out {last.accuracy:.2f} after {last.updates}"
    bar = max(0, min(MOST_BAR, width - len(title) - len(count) - len(tail)))
    text = Text(no_wrap=True, overflow="ellipsis").append(title, style="bold")
    add_bar(text, clock.done / max(1, clock.total), bar, "green")
    return text.append(count).append(tail, style="dim")


def _time_left(state: NodeState) -> str:
    seconds, rounds = state.clock.left(), state.rounds_to_evaluation
    parts = ["paused" if state.paused else "" if seconds is None else f"{duration(seconds)} left"]
    if rounds is not None and state.clock.phase != "evaluate":
        parts.append(f"held-out in {rounds}" if rounds > 1 else "then held-out")
    return ", ".join(filter(None, parts))


def is_it_working(history: History, status: Mapping[str, Any]) -> tuple[str, str]:
    """A mood, "good", "bad", "unsure" or "early", and one or two short sentences, from figures alone."""
    share = status.get("informative_share")
    informative = "" if share is None else f"{100 * share:.0f} % of questions teach"
    if status.get("role") == "generator":
        reward = status.get("reward_own")
        last_reward = "" if reward is None else f"; mean reward of the last round {reward:.2f}"
        return "early", f"a generator answers and shares, it does not learn{last_reward}"
    if len(history.held_out) < 2:
        if history.held_out and (begun := status.get("head_start")):
            before, now = history.held_out[0], float(begun["accuracy"])
            course = f"held-out {before.accuracy:.2f} → {now:.2f} in the head start"
            return "good" if now > before.high else "early", f"{course}, {counted(begun['updates'], 'update')}"
        return _without_evaluations(history, informative)
    first, last, best = history.held_out[0], history.held_out[-1], history.best
    assert best is not None
    rounds = ("a head start and " if status.get("head_start") else "") + counted(last.round - first.round, "round")
    course = f"held-out {first.accuracy:.2f} → {last.accuracy:.2f} in {rounds}"
    if last.low > first.high:
        mood = "good"
    elif last.high < first.low:
        mood, course = "bad", f"{course}: it got worse"
    else:
        mood, course = "unsure", f"{course}: too close to tell"
    if best.low > last.high:
        # Still better than at the start, or still open: that is no alarm.
        mood = "bad" if mood == "bad" else "unsure"
        course = f"{course}; it was {best.accuracy:.2f} after round {best.round}, which is kept"
    if share is not None and share < 0.05:
        informative = "hardly any question teaches: they are too hard or too easy"
    return mood, f"{course}; {informative}" if informative else course


def _without_evaluations(history: History, informative: str) -> tuple[str, str]:
    rounds = history.last_round
    parts = []
    if history.held_out:
        only = history.held_out[0]
        parts.append(f"held-out {only.accuracy:.2f} {describe_moment(only.round)}")
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


def batch_text(status: Mapping[str, Any], colors: CurveColors, lines: int) -> Text:
    """Own and external groups of the last update, how many teach something, and what was rejected.

    While fewer external rollouts are taken than the setting says, that is shown instead of the share of ten rounds.
    """
    own, external = status.get("own"), status.get("external")
    if own is None:
        return Text("no round is finished yet", style="dim")
    external = external or 0
    filled = round(BAR * own / (own + external)) if own + external else 0
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f"{own} own ")
    text.append("█" * filled, style=colors.own)
    text.append("▒" * (BAR - filled), style=colors.external)
    text.append(f" {external} others\n")
    groups = (status.get("last_round") or {}).get("groups") or 0
    text.append(f"{status.get('informative')} of {groups} teach\n")
    share = status.get("informative_share")
    if reduced := status.get("reduced"):
        text.append(f"{reduced['external']} of {reduced['setting']} external\n", style="yellow")
    else:
        rounds = counted(min(RECENT, int(status.get("round") or 0)), "round")
        text.append("\n" if share is None else f"{100 * share:.0f} % in {rounds}\n", style="dim")
    rejections = status.get("rejections") or {}
    if not rejections:
        return text.append("none rejected", style="dim")
    text.append(f"{sum(rejections.values())} rejected\n")
    ordered = sorted(rejections.items(), key=lambda item: (-item[1], item[0]))
    return _listed(text, [f"  {printable(reason)} {number}" for reason, number in ordered], "reason", lines - 4, "dim")


def peers_text(state: NodeState, lines: int) -> Text:
    status = state.status
    swarm, attached = status.get("swarm"), state.standing is Standing.ATTACHED
    if swarm is None:
        alone = "alone: nothing is sent to anybody. The setting network (7) changes that."
        return Text(alone if attached else "alone: nothing was sent to anybody.", style="dim")
    if attached and (search := swarm.get("search")):
        trouble = "can't look for others elsewhere: key 3 says why and what to do"
        course = trouble if search.get("trouble") else describe_search(search, swarm["time"], brief=lines <= MOST_ROWS)
        return Text(course, style="yellow")
    peers = swarm.get("peers") or ()
    waiting = (status.get("pool") or {}).get("rollouts", 0)
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f"{counted(len(peers), 'peer')}, {waiting} waiting\n" if attached else "not connected\n")
    text.append(f"{swarm.get('rollouts_out', 0)} sent, {swarm.get('rollouts_in', 0)} got\n")
    text.append(f"{size(swarm.get('bytes_out', 0))} / {size(swarm.get('bytes_in', 0))}\n", style="dim")
    if not attached:
        return text
    if not peers:
        return text.append("nobody yet: learning\nfrom own answers", style="yellow")
    ordered = sorted(peers, key=lambda peer: -int(peer.get("received") or 0))
    rows = [f"{printable(peer.get('name', ''))[:14]:14} {size(peer.get('received') or 0):>7}" for peer in ordered]
    return _listed(text, rows, "peer", lines - 3)


def _listed(text: Text, rows: Sequence[str], noun: str, lines: int, style: str = "") -> Text:
    """Append rows; if they need more lines than there are, the last line says how many are missing."""
    lines = min(max(1, lines), MOST_ROWS)
    if len(rows) <= lines:
        return text.append("\n".join(rows), style=style)
    text.append("".join(f"{row}\n" for row in rows[: lines - 1]), style=style)
    missing = len(rows) - lines + 1
    return text.append(f"  {f'and {missing} more' if lines > 1 else counted(missing, noun)}: key 3", style="dim")


def tasks_text(tasks: Sequence[TaskCourse], width: int) -> Text:
    """Right answers by task as bars, once there is something to compare."""
    if not tasks:
        return Text("Bars appear after the second evaluation: one before training, one after some rounds.", "dim")
    text = Text(no_wrap=True, overflow="ellipsis")
    add_tasks(text, tasks, width)
    return text


def machine_text(state: NodeState, lines: int) -> Text:
    """What learning takes, and the best checkpoint; with more rows than lines, the least important are left out."""
    status = state.status
    speed, memory, best = status.get("tokens_per_second"), status.get("memory") or {}, status.get("best")
    last = status.get("last_round") or {}
    attached = state.standing is Standing.ATTACHED
    rows = [
        *(() if speed is None else (f"{speed:.0f} tokens/s",)),
        _memory_text(memory) if attached else "no memory in use",
        *(_load_rows(state.load) if attached else ()),
        f"best {best['accuracy']:.2f}, {_when(best['round'])}" if best else "best: none yet",
    ]
    if last:
        rows.append(f"{last.get('seconds_generate', 0):.1f} s + {last.get('seconds_update', 0):.1f} s a round")
    watt_hours = 1000 * (state.load.kilowatt_hours or 0)
    if attached and watt_hours >= 0.05:
        rows.append(f"about {energy(watt_hours)} so far")
    rows.append(printable(status.get("backend", "")))
    return Text("\n".join(rows[:lines]), no_wrap=True, overflow="ellipsis")


def _when(checkpoint: int) -> str:
    return f"round {checkpoint}" if checkpoint else "before the rounds"


def _load_rows(load: Load) -> Iterator[str]:
    heat = "" if load.temperature is None else f"{load.temperature:.0f} °C"
    cores = "" if load.cores is None else f"{load.cores:.1f} of {counted(load.of, 'core')}"
    if cores or heat:
        yield ", ".join(filter(None, (cores, heat)))
    if load.is_crowded:
        yield f"others use {load.others:.1f} cores"
    if load.power is not None:
        yield f"{load.power.watts:.0f} W, {POWER_SOURCES[load.power.source]}"


def _memory_text(memory: Mapping[str, Any]) -> str:
    return f"{size(memory['rss'])}, peak {size(memory['peak'])}" if memory.get("rss") else "memory unknown"
