"""A node's membership while it runs: the thread, the host's life in it, and pulls."""
