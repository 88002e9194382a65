"""A libp2p host with limits on everything a peer can use up, and workarounds for faults of the library."""
