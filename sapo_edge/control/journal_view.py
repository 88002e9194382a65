"""Reads the journal for clients of the control socket: past events, the whole run in points, and pages of rollouts.

Each call of `JournalReader` opens its own read-only connection, so the node's writer never waits for it.
"""

from __future__ import annotations

import json
import math
import sqlite3
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, TypeVar

from sapo_edge.events import Event, HeadStart, RoundFinished, from_json
from sapo_edge.state.journal import (
    LAST_EVENT,
    Journal,
    JournaledRollout,
    reading,
    rollout_from_row,
)
from sapo_edge.swarm.joining.identity import readable_name

Kind = TypeVar("Kind", bound=Event)
Origin = Literal["any", "own", "external"]
"""Of this node, of other nodes, or either."""
QUESTION_CHARACTERS = 200
"""Most characters of a question in a list."""
MAX_TEXT_BYTES = 768 * 1024
"""Most bytes of JSON for the answers of one rollout; longer ones are cut, each to its share."""
SCAN_SECONDS = 0.25
"""Longest search of one call, seconds; the next call continues it."""

_FIGURES = """
SELECT max(round), time, avg(json_extract(event, '$.reward_own')), avg(json_extract(event, '$.reward_external')),
    avg(json_extract(event, '$.informative') * 1.0 / nullif(json_extract(event, '$.groups'), 0)),
    avg(json_extract(event, '$.tokens') / nullif(json_extract(event, '$.seconds_generate'), 0))
FROM rounds WHERE round BETWEEN ? AND ?
"""
COMPARABLE = """
FROM held_out WHERE (split, questions, question_set) =
    (SELECT split, questions, question_set FROM held_out ORDER BY round DESC, time DESC LIMIT 1)
"""
"""The evaluations on the questions of the last one: the end of a query."""
_HELD_OUT = f"""
SELECT round, accuracy, low, high, questions, split, question_set
FROM (SELECT *, row_number() OVER (ORDER BY round) AS number FROM (SELECT * {COMPARABLE}))
WHERE (number - 1) % :step = 0 OR number = :count
    OR round = (SELECT round {COMPARABLE} ORDER BY accuracy DESC, round LIMIT 1)
ORDER BY round
"""
_ROLLOUTS = """
SELECT round, position, entry, question, answers, rewards, advantages, author, time, own
FROM rollouts WHERE (round, position) < (?, ?) {} ORDER BY round DESC, position DESC
"""
# Others' rollouts with a right answer, of a task at which every own answer of that round failed.
_GAVE = """
AND own = 0 AND EXISTS (SELECT 1 FROM json_each(rewards) WHERE value >= 1)
AND EXISTS (
    SELECT 1 FROM rollouts AS mine
    WHERE mine.round = rollouts.round AND mine.own AND mine.entry = rollouts.entry
)
AND NOT EXISTS (
    SELECT 1 FROM rollouts AS mine, json_each(mine.rewards)
    WHERE mine.round = rollouts.round AND mine.own AND mine.entry = rollouts.entry AND value >= 1
)
"""
_AHEAD = "SELECT event FROM events WHERE json_extract(event, '$.event') = ? ORDER BY id DESC LIMIT ?"
_EVALUATED = ("round", "accuracy", "low", "high", "questions", "split", "question_set")
_ROUNDS = """
SELECT event, accuracy, questions, question_set
FROM rounds LEFT JOIN held_out ON held_out.round = rounds.round AND split = 'validation'
ORDER BY rounds.round
"""
_LAST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class RolloutQuery:
    """Which rollouts to return.

    Attributes:
        before: round and position; only older rollouts are returned. None: begin with the newest.
        author: peer id; None for any.
        informative: whether they teach: an answer has an advantage; None for either.
        search: text in the question or an answer, ignoring case; "" for any.
        entry: name of a manifest's entry; None for any.
        gave: only those of others with a right answer, of a task at which every own answer of that round failed.
    """

    limit: int = 20
    before: tuple[int, int] | None = None
    origin: Origin = "any"
    author: str | None = None
    informative: bool | None = None
    search: str = ""
    entry: str | None = None
    gave: bool = False


def _shortened(question: str) -> str:
    """A question without its middle if it is long: questions of one task often differ at their end alone."""
    half = QUESTION_CHARACTERS // 2
    return question if len(question) <= QUESTION_CHARACTERS else f"{question[: half - 1]}…{question[-half:]}"


def past_events(journal: Journal, count: int) -> list[Event]:
    """The last events of a journal but `progress`, oldest first."""
    past: list[tuple[bool, Event]] = []
    now = time.time()
    for events in (journal.rounds(count), journal.held_out(count), journal.events(count)):
        # What is ahead of the clock was made before that was set back, as was what stands before it.
        ahead = [*accumulate((event.time > now for event in reversed(events)), max)][::-1]
        past += zip(ahead, events, strict=True)
    return [event for _, event in sorted(past, key=lambda pair: (not pair[0], pair[1].time))][-count:]


