"""Identity of a node, invites to swarms, and the swarms that this installation joined."""
