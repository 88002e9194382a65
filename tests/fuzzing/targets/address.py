"""A multiaddress is read or is a ValueError; written again it is the same address. A peer id names one key."""

from __future__ import annotations

from contextlib import suppress

from sapo_edge.swarm.addresses import LocalNetworks, is_public, neighbourhood, parse_address, region
from sapo_edge.swarm.joining.identity import Identity, peer_id_of, public_key_of, readable_name
from tests.fuzzing.target import KIB, Target, read

ONE, TWO = (Identity(bytes([number]) * 32).peer_id for number in range(2))
CIRCUIT = parse_address(f"/ip4/203.0.113.7/tcp/443/p2p/{TWO}/p2p-circuit/p2p/{ONE}")
ADDRESSES = (
    parse_address(f"/ip4/198.51.100.23/tcp/9100/p2p/{ONE}"),
    parse_address(f"/ip6/2001:db8::1/tcp/9100/p2p/{ONE}"),
    parse_address(f"/dns4/relay.example/tcp/443/p2p/{TWO}"),
    CIRCUIT,
)
NETWORKS = LocalNetworks(("192.168.1.20",), (), loopback=False)


def check(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    assert len(readable_name(text)) < 64
    with suppress(ValueError):
        assert peer_id_of(public_key_of(text)) == text
    if (address := read(parse_address, text, ValueError)) is None:
        return
    assert parse_address(str(address)) == address and str(address).isprintable()
    assert address.via.relay is None and address.via.peer_id == (address.relay or address.peer_id)
    assert region(address) and isinstance(NETWORKS.may_dial(address), bool)
    if address.ip is not None:
        assert neighbourhood(address.host)
        assert not is_public(address.ip) or not address.ip.is_private


def seeds() -> list[bytes]:
    others = ("/ip6/::ffff:10.0.0.1/tcp/1024/p2p/", "/ip6/1:0:0:2:3:4:5:6/tcp/00080/p2p/", "/dns/x-y.z/tcp/65536/p2p/")
    return [text.encode() for text in (*map(str, ADDRESSES), *(f"{text}{ONE}" for text in others), ONE)]


TARGET = Target(check, seeds, KIB, 64 * KIB, 64)
