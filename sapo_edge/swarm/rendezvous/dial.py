"""Who listens at an address that comes without a peer id."""

from __future__ import annotations

import trio
from libp2p.abc import IHost
from libp2p.security.pnet.protector import new_protected_conn
from multiaddr import Multiaddr

from sapo_edge.swarm.addresses import Address, LocalNetworks, direct_address
from sapo_edge.swarm.host.hardening import end_quietly

ANSWER_SECONDS = 6.0
"""Seconds for the connection and the handshake."""


async def who_listens(host: IHost, ip: str, port: int) -> str | None:
    """The peer id that whoever listens at an IP address proves to have; None if nobody does.

    The connection ends with the handshake: the node dials the peer as any other one then, or not.
    """
    network = host.get_network()
    address = Multiaddr(f"/{'ip6' if ':' in ip else 'ip4'}/{ip}/tcp/{port}")
    raw = None
    try:
        with trio.fail_after(ANSWER_SECONDS):
            raw = await network.transport_manager.transport_for_dialing(address).dial(address)
            protected = raw if network.psk is None else new_protected_conn(raw, network.psk)
            # The upgrader wants to know the peer before; the handshake itself does not.
            secured = await network.upgrader.security_multistream.secure_outbound(protected, None)
            return str(secured.get_remote_peer())
    except Exception:  # noqa: BLE001 - the other end chooses what the handshake reads; the caller counts it as nobody
        return None
    finally:
        if raw is not None:
            await end_quietly(raw.close)


async def named_address(host: IHost, networks: LocalNetworks, ip: str, port: int) -> Address | None:
    """The address of whoever listens where a stranger says; None if nobody does, or no stranger may name it."""
    # The id is not known yet; an address needs one.
    if not networks.may_name(direct_address(ip, port, str(host.get_id())), ()):
        return None
    peer_id = await who_listens(host, ip, port)
    return None if peer_id is None or peer_id == str(host.get_id()) else direct_address(ip, port, peer_id)
