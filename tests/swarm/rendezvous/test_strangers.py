"""Homes that share nothing but a public DHT: strangers meet, and find swarms, in network namespaces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sapo_edge.swarm.joining.invite import parse_invite
from sapo_edge.swarm.rendezvous.program import join_port
from sapo_edge.tasks.manifest import load_manifest
from tests.swarm.conftest import Running
from tests.swarm.finding.processes import Node, Relay
from tests.swarm.lines import ROOT, LineProcess
from tests.swarm.member.member_processes import MemberProcess
from tests.swarm.namespaces import name
from tests.swarm.rendezvous.mainline import CONTACTS, public_dht

PSK = bytes(range(32)).hex()


@pytest.fixture(autouse=True)
def dht(internet: None) -> Iterator[None]:
    with public_dht():
        yield


def node(running: Running, number: int, **options: Any) -> Node:
    options = {"map_port": True, "carries": True, "contacts": CONTACTS, **options}
    return running(Node(number, namespace=name(f"m{number}"), **options))


@pytest.mark.parametrize("internet", [("router with UPnP", "router without", "router without")], indirect=True)
def test_strangers_meet_if_one_of_them_can_be_reached(internet: None, running: Running) -> None:
    first, second = (node(running, number) for number in (1, 2))
    second.wait_for_member(first, how="direct")
    assert first.wait_for_member(second, how="direct") and second.echoes(first)
    other = node(running, 3, manifest="arithmetic")
    other.first(lambda record: record.get("counts", {}).get("rendezvous lookups", 0) >= 2)
    assert not other.last("counts").get("rendezvous addresses"), "another swarm has other keys"
    assert first.last("faults") == {} == second.last("faults")


def volunteer(running: Running, kind: str, directory: Path) -> Node | Relay:
    if kind == "member of another swarm":
        return node(running, 3, manifest="arithmetic", volunteers=True)
    swarm = load_manifest("starter").digest
    return running(Relay(directory, name("relay"), psk=PSK, swarm=swarm, contacts=CONTACTS))


@pytest.mark.parametrize(
    ("internet", "kind"),
    [
        (("router without", "IPv6 only, firewall"), "private relay"),
        (("router without", "router without", "router with UPnP"), "member of another swarm"),
    ],
    indirect=["internet"],
)
def test_unreached_strangers_meet_at_a_volunteer(internet: None, running: Running, kind: str, tmp_path: Path) -> None:
    helper = volunteer(running, kind, tmp_path)
    first, second = (node(running, number, psk=PSK if kind == "private relay" else None) for number in (1, 2))
    how = "relayed" if isinstance(helper, Relay) else "direct"
    second.wait_for_member(first, 90)
    assert second.wait_for_member(first, how=how) and second.echoes(first)
    assert first.wait_for_member(second, how=how)
    assert [one.last("members") for one in (first, second)] == [[second.peer_id], [first.peer_id]]
    assert first.last("faults") == {} == second.last("faults")
    if isinstance(helper, Node):
        assert helper.last("members") == [] and helper.last("faults") == {}


def find(home: Path) -> None:
    """Find both swarms from the second home; who has just begun to announce itself may need the next search."""
    command = ("-m", "sapo_edge", "swarm", "find", "--json", "--home", str(home))
    for _ in range(3):
        with LineProcess(*command, namespace=name("m2")) as search:
            search.wait(lambda lines: search.ended or (lines and len(lines[-1]["swarms"]) == 2))
            found = search.lines[-1]["swarms"]
            assert search.stop() == 0
        if len(found) == 2:
            break
    assert {swarm["name"]: swarm["members"] for swarm in found} == {"starter": 1, "ours": 1}
    assert [len(parse_invite(swarm["invite"]).bootstrap) for swarm in found if not swarm["shipped"]] == [1]


@pytest.mark.parametrize("internet", [("router with UPnP", "router without", "router with UPnP")], indirect=True)
def test_a_stranger_finds_the_open_swarms(internet: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "own.toml"
    own.write_text((ROOT / "sapo_edge/tasks/manifests/starter.toml").read_text().replace("starter", "ours"))
    everywhere: dict[str, Any] = {"listen": "all", "map_port": True, "contacts": CONTACTS}
    with ExitStack() as stack:
        members: tuple[tuple[int, str, dict[str, Any]], ...] = (
            (1, "m1", {"manifest": str(own)}), (2, "m3", {}), (3, "m3", {"manifest": str(own), "psk": PSK})
        )  # fmt: skip
        for number, home, options in members:
            member = MemberProcess(name(home), member=number, **everywhere, **options)
            stack.enter_context(member)
            member.until(lambda status: status["counts"].get("rendezvous announcements"))
        monkeypatch.setenv("SAPO_EDGE_RENDEZVOUS", ",".join(join_port(*contact) for contact in CONTACTS))
        find(tmp_path / "two")
