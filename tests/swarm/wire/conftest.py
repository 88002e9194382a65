"""The peer in JavaScript."""

from tests.swarm.javascript import modules, node

__all__ = ["modules", "node"]
