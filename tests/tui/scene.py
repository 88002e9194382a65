"""The terminal app on a scripted host and node, for pictures: `python -m tests.tui.scene HOME [fresh]`.

"fresh" is a machine without a consent.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from pathlib import Path

from sapo_edge import events
from sapo_edge.state.paths import Paths
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.status import Direction, PeerInfo
from sapo_edge.tui.app import SapoApp
from sapo_edge.tui.node import clock as phases
from tests.tui import fake_node
from tests.tui.fake_launcher import FakeChat, FakeLauncher
from tests.tui.fake_node import BEGAN, FRIEND, KEPT_FROM, ROUND_SECONDS, ROUNDS, STRANGER, evaluated, finished

NOW = BEGAN + ROUND_SECONDS * ROUNDS + 20
"""The current time in the pictures."""
ANSWERS = (
    "To add 17 and 25, add the tens and the ones: 10 + 20 = 30, and 7 + 5 = 13. So the sum is 43.",
    "17 plus 25 makes 42.\n<answer>42</answer>",
)
"""Answers of base model and adapter."""


def peer(number: int, address: str, direction: Direction, **more: object) -> PeerInfo:
    """An honest peer."""
    peer_id = {1: FRIEND, 2: STRANGER}.get(number) or Identity.from_secret(
        hashlib.sha256(bytes([number])).digest()
    ).peer_id
    fields: dict[str, object] = {
        "since": BEGAN + 300 * number, "mesh": True, "subscribed": True, "sent": 350_000 // number,
        "received": 400_000 // number, "rejected": {}, "score": 1.0 / number,
    }  # fmt: skip
    return PeerInfo(
        peer_id, fake_node.readable_name(peer_id), f"{address}/p2p/{peer_id}", direction, *(fields | more).values()
    )  # type: ignore[arg-type]


PEERS = (
    peer(1, "/ip4/192.0.2.17/tcp/4001", "out"),
    peer(2, "/ip6/2001:db8::1f:3/tcp/44321", "in", rejected={"rate": 3}),
    peer(3, "/ip4/192.168.1.23/tcp/40123", "out"),
    peer(4, "/ip4/198.51.100.7/tcp/4001/p2p/12D3KooWRelay/p2p-circuit", "out", mesh=False),
    peer(5, "/ip4/203.0.113.99/tcp/51413", "in"),
)


def log() -> str:
    """The log of the node."""

    def record(seconds: float, text: str, level: str = "INFO", source: str = "sapo_edge.node") -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(BEGAN + seconds))
        return f"{stamp} {level} MainThread {source}: {text}\n"

    def logged(event: events.Event) -> str:
        return record(event.time - BEGAN, events.to_json(event))

    parts = [logged(events.NodeStarted(model=fake_node.MODEL, backend="llama_cpp", time=BEGAN))]
    for number in range(1, ROUNDS + 1):
        parts.append(logged(finished(number)))
        if number % 10 == 0:
            parts.append(logged(evaluated(number)))
            saved = {"path": f"/home/somebody/checkpoints/round-{number:06d}", "best": number == 30}
            parts.append(logged(events.CheckpointSaved(round=number, time=evaluated(number).time + 1, **saved)))  # type: ignore[arg-type]
        if number == 34:
            parts.append(record(60 * number + 9, "pull: TimeoutError: no answer", "WARNING", "sapo_edge.swarm.tally"))
    return "".join(parts)


def prepare_chat(chat: FakeChat) -> None:
    """Let a chat answer sensibly."""
    chat.answers = ANSWERS


def main(home: str, *how: str) -> None:
    """Run the app."""
    os.environ["TZ"] = "UTC"
    time.tzset()
    time.time = lambda: NOW
    phases.RoundClock.left = lambda clock: 4.0  # type: ignore[method-assign]
    fake_node.PEERS = PEERS
    fake_node.HOSTILE_PLACE = (KEPT_FROM - 1, 0)
    Paths.default(Path(home)).create()
    Paths.default(Path(home)).log.write_text(log())
    fresh = "fresh" in how
    launcher = FakeLauncher(Path(home), agreed=not fresh, running=not fresh)
    launcher.prepare = prepare_chat
    if launcher.node is not None:
        swarm = launcher.node.status_now["swarm"] | {"rejections": {"rate": 3}, "clock_ahead": 0.0, "time": NOW}
        launcher.node.tell(rejections={"rate": 3}, swarm=swarm)
    try:
        SapoApp(launcher).run()
    finally:
        launcher.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
