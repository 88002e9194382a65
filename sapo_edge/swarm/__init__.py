"""How rollouts travel between nodes."""

from sapo_edge.swarm.host.absent import leave_out_missing

# py-libp2p imports them for transports and keys that no node has; its wheel of `packaging/wheels.py` lacks them.
leave_out_missing("aioquic", "fastecdsa")
