"""Members of a swarm, each in its own process: several hosts in one event loop collapse.

`python -m tests.swarm.member.member_processes OPTIONS` runs a member: JSON lines bring commands and report events.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.swarm.lines import PATIENCE, LineProcess, dial_from


class MemberProcess(LineProcess):
    """A member in its own process.

    Its options are those of `SwarmConfig`, and member (a number, from which its key is made) and source (the IP address
    that it connects from).
    """

    def __init__(self, namespace: str | None = None, *, fork: bool = True, **options: Any) -> None:
        module, text = "tests.swarm.member.member_processes", json.dumps(options)
        super().__init__("-m", module, text, namespace=namespace, fork=fork)

    def tell(self, command: str, **arguments: Any) -> None:
        self.write_line(json.dumps({"do": command, **arguments}))

    def line(self, key: str, since: int = 0) -> Any:
        """The value of the first line with a key."""
        return self.first(lambda line: key in line, since=since)[key]

    @property
    def address(self) -> str:
        return str(self.line("addresses")[0])

    @property
    def peer_id(self) -> str:
        return self.address.rsplit("/", 1)[1]

    def publish(self, count: int = 1, **options: int) -> set[int]:
        """Make it publish rollouts of `answers` answers of `size` bytes; returns their sequence numbers."""
        before = len(self.lines)
        self.tell("publish", count=count, **options)
        return set(self.line("published", before))

    def received(self, author: MemberProcess) -> set[int]:
        """Sequence numbers of an author's rollouts that it accepted."""
        return {line["rollout"] for line in self.lines if line.get("author") == author.peer_id}

    def gets(self, author: MemberProcess, sequences: set[int], seconds: float = PATIENCE) -> None:
        """Wait until it has accepted all of these rollouts of an author."""
        of = author.peer_id
        self.wait(lambda lines: sequences <= {line["rollout"] for line in lines if line.get("author") == of}, seconds)

    def status(self) -> dict[str, Any]:
        before = len(self.lines)
        self.tell("status")
        return dict(self.line("status", before))

    def until(self, condition: Callable[[dict[str, Any]], Any], seconds: float = PATIENCE) -> dict[str, Any]:
        """Its status once a condition on it is true."""
        deadline = time.monotonic() + seconds
        while not condition(status := self.status()):
            assert time.monotonic() < deadline, f"it did not happen within {seconds} s: {status}"
            time.sleep(0.2)
        return status

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)


def main(options: dict[str, Any]) -> None:
    """Run a member until stdin ends."""
    from sapo_edge.backends.machine.allocator import return_freed_memory
    from sapo_edge.rollout import Answer, Rollout
    from sapo_edge.tasks.manifest import load_manifest
    from sapo_edge.tasks.source import TaskSource
    from tests.swarm.member.members import make_member, peer

    lock = threading.Lock()

    def say(**line: Any) -> None:
        with lock:
            print(json.dumps(line), flush=True)

    def received(rollout: Rollout, neighbourhood: str) -> None:
        say(rollout=rollout.sequence, author=rollout.author, size=rollout.size_bytes(), neighbourhood=neighbourhood)

    member, index = options.pop("member"), options.pop("first", 0)
    store = Path(options.pop("store")) if "store" in options else None
    source = TaskSource(load_manifest(options.pop("manifest", "starter"), store))
    if "psk" in options:
        options["psk"] = bytes.fromhex(options["psk"])
    options["bootstrap"] = tuple(options.get("bootstrap", ()))
    if "source" in options:
        dial_from([options.pop("source")])
    # As the learner of each node does, without which freed memory stays in the heap.
    return_freed_memory()
    charged = _count_charges()
    transport = make_member(member, source, lambda event: say(notice=getattr(event, "text", "")), **options).start()
    transport.subscribe(received)
    while not transport.status().addresses:
        time.sleep(0.02)
    say(addresses=transport.status().addresses)

    def rollout(size: int, answers: int) -> Rollout:
        (task,), _ = source.training_tasks(member, 100 * index, 1)
        texts = tuple(Answer(os.urandom(size // 2).hex(), True) for _ in range(answers))
        return Rollout(task.ref, task.question, task.ground_truth, texts, peer(member), 1, index, time.time())

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
            say(status=transport.status().as_dict() | {"charged": dict(charged)})
        elif command["do"] == "fall":
            _fall(transport, command["what"])
        elif command["do"] == "close":
            transport.close()
            say(closed=time.monotonic() - started)


def _count_charges() -> Counter[str]:
    """Seconds of processor time that this node charges to each address from now on."""
    from sapo_edge.swarm.bucket import Shares
    from sapo_edge.swarm.host import work

    charged: Counter[str] = Counter()

    class Counted(Shares):
        def charge(self, name: str, tokens: float) -> None:
            charged[name] += tokens  # type: ignore[assignment] # not whole ones
            super().charge(name, tokens)

    work.Shares = Counted  # type: ignore[attr-defined] # for this process
    return charged


def _fall(member: Any, what: str) -> None:
    """Make a task of the host's nursery fail, or the event loop itself, when the member's status is next renewed."""
    import trio

    def fall(*_: object, **__: object) -> None:
        raise LookupError("a fault in the background")

    def snapshot(*_: object, **__: object) -> None:
        del member.snapshot
        if what == "task":
            fall()
        trio.lowlevel.current_trio_token().run_sync_soon(fall)

    member.snapshot = snapshot


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
