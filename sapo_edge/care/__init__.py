"""Consideration for the machine: when a node pauses or stops, and its priority."""
