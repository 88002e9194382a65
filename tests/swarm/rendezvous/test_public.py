"""A hostile DHT, and one of several implementations: a client, and a whole node, among 30 real DHT nodes."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from sapo_edge.swarm.finding.dialing import DIAL_BURST, DIALS_PER_SECOND
from sapo_edge.swarm.rendezvous.rendezvous import keys_at
from sapo_edge.tasks.manifest import load_manifest
from tests.defences.defence import fails_without
from tests.swarm.conftest import Running
from tests.swarm.finding.processes import Node
from tests.swarm.lines import LineProcess
from tests.swarm.namespaces import NotPermittedError, name
from tests.swarm.rendezvous.mainline import PORT
from tests.swarm.rendezvous.public import DHT, HERE, JAVASCRIPT, LIARS, MEMBER, NODE, OTHERS, Public, public_network
from tests.swarm.rendezvous.strangers import KINDS, PORTS

OURS, THEIRS, LIED_ABOUT = (bytes([first]) * 20 for first in (0x20, 0x4F, 0x80))
"""Keys of a test each, because the DHT is the same for all."""


@pytest.fixture(scope="module")
def network() -> Iterator[None]:
    try:
        with public_network():
            yield
    except NotPermittedError as error:
        pytest.skip(str(error))


@pytest.fixture
def public(network: None) -> Iterator[Public]:
    """What a test starts ends with it; the DHT stays."""
    with ExitStack() as stack:
        yield Public(stack)


def look_up(client: LineProcess, key: bytes, port: int = 0, seconds: float = 1.0) -> list[list[Any]]:
    """What one node of the DHT says, if one has something to say in this time."""
    since = len(client.lines)
    client.write_line(json.dumps({"key": key.hex(), "port": port}))
    with contextlib.suppress(AssertionError):
        return list(client.first(lambda record: record.get("key") == key.hex(), seconds, since)["peers"])
    return []


def repeat(ask: Callable[[], list[list[Any]]], wanted: list[Any]) -> None:
    """Ask again, as nodes do, until an answer has what is wanted."""
    assert any(wanted in ask() for _ in range(60))


@pytest.mark.slow
@pytest.mark.usefixtures("modules")
def test_another_implementation_finds_what_this_one_announces_and_the_reverse(public: Public, node: str) -> None:
    """Theirs is also the first contact, whose id need not be of its address."""
    theirs, ours = public.javascript(node), public.client(contacts=JAVASCRIPT[:1])

    def tell(answer: str, **request: object) -> dict[str, Any]:
        since = len(theirs.lines)
        theirs.write_line(json.dumps(request))
        return theirs.first(lambda record: answer in record, since=since)

    def theirs_first() -> list[list[Any]]:
        tell("announced", announce=THEIRS.hex(), port=4001)
        return look_up(ours, THEIRS, seconds=8.0)

    def ours_first() -> list[list[Any]]:
        look_up(ours, OURS, 4002, 0.5)
        return list(tell("found", lookup=OURS.hex())["peers"])

    repeat(theirs_first, [JAVASCRIPT[0], 4001])
    repeat(ours_first, ["20.0.0.1", 4002])


@fails_without("swarm/rendezvous/program.py", "strict = require_ids(session, True)", "strict = True")
def test_machines_that_choose_ids_next_to_a_key_do_not_say_alone_who_is_there(public: Public) -> None:
    public.announce([LIED_ABOUT], [(MEMBER, 4001)])
    liars = public.lie(LIED_ABOUT)
    client = public.client(LIARS)
    repeat(lambda: look_up(client, LIED_ABOUT), [MEMBER, 4001])
    answers = [peers for _ in range(5) if (peers := look_up(client, LIED_ABOUT))]
    assert answers and all(peers == [[MEMBER, 4001]] for peers in answers)
    liars.write_line("")
    assert liars.first(lambda record: "asked" in record)["asked"], "they were part of it"


@pytest.mark.slow
def test_a_member_is_found_among_strangers_of_every_kind(public: Public, running: Running) -> None:
    for kind in KINDS:
        public.start(str(HERE / "strangers.py"), kind).first(lambda record: record.get("ready"))
    member = running(Node(2, namespace=name(OTHERS)))
    ports = [(number, place, port) for number, kind in enumerate(KINDS) for place, port in enumerate(PORTS[kind])]
    false = [(f"20.{20 + number}.{place}.7", port) for number, place, port in ports]
    keys = keys_at(bytes.fromhex(load_manifest("starter").digest), None, time.time())
    public.announce(keys, [*false, (MEMBER, member.port)])
    began = time.monotonic()
    node = running(Node(1, namespace=name(NODE), contacts=[(host, PORT) for host in DHT[:3]]))
    node.wait_for_member(member, 180)
    most = DIAL_BURST + DIALS_PER_SECOND * (time.monotonic() - began) + 1
    assert node.last("counts")["dials"] <= most
    assert node.last("members") == [member.peer_id], "nobody else is one"
    assert node.last("faults") == {} == member.last("faults")
