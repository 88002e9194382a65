"""An attacker of the soak in a process of its own: attacks one node after the other, under new names each time.

`python -m tests.soak.attacker OPTIONS` reads the nodes to attack from stdin, one JSON list of `[peer id, address]` a
line, and prints what it does as JSON lines.
"""

from __future__ import annotations

import json
import logging
import random
import sys
import time
from typing import Any

import trio

import tests.soak.abuse  # its attacks register themselves
from sapo_edge.swarm.tally import innermost
from tests.swarm.member.hostile import ATTACKS, Hostile

assert tests.soak.abuse

KINDS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "flooder": [
        ("identities", {"authors": 100, "connections": 6}),
        ("flood", {"seconds": 3.0}),
        ("long_answers", {"count": 4}),
        ("heavy_identify", {}),
    ],
    "garbler": [
        ("random_bytes", {"sockets": 16, "seconds": 8.0}),
        ("half_open", {"sockets": 40, "seconds": 15.0}),
        ("malformed_frames", {}),
        ("oversized", {}),
    ],
    "poisoner": [
        ("republish", {}),
        ("false_rollouts", {}),
        ("gossip_control", {}),
        ("false_addresses", {}),
        ("stalling_pulls", {"peers": 2, "announced": 128}),
        ("wrong_clocks", {}),
    ],
}
"""Attacks of each kind of attacker, in turn."""
LONGEST = 30.0
"""Seconds after which an attack is broken off; some never end by themselves."""


async def main(options: dict[str, Any]) -> None:
    """Attack until stdin ends.

    Args:
        options: kind (of `KINDS`), swarm (hexadecimal), tasks (of `Hostile`), number (of the process), pause (seconds
            between two attacks).
    """
    logging.getLogger("libp2p").setLevel(logging.CRITICAL)
    generator = random.Random(options["number"])
    targets: list[list[str]] = []
    made = 0

    async def attack() -> None:
        nonlocal made
        for turn in range(10**9):
            name, arguments = KINDS[options["kind"]][turn % len(KINDS[options["kind"]])]
            await trio.sleep(options["pause"])
            if not targets:
                continue
            peer_id, address = generator.choice(targets)
            # The number of names goes on, so that none is used twice.
            hostile = Hostile(address, bytes.fromhex(options["swarm"]), options["tasks"], options["number"], made=made)
            if name == "false_rollouts":
                arguments = {"honest": peer_id}
            started, result = time.time(), "ok"
            with trio.move_on_after(LONGEST) as scope:
                try:
                    await ATTACKS[name](hostile, **arguments)
                except Exception as error:  # noqa: BLE001 - nodes end and refuse in many ways, which is what they should
                    result = f"{type(innermost(error)).__name__}: {innermost(error)}"[:160]
            if scope.cancelled_caught:
                result = "broken off"
            made = hostile.made
            line = {"attack": name, "on": peer_id, "begun": started, "seconds": time.time() - started, "result": result}
            print(json.dumps(line), flush=True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(attack)
        while line := await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
            targets[:] = json.loads(line)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, json.loads(sys.argv[1]))
