"""What needs no member of its own: fetching a swarm's manifest and questions, and the relay."""
