"""Finding peers of the swarm and staying connected to them."""
