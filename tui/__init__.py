"""The terminal app's place: a client of a node's control socket. Installs as `sapo_edge.tui`.

It knows `events` and `control` alone; import-linter keeps it so.
"""
