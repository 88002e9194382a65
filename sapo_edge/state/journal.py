"""The journal: rounds, rollouts, held-out evaluations and other events in SQLite.

The node that holds the state directory's lock writes it, over one connection that any thread may use.
`control/journal_view.py` reads it at the same time, over connections of its own.
"""

from __future__ import annotations

import json
import math
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from sapo_edge import events
from sapo_edge.errors import StateError
from sapo_edge.events import Comparison, Event, HeldOut, Progress, RolledBack, RoundFinished
from sapo_edge.rollout import Answer, Rollout, TaskRef
from sapo_edge.state.detail import Detail
from sapo_edge.state.durable import is_disk_full, is_read_only, make_private_directory

T = TypeVar("T")

SCHEMA_VERSION = 1
"""Version of the tables below."""
APPLICATION_ID = 0x5341504F
"""Marks the file as ours ("SAPO"), for `file` and against opening something else."""
MAX_ROWS = 1000
"""Most rounds, evaluations or events that one call returns."""
SEQUENCE = "sequence"
"""The counter of the sequence numbers of rollouts."""
WORKED, MEASURED, JOULES = "worked_seconds", "measured_seconds", "measured_joules"
"""The counters of a run's seconds of work, of those whose energy was measured, and of that energy."""
KEEP_ROLLOUTS = 500
"""Newest rounds whose rollouts are kept."""
KEEP_EVENTS = 10_000
"""Newest other events that are all kept. An older one goes once another of its kind comes: each round has a checkpoint,
while a run of months may have one start, which says what it is made with."""
CHECKED_BYTES = 64 * 1024 * 1024
"""Journals up to this size are checked whenever they are opened; larger ones only after a crash."""
HELD_OUT = "round, time, accuracy, correct, questions, low, high, split, answers, question_set"
"""Columns of an evaluation, as `read_held_out` takes them."""
_SCHEMA = """
CREATE TABLE rounds (round INTEGER PRIMARY KEY, time REAL NOT NULL, event TEXT NOT NULL);
CREATE TABLE rollouts (
    round INTEGER NOT NULL, position INTEGER NOT NULL, entry TEXT NOT NULL, version TEXT NOT NULL,
    seed INTEGER NOT NULL, task_index INTEGER NOT NULL, question TEXT NOT NULL, ground_truth TEXT NOT NULL,
    answers TEXT NOT NULL, rewards TEXT NOT NULL, advantages TEXT NOT NULL, author TEXT NOT NULL,
    made_in INTEGER NOT NULL, sequence INTEGER NOT NULL, time REAL NOT NULL, own INTEGER NOT NULL,
    digest TEXT NOT NULL, PRIMARY KEY (round, position)
) WITHOUT ROWID;
CREATE TABLE held_out (
    round INTEGER NOT NULL, time REAL NOT NULL, accuracy REAL, correct INTEGER NOT NULL, questions INTEGER NOT NULL,
    low REAL, high REAL, split TEXT NOT NULL, answers TEXT NOT NULL, question_set TEXT NOT NULL,
    PRIMARY KEY (round, split)
);
CREATE TABLE details (
    split TEXT NOT NULL, round INTEGER NOT NULL, detail TEXT NOT NULL, PRIMARY KEY (split, round)
) WITHOUT ROWID;
CREATE TABLE events (id INTEGER PRIMARY KEY AUTOINCREMENT, round INTEGER, time REAL NOT NULL, event TEXT NOT NULL);
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
"""
LAST_EVENT = "SELECT event FROM events WHERE json_extract(event, '$.event') = ? ORDER BY id DESC LIMIT 1"
"""The query for the last event of a kind."""
_FORGET_EVENTS = """
DELETE FROM events WHERE id <= (SELECT max(id) FROM events) - ? AND json_extract(event, '$.event') = ?
"""
_ASKED = "FROM held_out WHERE split = ? AND questions = ? AND question_set = ?"
_FORGET_DETAILS = """
WITH asked AS (
    SELECT * FROM held_out WHERE (split, questions, question_set) = (
        SELECT split, questions, question_set FROM held_out WHERE split = :split AND round = :round
    )
)
DELETE FROM details WHERE split = :split AND round NOT IN (
    SELECT :round
    UNION SELECT min(round) FROM details WHERE split = :split
    UNION SELECT min(round) FROM asked
    UNION SELECT round FROM (SELECT round FROM asked ORDER BY accuracy DESC, round LIMIT 1)
)
"""


