"""Other nodes' rollouts that wait to be trained on: the pool, whom they come from, and its file."""
