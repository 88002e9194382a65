"""Nodes that only discover, and relays, each in its own process: several hosts in one event loop collapse."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

HERE = Path(__file__).parent
SWARM = "ab" * 32


class Process:
    """A running program that prints JSON lines."""

    def __init__(self, *command, namespace=None):
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
        self.records = []
        self._new = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            with self._new:
                self.records.append(json.loads(line))
                self._new.notify_all()

    def wait_for(self, matches, seconds=20.0, since=0):
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

    def tell(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def stop(self, kind=signal.SIGINT):
        if self.process.poll() is None:
            self.process.send_signal(kind)
        # A thread of the node waits for it.
        self.process.stdin.close()
        try:
            return self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait(5)
        finally:
            self._reader.join(5)
            self.process.stdout.close()


class Node(Process):
    """A node; see `discovering.py` for its options."""

    def __init__(self, number, *, namespace=None, **options):
        secret = bytes([number]) * 32
        options = {"secret": secret.hex(), "swarm": SWARM, **options}
        super().__init__(str(HERE / "discovering.py"), json.dumps(options), namespace=namespace)
        self.mark = 0

    def started(self):
        first = self.wait_for(lambda record: "peer_id" in record)
        self.peer_id, self.port = first["peer_id"], first["port"]
        return self

    @property
    def address(self):
        return f"/ip4/127.0.0.1/tcp/{self.port}/p2p/{self.peer_id}"

    def wait_for_member(self, other, seconds=20.0, how=None, since=0):
        return self.wait_for(
            lambda record: (
                other.peer_id in record.get("members", ())
                and (how is None or how in record["connected"][other.peer_id])
            ),
            seconds,
            since,
        )

    def echoes(self, other, seconds=15.0):
        since = len(self.records)
        self.tell(other.peer_id)
        return self.wait_for(lambda record: "echo" in record, seconds, since)["echo"] == 3000


class Relay(Process):
    """`sapo relay`."""

    def __init__(self, home, *, port=0, listen="loopback", psk=None, namespace=None):
        code = (
            "import sys; from pathlib import Path; from sapo_edge.cli.relay import run_relay;"
            "psk = bytes.fromhex(sys.argv[4]) or None;"
            "run_relay(Path(sys.argv[1]), port=int(sys.argv[2]), listen=sys.argv[3], psk=psk, as_json=True)"
        )
        super().__init__("-c", code, str(home), str(port), listen, psk or "", namespace=namespace)

    def started(self):
        self.addresses = self.wait_for(lambda record: "addresses" in record)["addresses"]
        return self
