"""The journal: what happened, in SQLite, read page by page.

One connection per process, usable from any thread. The node writes; other processes may read at the same time.
"""

from __future__ import annotations

import json
import math
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sapo_edge import events
from sapo_edge.errors import StateError
from sapo_edge.events import Event, HeldOut, Progress, RoundFinished
from sapo_edge.rollout import Answer, Rollout, TaskRef
from sapo_edge.state.durable import make_private_directory

SCHEMA_VERSION = 2
"""Version of the tables below; `Journal` brings those of version 1 up to it."""
APPLICATION_ID = 0x5341504F
"""Marks the file as ours ("SAPO"), for `file` and against opening something else."""
MAX_PAGE = 1000
"""Most rows that one query returns."""
KEEP_ROLLOUTS = 500
"""Rounds whose rollouts are kept by default."""
KEEP_EVENTS = 10_000
"""Other events that are kept."""
CHECKED_BYTES = 64 * 1024 * 1024
"""Journals up to this size are looked through whenever they are opened; larger ones only after an end without order."""

_SCHEMA = """
CREATE TABLE rounds (round INTEGER PRIMARY KEY, time REAL NOT NULL, event TEXT NOT NULL);
CREATE TABLE rollouts (
    round INTEGER NOT NULL, position INTEGER NOT NULL, entry TEXT NOT NULL, version TEXT NOT NULL,
    seed INTEGER NOT NULL, task_index INTEGER NOT NULL, question TEXT NOT NULL, ground_truth TEXT NOT NULL,
    answers TEXT NOT NULL, rewards TEXT NOT NULL, advantages TEXT NOT NULL, author TEXT NOT NULL,
    made_in INTEGER NOT NULL, sequence INTEGER NOT NULL, time REAL NOT NULL, own INTEGER NOT NULL DEFAULT 1,
    PRIMARY KEY (round, position)
) WITHOUT ROWID;
CREATE TABLE held_out (
    round INTEGER PRIMARY KEY, time REAL NOT NULL, accuracy REAL, correct INTEGER NOT NULL, questions INTEGER NOT NULL,
    low REAL, high REAL
);
CREATE TABLE events (id INTEGER PRIMARY KEY AUTOINCREMENT, round INTEGER, time REAL NOT NULL, event TEXT NOT NULL);
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class ScoredRollout:
    """A rollout with what the local verifier and its group made of each answer.

    Attributes:
        rollout: stored as it is shared, without token ids.
        rewards, advantages: one number per answer.
        own: whether this node made it; else it was trained on.
    """

    rollout: Rollout
    rewards: tuple[float, ...]
    advantages: tuple[float, ...]
    own: bool = True

    def __post_init__(self) -> None:
        for name, values in (("rewards", self.rewards), ("advantages", self.advantages)):
            if len(values) != len(self.rollout.answers):
                raise ValueError(f"{len(values)} {name} for {len(self.rollout.answers)} answers")
            if not all(math.isfinite(value) for value in values):
                raise ValueError(f"{name} must be finite")


class Journal:
    """Rounds, their rollouts, held-out evaluations and other events of one state directory."""

    def __init__(self, path: Path, *, keep_rollouts: int = KEEP_ROLLOUTS, read_only: bool = False) -> None:
        """Open the journal; create it if it doesn't exist.

        Args:
            path: the SQLite file; it has its directory for itself, which is created.
            keep_rollouts: newest rounds whose rollouts are kept; 0 keeps all.
            read_only: for a process that doesn't hold the state directory's lock.

        Raises:
            StateError: if it can't be opened, is damaged, or is not a journal of this version.
        """
        self.path = path
        self.keep_rollouts = keep_rollouts
        self._guard = threading.RLock()
        suspect = _suspect(path)
        if not read_only:
            make_private_directory(path.parent)
        uri = f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rwc'}"
        with reported_errors(self.path):
            self._connection = sqlite3.connect(uri, uri=True, timeout=10, isolation_level=None, check_same_thread=False)
        try:
            with reported_errors(self.path):
                self._prepare(read_only, suspect)
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """Close the file; the journal can't be used afterwards."""
        with self._guard, reported_errors(self.path):
            self._connection.close()

    def record(self, event: Event, rollouts: Sequence[ScoredRollout] = ()) -> None:
        """Write one event; `Progress` is not kept. An event of the same round replaces the earlier one.

        Args:
            event: a `RoundFinished` is written together with its rollouts, or neither is.
            rollouts: of that round, the node's own ones first.

        Raises:
            StateError: if the disk is full or the journal is damaged.
            ValueError: if rollouts come with another event.
        """
        if rollouts and not isinstance(event, RoundFinished):
            raise ValueError("rollouts belong to a finished round")
        if isinstance(event, Progress):
            return
        with self._transaction() as connection:
            text = events.to_json(event)
            if isinstance(event, RoundFinished):
                connection.execute("INSERT OR REPLACE INTO rounds VALUES (?, ?, ?)", (event.round, event.time, text))
                self._replace_rollouts(connection, event.round, rollouts)
            elif isinstance(event, HeldOut):
                numbers = (
                    event.round,
                    event.time,
                    event.accuracy,
                    event.correct,
                    event.questions,
                    event.low,
                    event.high,
                )
                connection.execute("INSERT OR REPLACE INTO held_out VALUES (?, ?, ?, ?, ?, ?, ?)", numbers)
            else:
                row = (getattr(event, "round", None), event.time, text)
                connection.execute("INSERT INTO events (round, time, event) VALUES (?, ?, ?)", row)
                connection.execute("DELETE FROM events WHERE id <= (SELECT max(id) FROM events) - ?", (KEEP_EVENTS,))

    def prune_rollouts(self, keep_rounds: int) -> int:
        """Drop the rollouts of all but the newest `keep_rounds` rounds; their numbers stay.

        Returns:
            Rollouts dropped.
        """
        with self._transaction() as connection:
            return connection.execute(
                "DELETE FROM rollouts WHERE round <= (SELECT max(round) FROM rollouts) - ?", (keep_rounds,)
            ).rowcount

    def truncate_after(self, round: int) -> int:
        """Drop what belongs to later rounds, so that a history which goes on from a checkpoint has no duplicates.

        Returns:
            Rounds dropped.
        """
        with self._transaction() as connection:
            dropped = connection.execute("DELETE FROM rounds WHERE round > ?", (round,)).rowcount
            connection.execute("DELETE FROM rollouts WHERE round > ?", (round,))
            connection.execute("DELETE FROM held_out WHERE round > ?", (round,))
            connection.execute("DELETE FROM events WHERE round > ?", (round,))
            return dropped

    def reserve_sequences(self, count: int) -> int:
        """Take `count` running numbers for rollouts; none is ever given twice, not even after `truncate_after`.

        Returns:
            The first of them, from 1.
        """
        if count < 1:
            raise ValueError(f"can't reserve {count} numbers")
        with self._transaction() as connection:
            connection.execute("INSERT OR IGNORE INTO counters VALUES ('sequence', 0)")
            connection.execute("UPDATE counters SET value = value + ? WHERE name = 'sequence'", (count,))
            last: int = connection.execute("SELECT value FROM counters WHERE name = 'sequence'").fetchone()[0]
            return last - count + 1

    def counter(self, name: str) -> int:
        """A number that is kept under a name, 0 if there is none."""
        found = self._rows("SELECT value FROM counters WHERE name = ?", (name,))
        return int(found[0][0]) if found else 0

    def set_counter(self, name: str, value: int) -> None:
        """Keep a number under a name."""
        with self._transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO counters VALUES (?, ?)", (name, value))

    def sync(self) -> None:
        """Make everything recorded so far survive a power cut (a killed process loses nothing anyway).

        Raises:
            StateError: if the disk is full or the journal is damaged.
        """
        self._rows("PRAGMA wal_checkpoint(PASSIVE)", ())

    def last_round(self) -> int | None:
        """The newest round; None before the first."""
        newest: int | None = self._rows("SELECT max(round) FROM rounds", ())[0][0]
        return newest

    def rounds(self, limit: int = 100, *, after: int | None = None, before: int | None = None) -> list[RoundFinished]:
        """A page of rounds, oldest first.

        Args:
            limit: 1 to `MAX_PAGE`.
            after: the first `limit` rounds after this one.
            before: else, the last `limit` rounds before this one; without either, the newest.
        """
        found = [
            events.from_json(row[1]) for row in self._page("round, event FROM rounds", "round", limit, after, before)
        ]
        return [event for event in found if isinstance(event, RoundFinished)]

    def held_out(self, limit: int = 100, *, after: int | None = None, before: int | None = None) -> list[HeldOut]:
        """A page of held-out evaluations, oldest first; arguments as in `rounds`."""
        columns = "round, time, accuracy, correct, questions, low, high"
        found = []
        for row in self._page(f"{columns} FROM held_out", "round", limit, after, before):
            # SQLite stores NaN as NULL.
            numbers: list[Any] = [math.nan if value is None else value for value in row]
            found.append(HeldOut(**dict(zip(columns.split(", "), numbers, strict=True))))
        return found

    def events(
        self, limit: int = 100, *, after: int | None = None, before: int | None = None
    ) -> list[tuple[int, Event]]:
        """A page of all other events with their running ids, oldest first; `after` and `before` are such ids."""
        rows = self._page("id, event FROM events", "id", limit, after, before)
        return [(row[0], events.from_json(row[1])) for row in rows]

    def rollouts(self, round: int, limit: int = 64, offset: int = 0) -> list[ScoredRollout]:
        """A page of the rollouts of one round, own ones first, each kind in its order; empty once pruned."""
        _check_page(limit)
        query = "SELECT * FROM rollouts WHERE round = ? ORDER BY position LIMIT ? OFFSET ?"
        return [scored_from(row) for row in self._rows(query, (round, limit, offset))]

    def _prepare(self, read_only: bool, suspect: bool) -> None:
        connection = self._connection
        application, version, tables = (
            connection.execute(query).fetchone()[0]
            for query in ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
        )
        if tables and application != APPLICATION_ID:
            raise StateError(
                f"{self.path} is a database of something else", "move it away, or use --home to keep state elsewhere"
            )
        if version > SCHEMA_VERSION:
            raise StateError(
                f"{self.path} was written by a newer sapo-edge",
                "update sapo-edge, or use --home to keep state elsewhere",
            )
        problem = connection.execute("PRAGMA quick_check(1)").fetchone()[0] if suspect else "ok"
        if problem != "ok":
            raise _damaged(self.path, problem)
        if read_only:
            return
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        if not tables:
            marks = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION};"
            connection.executescript(f"BEGIN; {_SCHEMA} {marks} COMMIT;")
        elif version < SCHEMA_VERSION:
            # Version 1 kept own rollouts alone.
            connection.executescript(
                f"BEGIN; ALTER TABLE rollouts ADD COLUMN own INTEGER NOT NULL DEFAULT 1;"
                f"PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
            )

    def _replace_rollouts(self, connection: sqlite3.Connection, round: int, rollouts: Sequence[ScoredRollout]) -> None:
        connection.execute("DELETE FROM rollouts WHERE round = ?", (round,))
        rows = [_row(round, position, scored) for position, scored in enumerate(rollouts)]
        connection.executemany(f"INSERT INTO rollouts VALUES ({', '.join('?' * 16)})", rows)
        if self.keep_rollouts:
            connection.execute("DELETE FROM rollouts WHERE round <= ?", (round - self.keep_rollouts,))

    def _page(self, source: str, key: str, limit: int, after: int | None, before: int | None) -> list[tuple[Any, ...]]:
        _check_page(limit)
        if after is not None and before is not None:
            raise ValueError("give after or before, not both")
        if after is not None:
            return self._rows(f"SELECT {source} WHERE {key} > ? ORDER BY {key} LIMIT ?", (after, limit))
        query = f"SELECT {source} WHERE ? IS NULL OR {key} < ? ORDER BY {key} DESC LIMIT ?"
        return self._rows(query, (before, before, limit))[::-1]

    def _rows(self, query: str, arguments: tuple[int | str | None, ...]) -> list[tuple[Any, ...]]:
        with self._guard, reported_errors(self.path):
            return self._connection.execute(query, arguments).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._guard, reported_errors(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                # A full disk makes SQLite roll back by itself.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise


@contextmanager
def reported_errors(path: Path) -> Iterator[None]:
    """Turn what SQLite says of the journal at `path` into what its owner can do.

    Raises:
        StateError: for any `sqlite3.Error` of the block.
    """
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorname", "") or ""
        if code.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
            raise _damaged(path, error) from error
        if code.startswith("SQLITE_FULL"):
            remedy = "free some space on that disk, or use --home to keep state elsewhere"
        elif code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            remedy = "another program holds it: close that program, then try again"
        else:
            remedy = "check the owner and the permissions of its directory, or use --home to keep state elsewhere"
        raise StateError(f"the journal {path} can't be used: {error}", remedy) from error


def _damaged(path: Path, problem: object) -> StateError:
    # The whole directory: a write-ahead log that stays behind would be played into the new journal.
    return StateError(
        f"the journal {path} is damaged ({' '.join(str(problem).split())})",
        f"rename {path.parent} to {path.parent.name}.damaged: a new journal begins, and the checkpoints stay",
    )


def _suspect(path: Path) -> bool:
    """Whether a journal has to be looked through, which takes seconds for one of a gigabyte and a slow disk.

    SQLite removes the write-ahead log when the last one who uses it ends in order. What is damaged and not found now is
    told by `StateError` when it is met.
    """
    try:
        if path.stat().st_size <= CHECKED_BYTES:
            return True
    except OSError:
        # Opening it will say why.
        return True
    return path.with_name(f"{path.name}-wal").exists()


def _check_page(limit: int) -> None:
    if not 1 <= limit <= MAX_PAGE:
        raise ValueError(f"a page holds 1 to {MAX_PAGE} rows, not {limit}")


def _row(round: int, position: int, scored: ScoredRollout) -> tuple[Any, ...]:
    rollout = scored.rollout
    answers = json.dumps([[answer.text, answer.ended] for answer in rollout.answers], ensure_ascii=False)
    return (
        *(round, position, rollout.ref.entry, rollout.ref.version, rollout.ref.seed, rollout.ref.index),
        *(rollout.question, rollout.ground_truth, answers, json.dumps(scored.rewards), json.dumps(scored.advantages)),
        *(rollout.author, rollout.round, rollout.sequence, rollout.time, int(scored.own)),
    )


def scored_from(row: tuple[Any, ...]) -> ScoredRollout:
    """The rollout that a row of the table `rollouts` holds; one of version 1 has no last column."""
    (
        _,
        _,
        entry,
        version,
        seed,
        index,
        question,
        truth,
        answers,
        rewards,
        advantages,
        author,
        made_in,
        sequence,
        time,
        *own,
    ) = row
    rollout = Rollout(
        ref=TaskRef(entry, version, seed, index),
        question=question,
        ground_truth=truth,
        answers=tuple(Answer(text, ended) for text, ended in json.loads(answers)),
        author=author,
        round=made_in,
        sequence=sequence,
        time=time,
    )
    return ScoredRollout(rollout, tuple(json.loads(rewards)), tuple(json.loads(advantages)), own != [0])
