"""A peer written with js-libp2p from docs/protocol.md takes part in a swarm."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sapo_edge.rollout import Answer, Rollout
from sapo_edge.swarm.config import SwarmConfig
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.judging.admission import Admission
from sapo_edge.swarm.judging.reputation import Reputation
from sapo_edge.swarm.member.libp2p import Libp2pTransport
from sapo_edge.tasks.manifest import load_manifest
from sapo_edge.tasks.source import TaskSource
from tests.swarm.wire.make_vectors import DIRECTORY, rollout_fields

INTEROP = Path(__file__).parents[2] / "interop"
NODE_VERSION = 18
US, THEM = Identity(b"\x15" * 32), Identity(b"\x16" * 32)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def node() -> str:
    """The program `node`."""
    path = shutil.which("node")
    if path is None:
        pytest.skip("node is not installed")
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(version.removeprefix("v").split(".")[0]) < NODE_VERSION:
        pytest.skip(f"node {version} is older than {NODE_VERSION}, which the peer needs")
    return path


@pytest.fixture(scope="module")
def modules(node: str) -> None:
    """Installs the peer's dependencies once, exactly those of package-lock.json."""
    installed, wanted = INTEROP / "node_modules" / ".package-lock.json", INTEROP / "package-lock.json"
    if installed.exists() and installed.stat().st_mtime >= wanted.stat().st_mtime:
        return
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    process = subprocess.run(command, cwd=INTEROP, capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stderr


class Peer:
    """The peer as a process. `lines` holds everything that it printed."""

    def __init__(self, node: str, options: dict[str, Any]) -> None:
        self.process = subprocess.Popen(
            [node, "peer.mjs", json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=INTEROP,
        )
        self.lines: list[dict[str, Any]] = []
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(json.loads(line))

    def all(self, key: str) -> list[dict[str, Any]]:
        """The lines that have a key."""
        return [line for line in self.lines if key in line]

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(5)


@contextmanager
def member(source: TaskSource, inbox: list[Rollout]) -> Iterator[Libp2pTransport]:
    """A node's transport."""
    config = SwarmConfig(US, source.manifest, listen="loopback", mdns=False)
    admission = Admission(bytes.fromhex(source.manifest.digest), source, Reputation(), own=US.peer_id)
    transport = Libp2pTransport(config, admission, lambda event: None)
    transport.subscribe(lambda rollout, _: inbox.append(rollout))
    try:
        eventually(lambda: bool(transport.status().addresses))
        yield transport
    finally:
        transport.close()


def eventually(condition: Callable[[], bool], peer: Peer | None = None, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        lines = peer.lines if peer else []
        assert peer is None or peer.process.poll() is None, f"the peer ended after {lines}"
        assert time.monotonic() < deadline, f"it did not happen within {seconds:g} s; the peer printed {lines}"
        time.sleep(0.05)


def rollout(source: TaskSource, author: Identity, number: int, size: int = 20, answers: int = 4) -> Rollout:
    """A rollout of a true task, with answers of `size` bytes that hardly compress."""
    (task,), _ = source.training_tasks(number, 0, 1)
    drawn = random.Random(number)
    texts = [f"grün {drawn.randbytes(size // 2).hex()}" for _ in range(answers)]
    contents = tuple(Answer(text, position % 2 == 0) for position, text in enumerate(texts))
    return Rollout(task.ref, task.question, task.ground_truth, contents, author.peer_id, 3, number, time.time())


def large(source: TaskSource, author: Identity, number: int) -> Rollout:
    """A rollout that does not fit in a message."""
    return rollout(source, author, number, size=8000, answers=16)


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
    ours = {"recent": rollout(source, US, 1), "gossip": rollout(source, US, 2), "pull": large(source, US, 3)}
    theirs = {"gossip": rollout(source, THEM, 4), "pull": large(source, THEM, 5)}
    with member(source, inbox) as transport:
        transport.publish([ours["recent"]])
        options = {
            "address": transport.status().addresses[0],
            "secret": THEM.secret.hex(),
            "manifest": source.manifest.digest,
            "publish": [rollout_fields(theirs["gossip"])],
            "announce": [rollout_fields(theirs["pull"])],
        }
        with Peer(node, options) as peer:
            eventually(lambda: bool(peer.all("joined")), peer)
            transport.publish([ours["gossip"], ours["pull"]])
            eventually(lambda: len(inbox) == 2 and len(peer.all("rollout")) == 3, peer)
            eventually(lambda: bool(transport.status().peers), peer)
            status = transport.status()

    # The peer received and verified this node's rollouts in each of the three ways.
    received = {line["way"]: line for line in peer.all("rollout")}
    assert {way: line["rollout"] for way, line in received.items()} == {
        way: rollout_fields(own) for way, own in ours.items()
    }
    assert all(line["verified"] and line["from"] == US.peer_id for line in received.values())
    assert not peer.all("refused") and not peer.all("error")
    # This node accepted the peer's rollouts and rejected nothing.
    assert {rollout.sequence: rollout for rollout in inbox} == {sent.sequence: sent for sent in theirs.values()}
    (published,) = peer.all("published")
    assert sorted(rollout.id for rollout in inbox) == sorted(published["published"] + published["announced"])
    assert not status.rejections and not status.faults
    # Both sides derive the same peer id from the secret, and the same digest from the manifest.
    assert peer.lines[0]["peer_id"] == THEM.peer_id == status.peers[0].peer_id
    assert peer.all("manifest")[0]["manifest"] == source.manifest.digest
