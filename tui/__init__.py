"""The terminal app: a client of a node's control socket. Installs as `sapo_edge.tui`.

It uses events, the control client and `node.launcher.Launcher`; import-linter allows nothing else.
"""
