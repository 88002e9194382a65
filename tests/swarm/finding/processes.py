"""Nodes that only discover, and relays, each in its own process: several hosts in one event loop collapse."""

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
from typing import Any, Self

HERE = Path(__file__).parent
SWARM = "ab" * 32

# For what happens in a second or two on an idle machine. Nothing here waits longer than its event.
PATIENCE = 60.0

Record = dict[str, Any]


class Process:
    """A running program that prints JSON lines."""

    def __init__(self, *command: str, namespace: str | None = None) -> None:
        prefix = ["ip", "netns", "exec", namespace] if namespace else []
        path = os.pathsep.join(filter(None, [str(HERE.parents[2]), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        self.process = subprocess.Popen(
            [*prefix, sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self._stdin, self._stdout = self.process.stdin, self.process.stdout
        self.records: list[Record] = []
        self._new = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._stdout:
            with self._new:
                self.records.append(json.loads(line))
                self._new.notify_all()

    def wait_for(self, matches: Callable[[Record], Any], seconds: float = PATIENCE, since: int = 0) -> Record:
        """The first record from `since` on that `matches`."""
        deadline = time.monotonic() + seconds
        with self._new:
            while True:
                for record in self.records[since:]:
                    if matches(record):
                        return record
                left = deadline - time.monotonic()
                assert left > 0, f"not within {seconds} s; last: {self.records[-2:]}"
                self._new.wait(min(left, 0.5))

    def write_line(self, line: str) -> None:
        self._stdin.write(line + "\n")
        self._stdin.flush()

    def stop(self, kind: signal.Signals = signal.SIGINT) -> int:
        if self.process.poll() is None:
            self.process.send_signal(kind)
        # A thread of the node waits for it.
        self._stdin.close()
        try:
            return self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait(5)
        finally:
            self._reader.join(5)
            self._stdout.close()


class Node(Process):
    """A node; see `discovering.py` for its options."""

    def __init__(self, number: int, *, namespace: str | None = None, **options: Any) -> None:
        secret = bytes([number]) * 32
        options = {"secret": secret.hex(), "swarm": SWARM, **options}
        super().__init__(str(HERE / "discovering.py"), json.dumps(options), namespace=namespace)

    def started(self) -> Self:
        first = self.wait_for(lambda record: "peer_id" in record)
        self.peer_id, self.port = first["peer_id"], first["port"]
        return self

    @property
    def address(self) -> str:
        return f"/ip4/127.0.0.1/tcp/{self.port}/p2p/{self.peer_id}"

    def wait_for_member(self, other: Node, seconds: float = PATIENCE, how: str | None = None, since: int = 0) -> Record:
        return self.wait_for(
            lambda record: (
                other.peer_id in record.get("members", ())
                and (how is None or how in record["connected"][other.peer_id])
            ),
            seconds,
            since,
        )

    def echoes(self, other: Node, seconds: float = PATIENCE) -> bool:
        since = len(self.records)
        self.write_line(other.peer_id)
        return bool(self.wait_for(lambda record: "echo" in record, seconds, since)["echo"] == 3000)


class Relay(Process):
    """`sapo relay`."""

    def __init__(
        self,
        home: Path,
        *,
        port: int = 0,
        listen: str = "loopback",
        psk: str | None = None,
        namespace: str | None = None,
    ) -> None:
        code = (
            "import sys; from pathlib import Path; from sapo_edge.cli.relay import run_relay;"
            "psk = bytes.fromhex(sys.argv[4]) or None;"
            "run_relay(Path(sys.argv[1]), port=int(sys.argv[2]), listen=sys.argv[3], psk=psk, as_json=True)"
        )
        super().__init__("-c", code, str(home), str(port), listen, psk or "", namespace=namespace)

    def started(self) -> Self:
        self.addresses: list[str] = self.wait_for(lambda record: "addresses" in record)["addresses"]
        return self
