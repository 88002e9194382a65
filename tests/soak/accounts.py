"""What a node of the soak says it did, and what its home holds: nothing may be missing, and nothing counted twice."""

from __future__ import annotations

import contextlib
import re
import signal
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from typing import Any

from sapo_edge.errors import SapoError
from sapo_edge.pool.pool import PoolLimits
from sapo_edge.pool.saved import read_pool
from sapo_edge.state.checkpoints import Checkpoints
from sapo_edge.state.paths import Paths
from sapo_edge.state.secret import read_or_create_secret
from sapo_edge.swarm.joining.identity import Identity
from tests.soak.records import read_records
from tests.soak.seats import read_events

ENDED = {signal.SIGTERM: 0, signal.SIGKILL: -signal.SIGKILL}
"""Exit code by the signal that was sent."""
MANY_ROUNDS = 20
"""Rounds in which a node must have trained on something of others."""
LAST_PART, LEAST_SECONDS = 1 / 4, 90.0
"""Last part of the time, and its least length, in which each node has to hear from each other one."""
DEAF_SECONDS = 180.0
"""Before the end, in which each node has to hear from some other one: a few rounds where little processor is left."""
FAULTS = re.compile(r"Traceback|Fatal Python error|Segmentation fault|^\S+ (ERROR|CRITICAL) |never (awaited|retrieved)")


@dataclass
class Account:
    """One seat: events of all its lives, and what its journal has.

    Ends are (signal that was sent or 0, exit code) of each life. For each round whose rollouts are kept, `kept` has how
    many external ones its event counts, and their digests. The checkpoint is the round of the newest complete one.
    `heard` has when the newest rollout of each author arrived or was made, in Unix seconds; `damaged` what can't be
    read, and `faults` lines of stderr and logs that tell of one.
    """

    name: str
    events: list[dict[str, Any]] = field(default_factory=list)
    ends: list[tuple[int, int | None]] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    kept: dict[int, tuple[int, list[str]]] = field(default_factory=dict)
    sequences: list[int] = field(default_factory=list)
    checkpoint: int | None = None
    damaged: list[str] = field(default_factory=list)
    heard: dict[str, float] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def problems(self) -> list[str]:
        found = [*self._endings(), *self._lost(), *self._twice(), *self._idle(), *self._notices()]
        found += [*self.damaged, *self.faults]
        return [f"{self.name}: {problem}" for problem in found]

    def _endings(self) -> Iterator[str]:
        for number, (asked, code) in enumerate(self.ends, start=1):
            expected = ENDED.get(signal.Signals(asked)) if asked else None
            if code != expected:
                yield f"life {number} ended with {code} after signal {asked}"

    def _lost(self) -> Iterator[str]:
        """Rounds that are missing: in the journal, in what a life says, or between two lives."""
        if self.rounds != list(range(1, len(self.rounds) + 1)):
            missing = sorted(set(range(1, max(self.rounds) + 1)) - set(self.rounds))
            yield f"the journal lacks rounds {missing[:5]}"
        last, saved = 0, 0
        for event in self.events:
            match event["event"]:
                case "node_started":
                    if event["round"] < saved:
                        yield f"a life began at round {event['round']}, and {saved} was saved"
                    last = event["round"]
                case "round":
                    if event["round"] != last + 1:
                        yield f"round {event['round']} follows {last}"
                    last = event["round"]
                case "checkpoint":
                    saved = event["round"]
        newest = self.rounds[-1] if self.rounds else 0
        if (self.checkpoint or 0) != newest:
            yield f"the newest checkpoint is of round {self.checkpoint}, and the newest round {newest}"
        if newest < saved:
            yield f"the journal ends at round {newest}, and {saved} was saved"

    def _twice(self) -> Iterator[str]:
        """Rollouts that were trained on twice, or counted otherwise than they are journaled."""
        for round, (counted, digests) in self.kept.items():
            if counted != len(digests):
                yield f"round {round} counts {counted} rollouts of others, and has {len(digests)}"
        for digest, times in Counter(digest for _, digests in self.kept.values() for digest in digests).items():
            if times > 1:
                yield f"rollout {digest[:12]} was trained on {times} times"
        for sequence, times in Counter(self.sequences).items():
            if times > 1:
                yield f"sequence number {sequence} was used {times} times"

    def _idle(self) -> Iterator[str]:
        """Whether it learned nothing from others, so that the rest says little."""
        if len(self.rounds) >= MANY_ROUNDS and not any(digests for _, digests in self.kept.values()):
            yield f"in {len(self.rounds)} rounds it trained on nothing of others"

    def _notices(self) -> Iterator[str]:
        for event in self.events:
            text = event.get("text", "")
            if event["event"] == "notice" and (event["level"] == "error" or "survived an error" in text):
                yield text


