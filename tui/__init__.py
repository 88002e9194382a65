"""The terminal app: a client of a node's control socket. Installs as `sapo_edge.tui`."""
