"""The node: round after round, controlled over its socket, in the foreground or the background."""
