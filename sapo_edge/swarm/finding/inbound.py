"""What inbound connections show: peers of which networks reach this node by themselves."""

from __future__ import annotations

from libp2p.abc import IHost
from libp2p.rcmgr import Direction

from sapo_edge.swarm.finding.circuit import is_relayed
from sapo_edge.swarm.finding.outside import Outside


class InboundWatch:
    """Reports each new inbound connection, except those through relays and through holes that were punched."""

    def __init__(self, host: IHost, outside: Outside) -> None:
        self._host = host
        self._outside = outside
        self._relayed: set[str] = set()
        self._reported: set[int] = set()

    def look(self) -> None:
        """Look at the connections; to be called every second or so."""
        connections = {str(peer): list(many) for peer, many in self._host.get_network().connections.items()}
        self._relayed &= connections.keys()
        self._reported &= {id(one) for many in connections.values() for one in many}
        for peer, many in connections.items():
            if any(is_relayed(one) for one in many):
                # What comes in directly from now on may come through a hole, which is open to this peer alone.
                self._relayed.add(peer)
            if peer in self._relayed:
                continue
            for one in many:
                remote = one.muxed_conn.get_remote_address()
                if id(one) not in self._reported and one.direction == Direction.INBOUND and remote is not None:
                    self._reported.add(id(one))
                    self._outside.record_inbound(remote[0])
