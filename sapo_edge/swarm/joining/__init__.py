"""Who a node is and which swarm it is in: identity, invites, membership."""
