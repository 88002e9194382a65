"""The defences of the swarm, each with the test that fails without it, and a command that shows it."""
