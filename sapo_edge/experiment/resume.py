"""The state of a swarm in progress on disk, so that a kill costs the rounds since it was saved.

Each state is a directory that appears under its name when it is complete; older ones are removed afterwards.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path

from sapo_edge.balance import Balance
from sapo_edge.errors import StateError
from sapo_edge.experiment.files import reported
from sapo_edge.experiment.member import Member
from sapo_edge.experiment.records import EvaluationRecord, read_round
from sapo_edge.experiment.swarm import Swarm

_STATE = "state.json"
_DRAFT = ".draft"


def can_resume(swarm: Swarm) -> bool:
    """Whether a swarm's whole state can be saved: attackers live in memory only."""
    return not swarm.arm.attack


def save(swarm: Swarm, directory: Path) -> None:
    """Save a swarm after a round. Only one process at a time may work with the directory.

    Raises:
        StateError: if it can't be written; an earlier state is untouched.
    """
    draft = directory / _DRAFT
    with reported("write", directory):
        # A kill may have left one.
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        try:
            _write(swarm, draft)
            os.rename(draft, directory / f"round-{swarm.finished}")
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
    for path in _states(directory)[:-1]:
        shutil.rmtree(path, ignore_errors=True)


def restore(swarm: Swarm, directory: Path) -> None:
    """Continue a new swarm from its newest state, if there is one.

    Raises:
        StateError: if the state is damaged; the swarm can't be used then.
    """
    states = _states(directory)
    if not states:
        return
    path = states[-1]
    try:
        state = json.loads((path / _STATE).read_bytes())
        # Before the pools are read: the ages of their rollouts depend on it.
        swarm.set_round(state["finished"])
        for member, fields in zip(swarm.members, state["members"], strict=True):
            member.cursor, member.sequence = fields["cursor"], fields["sequence"]
            member.rates.update(fields["rates"])
            member.balance = _balance(member, fields["balance"])
            _read(member, path)
        swarm.rounds = [read_round(fields) for fields in state["rounds"]]
        swarm.evaluations = [EvaluationRecord(**fields) for fields in state["evaluations"]]
        swarm.seconds = [(int(round), int(node), float(seconds)) for round, node, seconds in state["seconds"]]
        swarm.finished = state["finished"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StateError) as error:
        raise StateError(f"the state of a swarm in {path} is damaged", "remove it: the swarm starts again") from error


def remove(directory: Path) -> None:
    """Remove all states of a swarm."""
    shutil.rmtree(directory, ignore_errors=True)


def _write(swarm: Swarm, directory: Path) -> None:
    for shelf in {id(member.shelf): member.shelf for member in swarm.members}.values():
        shelf.flush()
    members = []
    for member in swarm.members:
        shutil.copytree(member.shelf.place(member.place), directory / f"adapter-{member.number}")
        member.pool.save(directory / f"pool-{member.number}")
        members.append(
            {
                "cursor": member.cursor,
                "sequence": member.sequence,
                "rates": member.rates,
                "balance": _numbers(member.balance),
            }
        )
    state = {
        "finished": swarm.finished,
        "members": members,
        "rounds": [asdict(record) for record in swarm.rounds],
        "evaluations": [asdict(record) for record in swarm.evaluations],
        "seconds": swarm.seconds,
    }
    (directory / _STATE).write_text(json.dumps(state))


def _read(member: Member, directory: Path) -> None:
    """Read a member's adapter and pool."""
    place = member.shelf.place(member.place)
    shutil.rmtree(place)
    shutil.copytree(directory / f"adapter-{member.number}", place)
    member.shelf.forget()
    # Checks the files.
    member.shelf.take(member.place)
    pool = directory / f"pool-{member.number}"
    if not pool.is_file():
        raise ValueError("a pool is missing")
    member.pool.load(pool)


def _numbers(balance: Balance | None) -> list[object] | None:
    return None if balance is None else [balance.halvings, balance.steady, balance.compared, balance.best]


def _balance(member: Member, numbers: list[object] | None) -> Balance | None:
    if member.balance is None or numbers is None:
        return None
    halvings, steady, compared, best = numbers
    return Balance(member.balance.external, halvings, steady, compared, best)  # type: ignore[arg-type]


def _states(directory: Path) -> list[Path]:
    """The complete states, oldest first."""
    return sorted(directory.glob("round-*"), key=lambda path: int(path.name.removeprefix("round-")))
