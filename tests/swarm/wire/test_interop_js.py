"""A peer written with js-libp2p from docs/network.md takes part in a swarm."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import time
from typing import Any

import pytest

from sapo_edge.rollout import Answer, Rollout
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.tasks.manifest import load_manifest
from sapo_edge.tasks.source import TaskSource
from tests.swarm.javascript import INTEROP
from tests.swarm.lines import LineProcess
from tests.swarm.member.members import make_member
from tests.swarm.wire.make_vectors import DIRECTORY, rollout_fields
from tests.waiting import wait_until

NUMBER = 0x15
US, THEM = Identity(bytes([NUMBER]) * 32), Identity(b"\x16" * 32)
LARGE = {"size": 8000, "answers": 16}
"""A rollout of this size is announced and pulled."""

pytestmark = pytest.mark.slow


def rollout(source: TaskSource, author: Identity, number: int, size: int = 20, answers: int = 4) -> Rollout:
    """A rollout of a true task, with answers of `size` bytes that hardly compress."""
    (task,), _ = source.training_tasks(number, 0, 1)
    drawn = random.Random(number)
    texts = [f"grün {drawn.randbytes(size // 2).hex()}" for _ in range(answers)]
    contents = tuple(Answer(text, position % 2 == 0) for position, text in enumerate(texts))
    return Rollout(task.ref, task.question, task.ground_truth, contents, author.peer_id, 3, number, time.time())


def test_another_implementation_agrees_with_the_vectors(node: str) -> None:
    process = subprocess.run([node, "vectors.mjs", DIRECTORY], cwd=INTEROP, capture_output=True, text=True, timeout=30)
    assert process.returncode == 0, process.stderr
    files = {path.stem: len(json.loads(path.read_text("ascii"))) for path in DIRECTORY.iterdir()}
    # It takes no codes; tests/swarm/codes/test_code.py computes theirs another way.
    del files["codes"]
    assert json.loads(process.stdout) == {"checked": files}


@pytest.mark.usefixtures("modules")
def test_a_js_peer_receives_verifies_and_sends(node: str) -> None:
    source = TaskSource(load_manifest("starter"))
    inbox: list[Rollout] = []
    ours = {"recent": rollout(source, US, 1), "gossip": rollout(source, US, 2), "pull": rollout(source, US, 3, **LARGE)}
    theirs = {"gossip": rollout(source, THEM, 4), "pull": rollout(source, THEM, 5, **LARGE)}
    with contextlib.closing(make_member(NUMBER, source).start()) as transport:
        transport.subscribe(lambda rollout, _: inbox.append(rollout))
        wait_until(lambda: transport.status().addresses)
        transport.publish([ours["recent"]])
        options = {
            "address": transport.status().addresses[0], "secret": THEM.secret.hex(), "manifest": source.manifest.digest,
            "publish": [rollout_fields(theirs["gossip"])], "announce": [rollout_fields(theirs["pull"])],
        }  # fmt: skip
        with LineProcess("peer.mjs", json.dumps(options), program=node, directory=INTEROP) as peer:

            def said(key: str) -> list[dict[str, Any]]:
                return [line for line in peer.lines if key in line]

            peer.first(lambda line: "joined" in line)
            transport.publish([ours["gossip"], ours["pull"]])
            wait_until(lambda: len(inbox) == 2 and len(said("rollout")) == 3)
            wait_until(lambda: transport.status().peers)
            status = transport.status()
    # The peer received and verified this node's rollouts in each of the three ways.
    received = {line["way"]: line for line in said("rollout")}
    shown = {way: rollout_fields(own) for way, own in ours.items()}
    assert {way: line["rollout"] for way, line in received.items()} == shown
    assert all(line["verified"] and line["from"] == US.peer_id for line in received.values())
    assert not said("refused") and not said("error")
    # This node accepted the peer's rollouts and rejected nothing.
    assert {rollout.sequence: rollout for rollout in inbox} == {sent.sequence: sent for sent in theirs.values()}
    (published,) = said("published")
    assert sorted(rollout.id for rollout in inbox) == sorted(published["published"] + published["announced"])
    assert not status.rejections and not status.faults
    # Both sides derive the same peer id from the secret, and the same digest from the manifest.
    assert peer.lines[0]["peer_id"] == THEM.peer_id == status.peers[0].peer_id
    assert said("manifest")[0]["manifest"] == source.manifest.digest
