"""How rollouts travel between nodes."""
