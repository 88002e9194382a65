"""The terminal app: a client of a node's control socket. Installs as `sapo_edge.tui`.

It knows events, the control client and what `launcher.Launcher` offers; import-linter keeps it from everything else.
"""
