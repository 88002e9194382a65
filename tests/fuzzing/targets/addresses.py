"""What names a place: addresses, invites, and the announcements of any device on the local network."""

from __future__ import annotations

import re
from contextlib import suppress
from hashlib import sha256

from sapo_edge.errors import ConfigError
from sapo_edge.swarm.addresses import LocalNetworks, is_public, neighbourhood, parse_address, region
from sapo_edge.swarm.finding.mdns import MAX_ADDRESSES, MAX_TXT_BYTES, Announcement
from sapo_edge.swarm.joining.identity import Identity, peer_id_of, public_key_of, readable_name
from sapo_edge.swarm.joining.invite import MAX_LINE, PREFIX, Swarm, choose_addresses, parse_invite
from tests.fuzzing.target import KIB, Target, read
from tests.swarm.wire.make_vectors import vectors

ONE, TWO = (Identity(bytes([number]) * 32).peer_id for number in range(2))
CIRCUIT = parse_address(f"/ip4/203.0.113.7/tcp/443/p2p/{TWO}/p2p-circuit/p2p/{ONE}")
ADDRESSES = (
    parse_address(f"/ip4/198.51.100.23/tcp/9100/p2p/{ONE}"),
    parse_address(f"/ip6/2001:db8::1/tcp/9100/p2p/{ONE}"),
    parse_address(f"/dns4/relay.example/tcp/443/p2p/{TWO}"),
    CIRCUIT,
)
NETWORKS = LocalNetworks(("192.168.1.20", "fd00::1"), (), loopback=False)
OWN, OTHER = Announcement(b"t" * 32, ONE, 9100), Announcement(b"t" * 32, TWO, 9100)
LINE = re.compile(r"sapo://join/[0-9A-Za-z+=/.:_-]+")


def check_address(data: bytes) -> None:
    """It is read or is a ValueError; written again it is the same address. A peer id names one key."""
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


def address_seeds() -> list[bytes]:
    others = ("/ip6/::ffff:10.0.0.1/tcp/1024/p2p/", "/ip6/1:0:0:2:3:4:5:6/tcp/00080/p2p/", "/dns/x-y.z/tcp/65536/p2p/")
    return [text.encode() for text in (*map(str, ADDRESSES), *(f"{text}{ONE}" for text in others), ONE)]


def check_announcement(data: bytes) -> None:
    """A TXT record gives addresses of other nodes of this swarm, or none."""
    mark = OTHER.mark
    for record in (data, bytes([len(mark)]) + mark + data):
        addresses = OWN.read(record)
        assert len(addresses) <= MAX_ADDRESSES and all(address.peer_id != ONE for address in addresses)
        assert not addresses or OWN.mark in record


def announcement_seeds() -> list[bytes]:
    return [OTHER.txt(NETWORKS), OWN.txt(NETWORKS), b"\x05a=b=c\xff", b"\x09dnsaddr=\xff"]


def check_invite(data: bytes) -> None:
    """It is read or is a ConfigError; written again it is the same invite, and its line has no odd character.

    The text as it is, and its fields with a checksum that is right: a fuzzer can't find one.
    """
    text = data.decode("utf-8", "replace")
    body = PREFIX + "".join(text.split())
    for line in (text, f"{body}+check={sha256(body.encode()).hexdigest()[:12]}"):
        try:
            invite = parse_invite(line)
        except ConfigError as error:
            assert str(error).isprintable()
            continue
        assert parse_invite(invite.to_line()) == invite
        assert LINE.fullmatch(invite.to_line()) and len(choose_addresses(invite.bootstrap)) <= len(invite.bootstrap)


def invite_seeds() -> list[bytes]:
    lines = [vector["invite"] for vector in vectors("codes.json")]
    lines.append(Swarm(bytes(range(32)), "starter", tuple(map(str, ADDRESSES)), bytes(32)).to_line())
    fields = [line.removeprefix(PREFIX).rpartition("+check=")[0] for line in lines]
    return [text.encode() for text in (*lines, *fields, f"{fields[-1]}+later=1", fields[-1].replace("v=1", "v=2"))]


TARGETS = {
    "address": Target(check_address, address_seeds, KIB, 64 * KIB, 64),
    "announcement": Target(check_announcement, announcement_seeds, MAX_TXT_BYTES + 64, 64 * KIB, 64),
    "invite": Target(check_invite, invite_seeds, 2 * MAX_LINE + 1, 128 * KIB, 64),
}
