"""What the homes of a soak account for, once nobody lives there any more."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from sapo_edge.state.paths import Paths
from sapo_edge.state.secret import read_or_create_secret
from sapo_edge.swarm.joining.identity import Identity
from tests.soak.accounts import Account, deaf, read_account, silent
from tests.soak.records import read_records
from tests.soak.seats import read_events

LAST_PART, LEAST_SECONDS = 1 / 4, 90.0
"""Last part of the time, and its least length, in which each node has to hear from each other one."""
DEAF_SECONDS = 180.0
"""Before the end, in which each node has to hear from some other one: a few rounds where little processor is left."""


def check(directory: Path, write: Callable[..., None]) -> None:
    """Check all homes of a soak.

    Args:
        directory: of the soak; its records tell who lived there, and how they ended.
        write: receives the kind and the fields of each new record.
    """
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
    accounts = [_read(directory / seat, list(lives.values())) for seat, lives in ends.items() if seat != "relay"]
    for account in accounts:
        trained_on = sum(len(digests) for _, digests in account.kept.values())
        write(
            "account", seat=account.name, rounds=len(account.rounds), external=trained_on, problems=account.problems()
        )
    since = ended - max(LAST_PART * (ended - began), LEAST_SECONDS)
    there = [account for account in accounts if account.name not in gone and _was_there(account, since, ended)]
    names = {account.name: _peer_id(directory / account.name) for account in there}
    write(
        "arrivals",
        pairs=len(there) * (len(there) - 1),
        problems=[*silent(there, names, since), *deaf(there, names, ended - DEAF_SECONDS)],
    )


def _was_there(account: Account, since: float, ended: float) -> bool:
    """Whether a node took part before the last part, and again long enough before the end."""
    starts = [event["time"] for event in account.events if event["event"] == "node_started"]
    return bool(starts) and starts[0] < since and starts[-1] < ended - LEAST_SECONDS


def _read(home: Path, ends: list[tuple[int, int | None]]) -> Account:
    events = read_events(home / "events.jsonl", ("node_started", "round", "checkpoint", "notice"))
    logs = sorted(Paths.default(home).state.glob("*.log*"))
    return read_account(home.name, home, events, ends, [home / "stderr", *logs])


def _peer_id(home: Path) -> str:
    return Identity(read_or_create_secret(Paths.default(home).identity)).peer_id