@dataclass(frozen=True, slots=True)
class JournaledRollout:
    """A rollout with the local reward and the advantage of each answer.

    Attributes:
        rollout: as it is shared, without token ids.
        own: whether this node generated it; otherwise it is another node's, in this round's update.
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
    """Rounds, their rollouts, held-out evaluations and other events of one run."""

    def __init__(self, path: Path) -> None:
        """Open the journal; create it, and the directory of its own that it is in, if it doesn't exist."""
        self.path = path
        self._guard = threading.RLock()
        needs_check = _needs_check(path)
        make_private_directory(path.parent)
        with reported_errors(path):
            self._connection = sqlite3.connect(path, timeout=10, isolation_level=None, check_same_thread=False)
        try:
            with reported_errors(path):
                self._prepare(needs_check)
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """Close the file; the journal can't be used afterwards."""
        with self._guard, reported_errors(self.path):
            self._connection.close()

    def record(
        self, event: Event, rollouts: Sequence[JournaledRollout] = (), counters: Mapping[str, int] | None = None
    ) -> None:
        """Write one event, except `Progress`. A round or evaluation replaces an earlier one of the same round.

        What is recorded survives a power cut. The rollouts of that round, the node's own first, and counters by their
        names are written in the same transaction.
        """
        if rollouts and not isinstance(event, RoundFinished):
            raise ValueError("rollouts belong to a finished round")
        if isinstance(event, Progress):
            return
        with self._transaction() as connection:
            text = events.to_json(event)
            if isinstance(event, RoundFinished):
                connection.execute("INSERT OR REPLACE INTO rounds VALUES (?, ?, ?)", (event.round, event.time, text))
                connection.execute("DELETE FROM rollouts WHERE round = ?", (event.round,))
                connection.execute("DELETE FROM rollouts WHERE round <= ?", (event.round - KEEP_ROLLOUTS,))
                rows = [_row(event.round, position, scored) for position, scored in enumerate(rollouts)]
                connection.executemany(f"INSERT INTO rollouts VALUES ({', '.join('?' * 17)})", rows)
            elif isinstance(event, HeldOut):
                row = [getattr(event, name) for name in HELD_OUT.split(", ")]
                connection.execute(f"INSERT OR REPLACE INTO held_out VALUES ({', '.join('?' * len(row))})", row)
            else:
                row = [getattr(event, "round", None), event.time, text]
                connection.execute("INSERT INTO events (round, time, event) VALUES (?, ?, ?)", row)
                connection.execute(_FORGET_EVENTS, (KEEP_EVENTS, event.event))
            connection.executemany("INSERT OR REPLACE INTO counters VALUES (?, ?)", (counters or {}).items())

    def record_detail(self, split: str, round: int, detail: Detail) -> None:
        """Keep the details of an evaluation of one set after one round, and those of the set's first and best one."""
        with self._transaction() as connection:
            row = (split, round, detail.to_json())
            connection.execute("INSERT OR REPLACE INTO details VALUES (?, ?, ?)", row)
            connection.execute(_FORGET_DETAILS, {"split": split, "round": round})

    def truncate_after(self, round: int) -> int:
        """Delete everything of later rounds, which a node that resumes from a checkpoint repeats; returns how many."""
        with self._transaction() as connection:
            return _delete_after(connection, round)

    def roll_back(self, event: RolledBack, counters: Mapping[str, int]) -> None:
        """Delete everything of later rounds as `truncate_after` does, and record why, in one transaction.

        Repeating it with the same event changes nothing, so that a killed node can complete it.
        """
        text = events.to_json(event)
        with self._transaction() as connection:
            if connection.execute("SELECT 1 FROM events WHERE event = ?", (text,)).fetchone() is None:
                _delete_after(connection, event.to_round)
                connection.execute("INSERT INTO events (time, event) VALUES (?, ?)", (event.time, text))
                connection.executemany("INSERT OR REPLACE INTO counters VALUES (?, ?)", counters.items())

    def reserve_sequences(self, count: int) -> int:
        """Reserve `count` sequence numbers for rollouts, counted from 1; returns the first of them.

        None is ever reserved twice, not even after `truncate_after`.
        """
        if count < 1:
            raise ValueError(f"can't reserve {count} numbers")
        with self._transaction() as connection:
            connection.execute("INSERT OR IGNORE INTO counters VALUES (?, 0)", (SEQUENCE,))
            connection.execute("UPDATE counters SET value = value + ? WHERE name = ?", (count, SEQUENCE))
            last: int = connection.execute("SELECT value FROM counters WHERE name = ?", (SEQUENCE,)).fetchone()[0]
            return last - count + 1

    def raise_counters(self, counters: Mapping[str, int]) -> None:
        """Store numbers under their names unless greater ones are there."""
        query = """
            INSERT INTO counters VALUES (?, ?)
            ON CONFLICT (name) DO UPDATE SET value = max(value, excluded.value)
        """
        with self._transaction() as connection:
            connection.executemany(query, counters.items())

    def counter(self, name: str) -> int:
        """The number stored under a name, 0 if there is none."""
        return next(iter(self._decoded(int, "SELECT value FROM counters WHERE name = ?", (name,))), 0)

    def last_round(self) -> int | None:
        """The newest round; None before the first."""
        newest: int | None = self._rows("SELECT max(round) FROM rounds", ())[0][0]
        return newest

    def rounds(self, limit: int = 100) -> list[RoundFinished]:
        """The newest rounds, at most `MAX_ROWS`, oldest first."""
        rounds = self._newest(events.from_json, "event FROM rounds", "round DESC", limit)
        return [event for event in rounds if isinstance(event, RoundFinished)]

    def held_out(self, limit: int = 100) -> list[HeldOut]:
        """The newest held-out evaluations, at most `MAX_ROWS`, oldest first."""
        return self._newest(read_held_out, f"{HELD_OUT} FROM held_out", "round DESC, time DESC", limit)

    def held_out_course(self) -> tuple[HeldOut, HeldOut] | None:
        """The first and the last evaluation on the questions of the last one; None before the first."""
        # A rollback between the two would leave no first one.
        with self._guard:
            last = self.held_out(1)
            if not last:
                return None
            query = f"SELECT {HELD_OUT} {_ASKED} ORDER BY round LIMIT 1"
            (first,) = self._decoded(read_held_out, query, last[0].asked)
            return first, last[0]

    def held_out_after(self, round: int, split: str) -> HeldOut | None:
        """The evaluation of one set after one round; None if there is none."""
        query = f"SELECT {HELD_OUT} FROM held_out WHERE round = ? AND split = ?"
        return next(iter(self._decoded(read_held_out, query, (round, split))), None)

    def best_held_out(self, asked: tuple[str, int, str]) -> tuple[int, HeldOut | None]:
        """The number of evaluations on the same questions, and the best one, the earliest on a tie."""
        (count,) = self._rows(f"SELECT count(*) {_ASKED}", asked)[0]
        best = self._decoded(read_held_out, f"SELECT {HELD_OUT} {_ASKED} ORDER BY correct DESC, round LIMIT 1", asked)
        return count, best[0] if best else None

    def external_since_evaluation(self, split: str) -> int:
        """Most external rollouts in one update since the last evaluation of a set; 0 without any."""
        query = """
            SELECT max(json_extract(event, '$.external')) FROM rounds
            WHERE round > coalesce((SELECT max(round) FROM held_out WHERE split = ?), 0)
        """
        return self._rows(query, (split,))[0][0] or 0

    def last_comparison(self) -> Comparison | None:
        """The last comparison of base model and adapter; None before the first."""
        last = self._decoded(events.from_json, LAST_EVENT, (Comparison.event,))
        return last[0] if last and isinstance(last[0], Comparison) else None

    def used_external(self, limit: int) -> list[tuple[str, str, TaskRef]]:
        """Id, author and task reference of the newest external rollouts that were trained on, oldest first."""
        columns = "digest, author, entry, version, seed, task_index"
        order = "ORDER BY round DESC, position DESC LIMIT ?"
        query = f"SELECT {columns} FROM rollouts WHERE own = 0 {order}"
        return self._decoded(lambda digest, author, *ref: (digest, author, TaskRef(*ref)), query, (limit,))[::-1]

    def events(self, limit: int = 100) -> list[Event]:
        """The newest other events, at most `MAX_ROWS`, oldest first; none of a kind that a newer sapo-edge wrote."""
        known = f"json_extract(event, '$.event') IN {tuple(events.EVENTS)}"
        return self._newest(events.from_json, f"event FROM events WHERE {known}", "id DESC", limit)

    def rollouts(self, round: int) -> list[JournaledRollout]:
        """The rollouts of one round, own ones first; empty if they are no longer kept."""
        query = "SELECT * FROM rollouts WHERE round = ? ORDER BY position"
        return self._decoded(lambda *row: rollout_from_row(row), query, (round,))

    def _prepare(self, needs_check: bool) -> None:
        connection = self._connection
        application, version, tables = (
            connection.execute(query).fetchone()[0]
            for query in ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
        )
        if tables and application != APPLICATION_ID:
            raise StateError(
                f"{self.path} is another program's database", "move it away, or use --home to keep state elsewhere"
            )
        if tables and version != SCHEMA_VERSION:
            raise StateError(
                f"{self.path} was written by a newer or an unknown sapo-edge",
                "update sapo-edge, or use --home to keep state elsewhere",
            )
        problem = connection.execute("PRAGMA quick_check(1)").fetchone()[0] if needs_check else "ok"
        if problem != "ok":
            raise _damaged(self.path, problem)
        connection.execute("PRAGMA journal_mode = WAL")
        # NORMAL would flush the write-ahead log only when it is copied into the file, which an open reader prevents.
        connection.execute("PRAGMA synchronous = FULL")
        if not tables:
            marks = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION};"
            connection.executescript(f"BEGIN; {_SCHEMA} {marks} COMMIT;")

    def _newest(self, decode: Callable[..., T], source: str, order: str, limit: int) -> list[T]:
        return self._decoded(decode, f"SELECT {source} ORDER BY {order} LIMIT ?", (min(limit, MAX_ROWS),))[::-1]

    def _decoded(self, decode: Callable[..., T], query: str, arguments: tuple[int | str, ...]) -> list[T]:
        with reported_damage(self.path):
            return [decode(*row) for row in self._rows(query, arguments)]

    def _rows(self, query: str, arguments: tuple[int | str, ...]) -> list[tuple[Any, ...]]:
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


