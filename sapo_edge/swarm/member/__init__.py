"""A running member of a swarm: its thread, the sessions of its host, and pulls."""
