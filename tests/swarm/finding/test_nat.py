"""Homes behind NATs, with and without a relay between them, in network namespaces of their own."""

from pathlib import Path

import pytest

from tests.swarm.conftest import Running
from tests.swarm.finding.homes import forwarded
from tests.swarm.finding.processes import Node, Relay
from tests.swarm.namespaces import name
from tests.waiting import wait_until


@pytest.mark.parametrize(
    "internet", [("router with UPnP", "router without"), ("router with PCP", "router without")], indirect=True
)
def test_homes_meet_by_one_line_if_one_router_forwards_a_port(internet: None, running: Running, tmp_path: Path) -> None:
    first = running(Node(1, namespace=name("m1"), map_port=True))
    assert forwarded("r1") == "" and first.lines[-1].get("invited", []) == []
    line = first.first(lambda record: record.get("invited"))["invited"]
    assert line == [f"/ip4/5.5.1.1/tcp/{first.port}/p2p/{first.peer_id}"] and str(first.port) in forwarded("r1")
    second = running(Node(2, namespace=name("m2"), bootstrap=line, map_port=True))
    first.wait_for_member(second, how="direct")
    assert second.wait_for_member(first, how="direct") and second.echoes(first)
    assert first.last("reached") is None, "one network has one voice"
    first.stop()
    # The mapping is removed at the end.
    wait_until(lambda: not forwarded("r1"), 20)


@pytest.mark.parametrize("internet", [("router with UPnP", "router without", "router without")], indirect=True)
def test_a_member_that_others_reach_introduces_two_that_nobody_can_dial(internet: None, running: Running) -> None:
    first = running(Node(1, namespace=name("m1"), map_port=True, carries=True))
    line = first.first(lambda record: record.get("invited"))["invited"]
    second, third = (running(Node(n, namespace=name(f"m{n}"), bootstrap=line, carries=True)) for n in (2, 3))
    second.wait_for_member(third, how="direct")
    assert third.wait_for_member(second, how="direct") and second.echoes(third)
    assert first.last("reached") is True and second.last("reached") is not True


@pytest.mark.parametrize("internet", [("IPv6 only", "IPv6 only, firewall")], indirect=True)
def test_two_homes_meet_over_ipv6(internet: None, running: Running) -> None:
    first = running(Node(1, namespace=name("m1"), port=4001))
    second = running(Node(2, namespace=name("m2"), bootstrap=[f"/ip6/2a00:1::2/tcp/4001/p2p/{first.peer_id}"]))
    first.wait_for_member(second, how="direct")
    assert second.wait_for_member(first, how="direct") and second.echoes(first)


@pytest.mark.parametrize("internet", [("router without", "router without")], indirect=True)
def test_behind_nats_a_relay_introduces_and_a_hole_is_punched(internet: None, running: Running, tmp_path: Path) -> None:
    # A private swarm, because there the library encrypts relayed and punched connections once too often, or not at all.
    psk = "cd" * 32
    relay = running(Relay(tmp_path, name("relay"), psk=psk))
    bootstrap = relay.addresses[:1]
    first, second = (running(Node(n, namespace=name(f"m{n}"), bootstrap=bootstrap, psk=psk)) for n in (1, 2))
    assert first.wait_for_member(second, how="direct") and second.wait_for_member(first, how="direct")
    assert first.lines[-1]["reached"] is not True
    # What is punched does not need the relay any more.
    relay.stop()
    relayless = first.first(lambda record: list(record.get("connected", ())) == [second.peer_id])
    assert relayless["connected"][second.peer_id] == ["direct"]
    assert first.echoes(second) and second.echoes(first)


@pytest.mark.parametrize("internet", [("router that changes ports", "router that changes ports")], indirect=True)
def test_behind_nats_that_change_ports_the_relay_forwards_and_may_restart(
    internet: None, running: Running, tmp_path: Path
) -> None:
    relay = running(Relay(tmp_path, name("relay")))
    first, second = (running(Node(n, namespace=name(f"m{n}"), bootstrap=relay.addresses[:1])) for n in (1, 2))
    assert first.wait_for_member(second)["connected"][second.peer_id] == ["relayed"]
    assert first.echoes(second) and second.echoes(first)
    since = len(first.lines)
    relay.kill()
    first.first(lambda record: record.get("connected") == {}, since=since)
    since = len(first.lines)
    again = running(Relay(tmp_path, name("relay")))
    assert again.addresses == relay.addresses
    first.wait_for_member(second, since=since)
    assert first.echoes(second)