def _delete_after(connection: sqlite3.Connection, round: int) -> int:
    """Delete everything of later rounds, and return the number of rounds."""
    for table in ("rollouts", "held_out", "details", "events"):
        connection.execute(f"DELETE FROM {table} WHERE round > ?", (round,))
    return connection.execute("DELETE FROM rounds WHERE round > ?", (round,)).rowcount


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that only reads a journal, which this or another process writes; all its queries see one state."""
    # On a read-only disk SQLite can't make the file beside the journal by which it would notice a writer.
    alone = is_read_only(path) and not path.with_name(f"{path.name}-wal").exists()
    uri = f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if alone else ''}"
    with (
        reported_errors(path),
        reported_damage(path),
        closing(sqlite3.connect(uri, uri=True, timeout=5, isolation_level=None)) as connection,
    ):
        connection.execute("BEGIN")
        yield connection


@contextmanager
def reported_errors(path: Path) -> Iterator[None]:
    """Turn an error of SQLite about the journal at `path` into one with a remedy."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise _damaged(path, "it has text that is not UTF-8") from error
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorname", "") or ""
        # A changed byte within an event is found by the query that looks into it.
        if code.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")) or str(error) == "malformed JSON":
            raise _damaged(path, error) from error
        if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            remedy = "another program has locked it: close that program, then try again"
        elif code.startswith("SQLITE_FULL") or (path.parent.exists() and is_disk_full(error, path.parent)):
            # Without room for the shared memory beside it, SQLite reports an input or output error.
            remedy = "free some space on that disk, or use --home to keep state elsewhere"
        elif is_read_only(path):
            remedy = "that file system is read-only: make it writable, or use --home to keep state elsewhere"
        else:
            remedy = "check the owner and the permissions of its directory, or use --home to keep state elsewhere"
        raise StateError(f"the journal {path} can't be used: {error}", remedy) from error


