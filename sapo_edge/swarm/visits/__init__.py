"""Short visits to a swarm by commands that run no node; the relay."""
