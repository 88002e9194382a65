"""GossipSub's streams when one of several connections to a peer ends.

Two nodes have two connections if they dialled each other at once, or if a hole was punched beside a relayed one.
py-libp2p 0.8.1 keeps one outbound stream a peer, on the first connection. When that one ends and another remains, it
takes the peer for connected and goes on writing into a stream that is gone: nothing reaches the peer any more, for
good, and nothing is reported.
"""

from __future__ import annotations

from typing import Any

import trio
from libp2p.abc import INetConn, INetStream, INetwork, INotifee
from libp2p.pubsub.pubsub import Pubsub
from multiaddr import Multiaddr

from sapo_edge.swarm.tally import Tally


class StreamMover(INotifee):  # type: ignore[misc] # libp2p is not followed
    """Has a peer's stream opened anew on a connection that remains. Register it with the network of a running pubsub.

    Args:
        pubsub: whose streams.
        tally: counts.
    """

    def __init__(self, pubsub: Pubsub, tally: Tally) -> None:
        self._pubsub = pubsub
        self._tally = tally

    async def disconnected(self, network: INetwork, conn: INetConn) -> None:
        """A connection ended."""
        await trio.lowlevel.checkpoint()
        peer = conn.muxed_conn.peer_id
        stream: Any = self._pubsub.peers.get(peer)
        if stream is None or stream.muxed_conn is not conn.muxed_conn or not network.get_connections(peer):
            return
        # What the peer has told of its topics it tells once a stream, and its new stream may have come before this.
        topics = [topic for topic, peers in self._pubsub.peer_topics.items() if peer in peers]
        self._pubsub._handle_dead_peer(peer)
        for topic in topics:
            self._pubsub.peer_topics.setdefault(topic, set()).add(peer)
        self._tally.count("gossip streams moved to another connection")

    async def connected(self, network: INetwork, conn: INetConn) -> None:
        """Nothing to do."""
        await trio.lowlevel.checkpoint()

    async def opened_stream(self, network: INetwork, stream: INetStream) -> None:
        """Nothing to do."""
        await trio.lowlevel.checkpoint()

    async def closed_stream(self, network: INetwork, stream: INetStream) -> None:
        """Nothing to do."""
        await trio.lowlevel.checkpoint()

    async def listen(self, network: INetwork, multiaddr: Multiaddr) -> None:
        """Nothing to do."""
        await trio.lowlevel.checkpoint()

    async def listen_close(self, network: INetwork, multiaddr: Multiaddr) -> None:
        """Nothing to do."""
        await trio.lowlevel.checkpoint()
