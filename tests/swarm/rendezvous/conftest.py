"""Processes that end with their test."""

from tests.swarm.finding.conftest import running

__all__ = ["running"]
