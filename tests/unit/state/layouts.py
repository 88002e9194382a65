"""Journals as every earlier version wrote them: its tables, word for word, with one round, rollout and evaluation."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from sapo_edge.state.journal import APPLICATION_ID

EARLIER = (1, 2, 3, 4, 5)
"""Versions of the tables before today's."""

_ROUND = (
    '{"v":1,"time":5.0,"event":"round","round":1,"reward_own":0.25,"reward_external":null,"groups":2,"informative":1,'
    '"own":2,"external":0,"tokens":40,"seconds_generate":1.0,"seconds_update":2.0,"statistics":{"loss":0.5}}'
)
_ROLLOUT = """(1, 0, 'sum', '0.1.25', 7, 3, '2 + 2?', '4', '[["4", true], ["5", true]]', '[1.0, 0.0]',
    '[0.7, -0.7]', 'me', 1, 9, 4.5"""
_EVALUATION = "(1, 0.5, 0.5, 5, 10, 0.2, 0.8"


def _script(version: int) -> str:
    own = ", own INTEGER NOT NULL DEFAULT 1" if version >= 2 else ""
    digest = ", digest TEXT NOT NULL DEFAULT ''" if version >= 3 else ""
    key = "round INTEGER NOT NULL" if version >= 3 else "round INTEGER PRIMARY KEY"
    split = ", split TEXT NOT NULL" if version >= 3 else ""
    answers = ", answers TEXT NOT NULL DEFAULT ''" if version >= 4 else ""
    rest = ", PRIMARY KEY (round, split)" if version >= 3 else ""
    details = (
        "CREATE TABLE details (split TEXT NOT NULL, round INTEGER NOT NULL, detail TEXT NOT NULL, "
        "PRIMARY KEY (split, round)) WITHOUT ROWID;"
        if version >= 5
        else ""
    )
    return f"""
CREATE TABLE rounds (round INTEGER PRIMARY KEY, time REAL NOT NULL, event TEXT NOT NULL);
CREATE TABLE rollouts (
    round INTEGER NOT NULL, position INTEGER NOT NULL, entry TEXT NOT NULL, version TEXT NOT NULL,
    seed INTEGER NOT NULL, task_index INTEGER NOT NULL, question TEXT NOT NULL, ground_truth TEXT NOT NULL,
    answers TEXT NOT NULL, rewards TEXT NOT NULL, advantages TEXT NOT NULL, author TEXT NOT NULL,
    made_in INTEGER NOT NULL, sequence INTEGER NOT NULL, time REAL NOT NULL{own}{digest}, PRIMARY KEY (round, position)
) WITHOUT ROWID;
CREATE TABLE held_out (
    {key}, time REAL NOT NULL, accuracy REAL, correct INTEGER NOT NULL, questions INTEGER NOT NULL,
    low REAL, high REAL{split}{answers}{rest}
);
{details}
CREATE TABLE events (id INTEGER PRIMARY KEY AUTOINCREMENT, round INTEGER, time REAL NOT NULL, event TEXT NOT NULL);
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO rounds VALUES (1, 5.0, '{_ROUND}');
INSERT INTO rollouts VALUES {_ROLLOUT}{", 1" if own else ""}{", ''" if digest else ""});
INSERT INTO held_out VALUES {_EVALUATION}{", ''" if split else ""}{", ''" if answers else ""});
INSERT INTO counters VALUES ('sequence', 9);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {version};
"""


def write_journal(path: Path, version: int) -> None:
    """Write the journal of an earlier version."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(_script(version))
