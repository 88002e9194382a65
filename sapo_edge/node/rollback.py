"""Returning to an earlier checkpoint: which one, and what a stopped node's state directory needs beforehand."""

from __future__ import annotations

from collections.abc import Sequence

from sapo_edge.errors import CheckpointError, StateError
from sapo_edge.pool.pool import Pool
from sapo_edge.state.checkpoint import Checkpoint
from sapo_edge.state.checkpoints import Checkpoints
from sapo_edge.state.store import Store
from sapo_edge.swarm.joining.identity import Identity


def find_target(checkpoints: Checkpoints, round: int | None) -> Checkpoint:
    """The checkpoint of a round, or the best one, verified; a CheckpointError if there is none, or it is damaged."""
    kept = checkpoints.rounds()
    if not kept:
        raise CheckpointError("there is no checkpoint yet", "train first with `sapo run`")
    if round is None:
        best = checkpoints.best()
        if best is None:
            raise CheckpointError("no checkpoint was evaluated yet", f"name one: --round {_listed(kept)}")
        return best
    if round not in kept:
        raise CheckpointError(f"there is no checkpoint of round {round}", f"give --round {_listed(kept)}")
    return checkpoints.load(round)


def remember_used(store: Store) -> None:
    """Keep in the saved pool which external rollouts were trained on: the journal forgets those of later rounds.

    For a state directory without a running node.
    """
    pool = Pool(Identity(store.secret).peer_id)
    used = store.journal.used_external(pool.limits.remembered)
    if not used:
        return
    try:
        pool.load(store.run.pool)
    except StateError as error:
        # As at a start of the node: the pool fills again.
        store.notices.append(str(error))
    pool.mark_used(used)
    pool.save(store.run.pool)


def _listed(rounds: Sequence[int]) -> str:
    """Rounds as "38, 39 or 40"."""
    *others, last = map(str, rounds)
    return f"{', '.join(others)} or {last}" if others else last
