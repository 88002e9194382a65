"""One node that only discovers, in its own process: `discovering.py '{"secret": "aa...", ...}'`.

Prints its address, then its connections whenever they change. A peer id on stdin makes it send that peer an echo.
"""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import trio

from sapo_edge.events import to_json
from sapo_edge.swarm.addresses import direct_address, find_local_networks
from sapo_edge.swarm.config import SwarmConfig
from sapo_edge.swarm.finding.circuit import FAILED, is_relayed
from sapo_edge.swarm.finding.discovery import Discovery
from sapo_edge.swarm.host.host import listen_port, make_host, running
from sapo_edge.swarm.host.traffic import Meter
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.joining.invite import choose_addresses
from sapo_edge.swarm.router.ports import Ports
from sapo_edge.swarm.tally import Tally
from sapo_edge.tasks.manifest import load_manifest

ECHO = "/test/echo/1.0.0"


def say(**record: Any) -> None:
    print(json.dumps(record), flush=True)


async def echo(stream: Any) -> None:
    while data := await stream.read(4096):
        await stream.write(data)


def addresses(host: Any, discovery: Discovery) -> tuple[str, ...]:
    port, own = listen_port(host), str(host.get_id())
    local = [direct_address(ip, port, own) for ip in find_local_networks().listen_addresses]
    return choose_addresses(str(address) for address in (*discovery.invited(), *local, *discovery.relays.addresses()))


async def report(host: Any, discovery: Discovery, tally: Tally) -> None:
    before = None
    while True:
        connections = {
            str(peer): sorted("relayed" if is_relayed(one) else "direct" for one in many)
            for peer, many in host.get_network().connections.items()
        }
        now = {
            "connected": connections, "members": sorted(discovery.dialler.members),
            "known": sorted(known.peer_id for known in discovery.book.peers.values() if known.last_connected),
            "invited": [str(address) for address in discovery.invited()], "addresses": addresses(host, discovery),
            "circuits": [str(address) for address in discovery.relays.addresses()],
            "reached": discovery.outside.is_reachable, "counts": tally.counts, "faults": tally.faults,
        }  # fmt: skip
        if now != before:
            say(**now)
        before = now
        await trio.sleep(0.1)


async def obey(host: Any) -> None:
    from libp2p.peer.id import ID

    lines = trio.wrap_file(sys.stdin)
    async for line in lines:
        got = b""
        try:
            stream = await host.new_stream(ID.from_string(line.strip()), [ECHO])
            await stream.write(b"x" * 3000)
            while len(got) < 3000 and (data := await stream.read(4096)):
                got += data
        except FAILED:
            pass
        say(echo=len(got))


async def main(options: dict[str, Any]) -> None:
    tally = Tally(lambda event: say(notice=to_json(event)))
    meter = Meter(0, 0, tally)
    identity, manifest = Identity(bytes.fromhex(options.pop("secret"))), options.pop("manifest", "starter")
    options["psk"] = bytes.fromhex(options.get("psk") or "") or None
    if "known_peers" in options:
        options["known_peers"] = Path(options["known_peers"])
    config = SwarmConfig(identity, load_manifest(manifest), **{"mdns": False, **options})
    host = make_host(config.identity, config.psk, meter, 5.0)
    async with running(host, config.listen, config.port, meter) as nursery:
        host.set_stream_handler(ECHO, echo)
        discovery = Discovery(host, config, Ports(), tally)
        await nursery.start(discovery.run)
        port = host.get_transport_addrs()[0].value_for_protocol("tcp")
        say(peer_id=str(host.get_id()), port=int(port))
        nursery.start_soon(obey, host)
        await report(host, discovery, tally)


trio.run(partial(main, json.loads(sys.argv[1])))