@contextmanager
def reported_damage(path: Path) -> Iterator[None]:
    """Turn an error of decoding a row into one with a remedy: to SQLite, changed bytes within a text are a text."""
    try:
        yield
    except (ValueError, TypeError, RecursionError) as error:
        raise _damaged(path, "a row can't be read") from error


def _damaged(path: Path, problem: object) -> StateError:
    # The whole directory: SQLite would replay a write-ahead log that stays behind into the new journal.
    return StateError(
        f"the journal {path} is damaged ({' '.join(str(problem).split())})",
        f"rename {path.parent} to {path.parent.name}.damaged: a new journal is created, and the checkpoints stay",
    )


def _needs_check(path: Path) -> bool:
    """Whether to check the whole journal for damage, which takes seconds for a gigabyte on a slow disk.

    SQLite deletes the write-ahead log when its last user closes it, so a remaining log means a crash. Damage that is
    not found here raises a `StateError` when it is read.
    """
    # If it can't be read, opening the file reports the reason.
    with suppress(OSError):
        if path.stat().st_size > CHECKED_BYTES:
            return path.with_name(f"{path.name}-wal").exists()
    return True


def read_held_out(*row: object) -> HeldOut:
    """The evaluation in the columns `HELD_OUT` of a row."""
    # SQLite stores NaN as NULL, as JSON does.
    fields = dict(zip(HELD_OUT.split(", "), row, strict=True))
    event = events.from_dict({"v": events.VERSION, "event": HeldOut.event, **fields})
    assert isinstance(event, HeldOut)
    return event


def _row(round: int, position: int, scored: JournaledRollout) -> tuple[Any, ...]:
    rollout, ref = scored.rollout, scored.rollout.ref
    answers = json.dumps([[answer.text, answer.ended] for answer in rollout.answers], ensure_ascii=False)
    digest = "" if scored.own else rollout.id
    return (
        *(round, position, ref.entry, ref.version, ref.seed, ref.index),
        *(rollout.question, rollout.ground_truth, answers, json.dumps(scored.rewards), json.dumps(scored.advantages)),
        *(rollout.author, rollout.round, rollout.sequence, rollout.time, int(scored.own), digest),
    )


def rollout_from_row(row: tuple[Any, ...]) -> JournaledRollout:
    """The rollout in a row of the table `rollouts`."""
    _, _, entry, version, seed, index, question, truth, answers, rewards, advantages, *rest = row
    author, made_in, sequence, time, own, digest = rest
    ref, texts = TaskRef(entry, version, seed, index), tuple(Answer(text, ended) for text, ended in json.loads(answers))
    rollout = Rollout(ref, question, truth, texts, author, made_in, sequence, time, digest=digest)
    return JournaledRollout(rollout, tuple(json.loads(rewards)), tuple(json.loads(advantages)), bool(own))
