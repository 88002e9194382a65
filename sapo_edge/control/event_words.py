"""Events in words, one sentence each: what `sapo run`, `sapo logs` and the terminal app's log print."""

from __future__ import annotations

import math
from collections.abc import Mapping

from sapo_edge import events
from sapo_edge.events import FORMED, WRONG
from sapo_edge.plain import counted

FEW = 20
"""Questions below which a gain has no figure: one question more or less would move it by more than 5 points of 100."""
TOO_FEW = f"too few questions to say by how much: hold out {FEW} or more"
PHASES: Mapping[str, str] = {
    "load": "loading",
    "head_start": "learning right answers",
    "generate": "answering",
    "update": "learning",
    "evaluate": "held-out questions",
}
"""The steps of a round by `events.Phase`."""


def describe_event(event: events.Event) -> str:
    """An event in one sentence. It may hold text of others: pass it through `plain.printable` before it is shown."""
    match event:
        case events.NodeStarted():
            return f"started: {event.model}; {describe_start(event.round)}"
        case events.Progress():
            return f"{PHASES[event.phase]}: {event.done} of {event.total} {event.unit}"
        case events.RoundFinished():
            return f"round {event.round}: {', '.join(round_figures(event))}"
        case events.HeldOut():
            return describe_held_out(event)
        case events.Comparison():
            return describe_comparison(event)
        case events.HeadStart():
            return describe_head_start(event)
        case events.CheckpointSaved():
            return f"checkpoint of round {event.round} saved" + (", the best so far" if event.best else "")
        case events.RolledBack():
            return f"returned from round {event.from_round} to the checkpoint of round {event.to_round}"
        case events.Notice():
            return event.text
        case events.Paused():
            return f"paused: {', '.join(event.reasons)}" if event.reasons else "resumed"
        case events.NodeStopped():
            return f"stopped: {event.reason}; {counted(event.rounds, 'round')} finished"
        case _:
            return event.event


def describe_start(last_round: int) -> str:
    """Where a run starts, by the last round that is finished; 0 if none is."""
    return f"continuing after round {last_round}" if last_round else "a fresh start"


def describe_held_out(event: events.HeldOut, base: events.HeldOut | None = None) -> str:
    """A held-out evaluation with its 95 % interval, compared with an earlier one unless that asked other questions."""
    name = f"held-out {event.split}".strip()
    change = ""
    if base is not None and base.round != event.round and base.asked == event.asked:
        change = f"{format_share(base.accuracy)} -> "
    interval = f"95 % {format_share(event.low)} to {format_share(event.high)}"
    figures = f"{change}{format_share(event.accuracy)} ({event.correct} of {event.questions}, {interval})"
    return f"{name} {describe_moment(event.round)}: {figures}"


def describe_head_start(event: events.HeadStart, base: events.HeldOut | None = None) -> str:
    """How far a head start is by its newest validation, compared with the evaluation before it on as many questions."""
    change = f"{format_share(base.accuracy)} -> " if base is not None and base.questions == event.questions else ""
    updates = event.best_updates if event.done else event.updates
    text = (
        f"head start, {counted(updates, 'update')}: held-out validation {change}{format_share(event.accuracy)} "
        f"({event.correct} of {event.questions})"
    )
    if not event.done:
        return text
    if event.best_updates < event.updates:
        text += f"; {event.updates - event.best_updates} more brought no rise"
    return f"{text}; the rounds begin"


def describe_moment(round: int) -> str:
    """When an evaluation was made."""
    return f"after round {round}" if round else "before training"


def describe_place(round: int) -> str:
    """Where an adapter comes from."""
    return f"round {round}" if round else "the head start"


def describe_comparison(event: events.Comparison) -> str:
    """Base model and adapter on the test questions: content, then form."""
    base, adapter = event.base / event.questions, event.adapter / event.questions
    shown = f" (shown {event.base_examples} more worked examples)" if event.base_examples else ""
    parts = [
        f"held-out test: base {format_share(base)}{shown}, adapter of {describe_place(event.round)} "
        f"{format_share(adapter)} ({event.questions} questions)",
        format_gain(event.gain, event.low, event.high, event.questions),
    ]
    if event.base_answers:
        pairs = list(zip(event.base_answers, event.adapter_answers, strict=True))
        gained = sum(before == WRONG != now for before, now in pairs)
        lost = sum(now == WRONG != before for before, now in pairs)
        parts.append(f"{gained} became right, {lost} became wrong")
        formed = (event.base_answers.count(FORMED), event.adapter_answers.count(FORMED))
        parts.append(describe_form(*formed, event.questions))
    return "; ".join(parts)


def describe_form(base: int, adapter: int, questions: int) -> str:
    """How many answers are right in the form that the manifest asks for, which is no part of the gain."""
    return f"right in the form asked for: {base} -> {adapter} of {questions}"


def describe_too_long(too_long: int, questions: int) -> str:
    """What became of held-out questions that the model's context has no room for."""
    are = "is" if too_long == 1 else "are"
    return (
        f"{too_long} of {counted(questions, 'question')} {are} too long for the model, with an answer: counted as wrong"
    )


def format_gain(gain: float, low: float, high: float, questions: int) -> str:
    """A gain in accuracy with its 95 % interval; no figure of fewer than `FEW` questions."""
    if questions < FEW:
        return TOO_FEW
    return f"gain {gain:+z.2f} (95 % {low:+z.2f} to {high:+z.2f})"


def round_figures(event: events.RoundFinished) -> list[str]:
    """The figures of a round: rewards, informative groups, seconds."""
    figures = [f"reward {format_share(event.reward_own)}"]
    if event.reward_external is not None:
        figures.append(f"others {format_share(event.reward_external)}")
    if event.groups:
        figures.append(f"informative {event.informative}/{event.groups}")
    else:
        # A generator trains on nothing.
        figures.append(f"{counted(event.own, 'question')} answered")
    figures.append(f"{event.seconds_generate + event.seconds_update:.1f} s")
    return figures


def format_share(value: float) -> str:
    """A reward or an accuracy with two digits; "unknown" if it is not finite."""
    return f"{value:.2f}" if math.isfinite(value) else "unknown"
