"""Nodes that only discover, and relays, each in its own process: several hosts in one event loop collapse."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from tests.swarm.lines import PATIENCE, Line, LineProcess

HERE = Path(__file__).parent


class Node(LineProcess):
    """A node; its options are those of `SwarmConfig`, and the manifest's name or file."""

    def __init__(self, number: int, *, namespace: str | None = None, fork: bool = True, **options: Any) -> None:
        options = {"secret": (bytes([number]) * 32).hex(), **options}
        super().__init__(str(HERE / "discovering.py"), json.dumps(options), namespace=namespace, fork=fork)

    def started(self) -> Self:
        first = self.first(lambda record: "peer_id" in record)
        self.peer_id, self.port = first["peer_id"], first["port"]
        return self

    def last(self, field: str) -> Any:
        """The newest value of a field; None before the first."""
        return next((record[field] for record in reversed(self.lines) if field in record), None)

    def wait_for_member(self, other: Node, seconds: float = PATIENCE, how: str | None = None, since: int = 0) -> Line:
        def is_there(record: Line) -> bool:
            is_member = other.peer_id in record.get("members", ())
            return is_member and (how is None or how in record["connected"][other.peer_id])

        return self.first(is_there, seconds, since)

    def echoes(self, other: Node, seconds: float = PATIENCE) -> bool:
        since = len(self.lines)
        self.write_line(other.peer_id)
        return bool(self.first(lambda record: "echo" in record, seconds, since)["echo"] == 3000)


class Relay(LineProcess):
    """A relay, on loopback or at port 4001 of a namespace; with DHT nodes as contacts, a public one."""

    def __init__(
        self, home: Path, namespace: str | None = None, *, psk: str = "", swarm: str = "",
        contacts: Sequence[tuple[str, int]] = (),
    ) -> None:  # fmt: skip
        code = (
            "import json, sys; from pathlib import Path; from sapo_edge.cli.relaying import run_relay;"
            "psk, swarm = bytes.fromhex(sys.argv[4]) or None, bytes.fromhex(sys.argv[5]);"
            "contacts = tuple(map(tuple, json.loads(sys.argv[6])));"
            "run_relay(Path(sys.argv[1]), port=int(sys.argv[2]), listen=sys.argv[3], psk=psk, swarm=swarm,"
            "public=bool(contacts), contacts=contacts, as_json=True)"
        )
        place = ("0", "loopback") if namespace is None else ("4001", "all")
        super().__init__("-c", code, str(home), *place, psk, swarm, json.dumps(contacts), namespace=namespace)

    def started(self) -> Self:
        self.addresses: list[str] = self.first(lambda record: "addresses" in record)["addresses"]
        return self