class JournalReader:
    """Reads a journal that this or another process writes; it must exist at the first call. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def history(self, points: int, rounds: tuple[int, int] | None = None) -> dict[str, Any]:
        """A run as means over buckets of consecutive rounds: the result of the control method `history`.

        Args:
            points: most buckets, and most held-out evaluations; at least 3.
            rounds: the first and the last round of the buckets; None for all. Evaluations are those of the whole run.
        """
        with reading(self._path) as connection:
            between = rounds or (0, _LAST)
            query = "SELECT min(round), max(round) FROM rounds WHERE round BETWEEN ? AND ?"
            first, last = connection.execute(query, between).fetchone()
            bucket = 1
            columns: list[Sequence[Any]] = [()] * 6
            ahead: list[HeadStart] = []
            if first is None:
                read = (from_json(row[0]) for row in connection.execute(_AHEAD, (HeadStart.event, points)))
                ahead = [event for event in read if isinstance(event, HeadStart) and event.is_validation][::-1]
            else:
                bucket = -(-(last - first + 1) // points)
                buckets = (
                    connection.execute(_FIGURES, (start, start + bucket - 1)).fetchone()
                    for start in range(first, last + 1, bucket)
                )
                # The maximum round of an empty bucket is NULL.
                columns = list(zip(*(row for row in buckets if row[0] is not None), strict=True))
            count = connection.execute(f"SELECT count(*) {COMPARABLE}").fetchone()[0]
            step = max(1, -(-count // (points - 2)))
            held_out = connection.execute(_HELD_OUT, {"step": step, "count": count}).fetchall()
        names = ("round", "time", "reward_own", "reward_external", "informative", "tokens_per_second")
        return {
            "bucket": bucket,
            **{name: list(column) for name, column in zip(names, columns, strict=True)},
            "held_out": {name: [row[index] for row in held_out] for index, name in enumerate(_EVALUATED)},
            "head_start": {name: [getattr(event, name) for event in ahead] for name in ("updates", "accuracy")},
        }

    def rounds(self) -> Iterator[tuple[RoundFinished, tuple[float, int, str] | None]]:
        """Every round, oldest first, with accuracy, number and mark of the validation questions if it was evaluated."""
        with reading(self._path) as connection:
            for text, *evaluation in connection.execute(_ROUNDS):
                event = from_json(text)
                if isinstance(event, RoundFinished):
                    accuracy, questions, question_set = evaluation
                    yield event, None if accuracy is None else (accuracy, questions, question_set)

    def rollouts(self, query: RolloutQuery) -> tuple[list[dict[str, Any]], tuple[int, int] | None]:
        """A page of rollouts, newest first.

        Returns:
            The rollouts, as sent on the control socket, and the `before` of the next page (None at the end). A long
            search may return fewer than `query.limit`, even none, with more to come.
        """
        until = time.monotonic() + SCAN_SECONDS
        select = _ROLLOUTS.format(_GAVE if query.gave else "")
        page: list[dict[str, Any]] = []
        last: tuple[int, int] | None = None
        with reading(self._path) as connection:
            for row in connection.execute(select, query.before or (_LAST, _LAST)):
                if last is not None and (len(page) >= query.limit or time.monotonic() >= until):
                    return page, last
                last = row[:2]
                if (summary := _matching(row, query)) is not None:
                    page.append(summary)
        return page, None

    def rollout(self, round: int, position: int) -> JournaledRollout | None:
        """One rollout with all its answers; None if it is not kept (any more)."""
        with reading(self._path) as connection:
            query = "SELECT * FROM rollouts WHERE round = ? AND position = ?"
            row = connection.execute(query, (round, position)).fetchone()
            return None if row is None else rollout_from_row(row)


def last_event(
    connection: sqlite3.Connection, kind: type[Kind], query: str = LAST_EVENT, *arguments: int
) -> Kind | None:
    """The last event of a kind, or what a query for it finds with these arguments; None without one."""
    row = connection.execute(query, (kind.event, *arguments)).fetchone()
    event = None if row is None else from_json(row[0])
    return event if isinstance(event, kind) else None


def in_full(round: int, position: int, scored: JournaledRollout) -> dict[str, Any]:
    """One rollout with all its answers, as sent on the control socket."""
    rollout = scored.rollout
    # A peer's text may consist of control characters, each of which takes six bytes of JSON.
    fits = sum(len(json.dumps(answer.text)) for answer in rollout.answers) <= MAX_TEXT_BYTES
    limit = MAX_TEXT_BYTES // 6 // len(rollout.answers)
    answers = [
        {
            "text": answer.text if fits else answer.text[:limit],
            "cut": not fits and len(answer.text) > limit,
            "ended": answer.ended,
            "reward": reward,
            "advantage": advantage,
        }
        for answer, reward, advantage in zip(rollout.answers, scored.rewards, scored.advantages, strict=True)
    ]
    return {
        "round": round,
        "position": position,
        "entry": rollout.ref.entry,
        "question": rollout.question,
        "ground_truth": rollout.ground_truth,
        "answers": answers,
        "own": scored.own,
        "author": rollout.author,
        "name": readable_name(rollout.author),
        "time": rollout.time,
        "ref": [rollout.ref.entry, rollout.ref.version, rollout.ref.seed, rollout.ref.index],
    }


def _matching(row: tuple[Any, ...], query: RolloutQuery) -> dict[str, Any] | None:
    """One rollout in a list, as sent on the control socket; None if the query does not ask for it."""
    round, position, entry, question, answers, texts, advantages, author, moment, own = row
    if query.origin != "any" and bool(own) != (query.origin == "own"):
        return None
    if query.author not in (None, author) or query.entry not in (None, entry):
        return None
    rewards, informative = json.loads(texts), any(json.loads(advantages))
    if query.informative not in (None, informative):
        return None
    if query.search and not _contains(query.search.casefold(), question, answers):
        return None
    return {
        "round": round, "position": position, "entry": entry, "question": _shortened(question),
        "informative": informative, "own": bool(own), "author": author, "time": moment, "answers": len(rewards),
        "reward_best": max(rewards), "reward_mean": math.fsum(rewards) / len(rewards), "name": readable_name(author),
    }  # fmt: skip


def _contains(search: str, question: str, answers: str) -> bool:
    """Whether the question or an answer contains a text. Compared here, because SQLite folds the case of ASCII only."""
    return search in question.casefold() or any(search in str(text).casefold() for text, _ in json.loads(answers))
