"""The state of a swarm in progress on disk, so that a kill costs the rounds since it was saved.

Each state is a directory that appears under its name when it is complete; older ones are removed afterwards.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from sapo_edge.errors import StateError
from sapo_edge.experiment.results import EvaluationRecord, RoundRecord, decoder, reported
from sapo_edge.experiment.swarm import Swarm

_STATE = "state.json"


@dataclass(frozen=True, slots=True)
class _MemberState:
    """What a member knows besides its adapter and its pool."""

    cursor: int
    sequence: int
    received: int
    rates: dict[str, float]


@dataclass(frozen=True, slots=True)
class _State:
    finished: int
    members: tuple[_MemberState, ...]
    rounds: tuple[RoundRecord, ...]
    evaluations: tuple[EvaluationRecord, ...]


def can_resume(swarm: Swarm) -> bool:
    """Whether a swarm's whole state can be saved: attackers, and how members hold each other, are not."""
    arm = swarm.job.arm
    return not (arm.attack or arm.churn or arm.training.share)


def save(swarm: Swarm, directory: Path) -> None:
    """Save a swarm after a round. Only one process at a time may work with the directory.

    Raises:
        StateError: if it can't be written; an earlier state is untouched.
    """
    draft = directory / ".draft"
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
        state = decoder(_State).validate_json((path / _STATE).read_bytes(), strict=True)
        # Before the pools are read: the ages of their rollouts depend on it.
        swarm.round = swarm.finished = state.finished
        for member, saved in zip(swarm.members, state.members, strict=True):
            member.cursor, member.sequence, member.received = saved.cursor, saved.sequence, saved.received
            member.rates.update(saved.rates)
            member.shelf.replace(member.place, path / f"adapter-{member.number}")
            pool = path / f"pool-{member.number}"
            if not pool.is_file():
                raise ValueError("a pool is missing")
            member.pool.load(pool)
        swarm.rounds, swarm.evaluations = list(state.rounds), list(state.evaluations)
    except (OSError, ValueError, StateError) as error:
        raise StateError(f"the state of a swarm in {path} is damaged", "remove it: the swarm starts again") from error


def saved_rounds(directory: Path) -> int:
    """The last round of which a state is saved; 0 without any."""
    return max(map(_round_of, _states(directory)), default=0)


def _write(swarm: Swarm, directory: Path) -> None:
    members = []
    for member in swarm.members:
        shutil.copytree(member.shelf.place(member.place), directory / f"adapter-{member.number}")
        member.pool.save(directory / f"pool-{member.number}")
        members.append(_MemberState(member.cursor, member.sequence, member.received, member.rates))
    state = _State(swarm.finished, tuple(members), tuple(swarm.rounds), tuple(swarm.evaluations))
    (directory / _STATE).write_text(json.dumps(asdict(state)))


def _round_of(state: Path) -> int:
    return int(state.name.removeprefix("round-"))


def _states(directory: Path) -> list[Path]:
    return sorted(directory.glob("round-*"), key=_round_of)
