"""Reasons to reject something that arrived from the swarm."""

from __future__ import annotations

from enum import StrEnum


class Rejection(StrEnum):
    """Reasons, cheapest check first. `docs/network.md#admission` explains each; `admission.py` checks them."""

    IGNORED = "ignored"
    SIZE = "size"
    RATE = "rate"
    DUPLICATE = "duplicate"
    VERSION = "version"
    SHAPE = "shape"
    SIGNATURE = "signature"
    SWARM = "swarm"
    AGE = "age"
    TASK = "task"
    FORGED = "forged"
    HELD_OUT = "held out"
    SLOW = "slow"
