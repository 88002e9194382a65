"""A signed rollout with any content passes admission, the check of its task, the pool and the scoring, or is rejected.

The bytes are the body of a record, which is signed by its author here: otherwise no changed one would come further than
its signature. They also arrive as they are, as a message. Nothing is forwarded or kept that is not signed and of this
swarm, and nobody but its author is blamed for a rollout that is signed.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from sapo_edge.pool.pool import Pool, PoolOutcome
from sapo_edge.rollout import Answer, Rollout
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.judging.admission import Admission
from sapo_edge.swarm.judging.external import ExternalScorer
from sapo_edge.swarm.judging.reputation import Reputation
from sapo_edge.swarm.wire.codec import WireError
from sapo_edge.swarm.wire.messages import encode_message
from sapo_edge.swarm.wire.record import CONTEXT, RawRecord, encode_body, verify_record
from sapo_edge.tasks.manifest import load_manifest
from sapo_edge.tasks.source import TaskSource
from tests.fuzzing.target import KIB, MIB, Target

AUTHOR = Identity(bytes(range(32)))
SWARM = bytes(32)
TIME = 1_790_000_000.0


@cache
def source() -> TaskSource:
    """The tasks of the manifest that nodes have by default; its held-out questions are generated once."""
    tasks = TaskSource(load_manifest("starter"))
    tasks.held_out("validation", 0)
    return tasks


def check(data: bytes) -> None:
    """All that a node does with a rollout before it trains on it."""
    admission = Admission(SWARM, source(), Reputation(lambda: TIME), lambda: TIME, lambda: 0.0, own="own")
    result = admission.check_message(data, "neighbour", AUTHOR.peer_id)
    assert all(verify_record(signed) for signed in result.accepted)
    record = RawRecord(data, AUTHOR.sign(CONTEXT + data))
    try:
        message = encode_message(SWARM, [record], [])
    except WireError:
        return
    result = admission.check_message(message, "other", AUTHOR.peer_id)
    assert result.may_forward == bool(result.accepted)
    if not result.accepted:
        assert result.rejections
        return
    (signed,) = result.accepted
    assert signed.swarm == SWARM and signed.rollout.author == AUTHOR.peer_id and verify_record(signed)
    reason = admission.check_task(signed)
    assert not admission.reputation.is_ignored("other")
    pool = Pool("own")
    assert pool.add(signed.rollout, "private") is PoolOutcome.ADDED and pool.bytes == signed.rollout.size_bytes()
    scored = ExternalScorer(source(), lambda text, ended: Answer(text, ended, ()))(signed.rollout, 32)
    assert (scored is None) == (reason is not None)
    if scored is not None:
        assert len(scored.rewards) == len(signed.rollout.answers) and {*scored.rewards} <= {0.0, 1.0}
    pool.take(pool.candidates())
    assert pool.add(signed.rollout) is not PoolOutcome.ADDED and len(pool) == 0 == pool.bytes
    assert source().verifier_errors == 0


def seeds() -> list[bytes]:
    bodies = []
    for task in source().training_tasks(5, 0, 12)[0]:
        answers = (Answer(f"<answer>{task.ground_truth}</answer>", True), Answer("I think", False))
        rollout = Rollout(task.ref, task.question, task.ground_truth, answers, AUTHOR.peer_id, 1, 1, TIME)
        bodies.append(encode_body(rollout, SWARM))
    bodies.append(encode_body(replace(rollout, ground_truth="lie"), SWARM))
    record = RawRecord(bodies[0], AUTHOR.sign(CONTEXT + bodies[0]))
    return [*bodies, encode_message(SWARM, [record], [bytes(32)])]


TARGET = Target(check, seeds, 4 * KIB, MIB, 256, short=60)
