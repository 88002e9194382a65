"""Members of a swarm, each in its own process: several hosts in one event loop collapse.

`python -m tests.swarm.member.member_processes OPTIONS` runs a member: JSON lines bring commands and report events.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]


class MemberProcess:
    """A member in its own process. `said` has all lines that it printed.

    Args:
        options: member (a number, from which its key is made), and those of `SwarmConfig`.
    """

    def __init__(self, **options: Any) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.swarm.member.member_processes", json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment,
        )
        self.said: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.said.append(json.loads(line))
                self._changed.notify_all()

    def tell(self, command: str, **arguments: Any) -> None:
        """Send a command."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": command, **arguments}) + "\n")
        self.process.stdin.flush()

    def wait(self, condition: Callable[[list[dict[str, Any]]], Any], seconds: float = 15.0) -> Any:
        """Wait until a condition on `said` is true, and return its value.

        Raises:
            AssertionError: if that takes too long.
        """
        with self._changed:
            if self._changed.wait_for(lambda: condition(self.said), seconds):
                return condition(self.said)
        raise AssertionError(f"it did not happen within {seconds} s; the last it said: {self.said[-5:]}")

    def line(self, key: str, since: int = 0) -> Any:
        """The value of the first line with a key."""
        return self.wait(lambda said: [line for line in said[since:] if key in line])[0][key]

    @property
    def address(self) -> str:
        """Address at which others can dial it."""
        address: str = self.line("addresses")[0]
        return address

    @property
    def peer_id(self) -> str:
        """Its peer id."""
        return self.address.rsplit("/", 1)[1]

    def publish(self, count: int = 1, **options: int) -> set[int]:
        """Make it publish rollouts of `answers` answers of `size` bytes; returns their sequence numbers."""
        before = len(self.said)
        self.tell("publish", count=count, **options)
        return set(self.line("published", before))

    def received(self, author: MemberProcess) -> set[int]:
        """Sequence numbers of an author's rollouts that it accepted."""
        return {line["rollout"] for line in self.said if line.get("author") == author.peer_id}

    def gets(self, author: MemberProcess, sequences: set[int], seconds: float = 15.0) -> None:
        """Wait until it has accepted all of these rollouts of an author."""
        of = author.peer_id
        self.wait(lambda said: sequences <= {line["rollout"] for line in said if line.get("author") == of}, seconds)

    def status(self) -> dict[str, Any]:
        """Its status now."""
        before = len(self.said)
        self.tell("status")
        status: dict[str, Any] = self.line("status", before)
        return status

    def until(self, condition: Callable[[dict[str, Any]], Any], seconds: float = 15.0) -> dict[str, Any]:
        """Its status once a condition on it is true."""
        deadline = time.monotonic() + seconds
        while not condition(status := self.status()):
            assert time.monotonic() < deadline, f"it did not happen within {seconds} s: {status}"
            time.sleep(0.2)
        return status

    def freeze(self) -> None:
        """Suspend it."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Resume it."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it, without an orderly end."""
        self.process.kill()
        self.process.wait(5)

    def __enter__(self) -> MemberProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def main(options: dict[str, Any]) -> None:
    """Run a member until stdin ends."""
    from sapo_edge.rollout import Answer, Rollout
    from sapo_edge.swarm.joining.identity import Identity
    from sapo_edge.swarm.joining.membership import swarm_id
    from sapo_edge.swarm.judging.admission import Admission
    from sapo_edge.swarm.judging.reputation import Reputation
    from sapo_edge.swarm.member.config import SwarmConfig
    from sapo_edge.swarm.member.libp2p import Libp2pTransport
    from sapo_edge.tasks.manifest import load_manifest
    from sapo_edge.tasks.source import TaskSource

    lock = threading.Lock()

    def say(**line: Any) -> None:
        with lock:
            print(json.dumps(line), flush=True)

    def received(rollout: Rollout) -> None:
        say(rollout=rollout.sequence, author=rollout.author, size=rollout.size_bytes())

    member, index = options.pop("member"), options.pop("first", 0)
    source = TaskSource(load_manifest(options.pop("manifest", "starter")))
    identity = Identity(bytes([member]) * 32)
    if "psk" in options:
        options["psk"] = bytes.fromhex(options["psk"])
    options["bootstrap"] = tuple(options.get("bootstrap", ()))
    config = SwarmConfig(identity, source.manifest, listen="loopback", mdns=False, **options)
    swarm = swarm_id(bytes.fromhex(source.manifest.digest), options.get("psk"))
    admission = Admission(swarm, source, Reputation(), own=identity.peer_id)
    transport = Libp2pTransport(config, admission, lambda event: say(notice=getattr(event, "text", "")))
    transport.subscribe(received)
    while not transport.status().addresses:
        time.sleep(0.02)
    say(addresses=transport.status().addresses)

    def rollout(size: int, answers: int) -> Rollout:
        (task,), _ = source.training_tasks(member, 100 * index, 1)
        texts = tuple(Answer(os.urandom(size // 2).hex(), True) for _ in range(answers))
        return Rollout(task.ref, task.question, task.ground_truth, texts, identity.peer_id, 1, index, time.time())

    for line in sys.stdin:
        command = json.loads(line)
        started = time.monotonic()
        if command["do"] == "publish":
            rollouts = []
            for _ in range(command["count"]):
                rollouts.append(rollout(command.get("size", 64), command.get("answers", 4)))
                index += 1
            started = time.monotonic()
            transport.publish(rollouts)
            say(published=[item.sequence for item in rollouts], seconds=time.monotonic() - started)
        elif command["do"] == "status":
            say(status=transport.status().as_dict())
        elif command["do"] == "fall":
            _fall(transport, command["what"])
        elif command["do"] == "close":
            transport.close()
            say(closed=time.monotonic() - started)


def _fall(transport: Any, what: str) -> None:
    """Make a task of the host's nursery fail, or the event loop itself."""
    session = transport._session

    def fall(*_: object) -> None:
        raise LookupError("a fault in the background")

    if what == "loop":
        session._token.run_sync_soon(fall)
    else:
        session.gossip.forget_strangers = fall
        session._tidied = -1e9


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