def silent(accounts: Sequence[Account], names: dict[str, str], since: float) -> list[str]:
    """Pairs of which one did not hear the other, whose peer id stands by its seat, since then."""
    pairs = (pair for pair in permutations(accounts, 2) if pair[0].heard.get(names[pair[1].name], 0.0) < since)
    return [f"{reader.name} did not hear {author.name}" for reader, author in pairs]


def deaf(accounts: Sequence[Account], names: dict[str, str], since: float) -> list[str]:
    """Nodes that heard nobody else since then."""
    return [
        f"{reader.name} heard nobody at the end"
        for reader in accounts
        if len(accounts) > 1
        and max(reader.heard.get(names[other.name], 0.0) for other in accounts if other is not reader) < since
    ]


def read_account(home: Path, ends: list[tuple[int, int | None]]) -> Account:
    """The account of a home in which nobody lives any more, by the name of its seat."""
    events = read_events(home / "events.jsonl", ("node_started", "round", "checkpoint", "notice"))
    account, paths = Account(home.name, events, ends), Paths.default(home)
    try:
        checkpoints = Checkpoints(paths.checkpoints)
        # Each is verified by its hashes.
        account.checkpoint = max((checkpoints.load(round).round for round in checkpoints.rounds()), default=None)
        limits = PoolLimits()
        for item in read_pool(paths.run.pool, limits.rollouts, limits.bytes, limits.remembered).rollouts:
            author = item.rollout.author
            account.heard[author] = max(item.arrival, account.heard.get(author, 0.0))
    except SapoError as error:
        account.damaged.append(str(error))
    _read_journal(account, paths.journal)
    for path in (home / "stderr", *sorted(paths.state.glob("*.log*"))):
        lines = path.read_text(errors="replace").splitlines()
        account.faults += [f"{path.name}: {line[:160]}" for line in lines if FAULTS.search(line)]
    return account


def _read_journal(account: Account, path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as journal:
        account.rounds = [round for (round,) in journal.execute("SELECT round FROM rounds ORDER BY round")]
        (oldest,) = journal.execute("SELECT min(round) FROM rollouts").fetchone()
        query = "SELECT round, json_extract(event, '$.external') FROM rounds WHERE round >= ?"
        account.kept = {round: (counted, []) for round, counted in journal.execute(query, (oldest,))}
        columns = "round, own, digest, sequence, author, time"
        for round, own, digest, sequence, author, made in journal.execute(f"SELECT {columns} FROM rollouts"):
            if own:
                account.sequences.append(sequence)
            else:
                account.kept[round][1].append(digest)
                account.heard[author] = max(made, account.heard.get(author, 0.0))


def check(directory: Path, write: Callable[..., None]) -> None:
    """Check all homes of a soak, whose records tell who lived there and how they ended; write what was found."""
    records = read_records(directory)
    (began,) = (record["time"] for record in records if record["kind"] == "begun")
    (ended,) = (record["time"] for record in records if record["kind"] == "ended")
    ends: dict[str, dict[int, tuple[int, int | None]]] = defaultdict(dict)
    gone = {record["seat"] for record in records if record["kind"] == "change" and record["what"] == "leave"}
    for record in records:
        if record["kind"] == "life":
            ends[record["seat"]][record["life"]] = (0, None)
        if record["kind"] == "death":
            ends[record["seat"]][record["life"]] = (record["asked"], record["code"])
    accounts = [read_account(directory / seat, list(lives.values())) for seat, lives in ends.items() if seat != "relay"]
    for account in accounts:
        trained_on = sum(len(digests) for _, digests in account.kept.values())
        found = account.problems()
        write("account", seat=account.name, rounds=len(account.rounds), external=trained_on, problems=found)
    since = ended - max(LAST_PART * (ended - began), LEAST_SECONDS)
    there = [account for account in accounts if account.name not in gone and _was_there(account, since, ended)]
    secrets = {account.name: Paths.default(directory / account.name).identity for account in there}
    names = {name: Identity(read_or_create_secret(secret)).peer_id for name, secret in secrets.items()}
    found = [*silent(there, names, since), *deaf(there, names, ended - DEAF_SECONDS)]
    write("arrivals", pairs=len(there) * (len(there) - 1), problems=found)


def _was_there(account: Account, since: float, ended: float) -> bool:
    """Whether a node took part before the last part, and again long enough before the end."""
    starts = [event["time"] for event in account.events if event["event"] == "node_started"]
    return bool(starts) and starts[0] < since and starts[-1] < ended - LEAST_SECONDS
