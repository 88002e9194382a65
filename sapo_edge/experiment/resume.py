"""The state of a swarm in progress on disk, so that a kill costs the rounds since it was saved.

Each state is a directory that appears under its name when it is complete; older ones are removed afterwards.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path

from sapo_edge.balance import Balance
from sapo_edge.errors import StateError
from sapo_edge.experiment.records import EvaluationRecord, read_round
from sapo_edge.experiment.swarm import Swarm
from sapo_edge.state.durable import reported

_STATE = "state.json"


def can_resume(swarm: Swarm) -> bool:
    """Whether a swarm's whole state can be saved: attackers, and rollouts of the past, live in memory only."""
    return not swarm.arm.attack and swarm.arm.training.origin != "past"


def save(swarm: Swarm, directory: Path) -> None:
    """Save a swarm after a round.

    Raises:
        StateError: if it can't be written; an earlier state is untouched.
    """
    with reported("write", directory):
        directory.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=directory))
        try:
            for shelf in {id(member.shelf): member.shelf for member in swarm.members}.values():
                shelf.flush()
            members = []
            for member in swarm.members:
                shutil.copytree(member.shelf.place(member.place), draft / f"adapter-{member.number}")
                member.pool.save(draft / f"pool-{member.number}")
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
            (draft / _STATE).write_text(json.dumps(state))
            os.rename(draft, directory / f"round-{swarm.finished}")
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
    for path in _states(directory)[:-1]:
        shutil.rmtree(path, ignore_errors=True)


def restore(swarm: Swarm, directory: Path) -> None:
    """Continue a new swarm from its newest state, if there is one.

    Raises:
        StateError: if the state is damaged.
    """
    states = _states(directory)
    if not states:
        return
    path = states[-1]
    try:
        state = json.loads((path / _STATE).read_text())
        rounds = [read_round(fields) for fields in state["rounds"]]
        evaluations = [EvaluationRecord(**fields) for fields in state["evaluations"]]
        swarm.set_round(state["finished"])
        for member, fields in zip(swarm.members, state["members"], strict=True):
            place = member.shelf.place(member.place)
            shutil.rmtree(place)
            shutil.copytree(path / f"adapter-{member.number}", place)
            member.shelf.forget()
            member.pool.load(path / f"pool-{member.number}")
            member.cursor, member.sequence = fields["cursor"], fields["sequence"]
            member.rates.update(fields["rates"])
            if fields["balance"] is not None:
                halvings, steady, compared, best = fields["balance"]
                external = swarm.arm.training.external
                member.balance = Balance(external, halvings, steady, compared, [bool(mark) for mark in best])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StateError(
            f"the state of a swarm in {path} is damaged", "remove that directory: the swarm starts again"
        ) from error
    swarm.rounds, swarm.evaluations = rounds, evaluations
    swarm.seconds = [(int(a), int(b), float(c)) for a, b, c in state["seconds"]]
    swarm.finished = state["finished"]


def _numbers(balance: Balance | None) -> list[object] | None:
    if balance is None:
        return None
    return [balance.halvings, balance.steady, balance.compared, [int(right) for right in balance.best]]


def remove(directory: Path) -> None:
    """Remove all states of a swarm."""
    shutil.rmtree(directory, ignore_errors=True)


def _states(directory: Path) -> list[Path]:
    """The complete states, oldest first."""
    return sorted(directory.glob("round-*"), key=lambda path: int(path.name.removeprefix("round-")))
