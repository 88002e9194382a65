"""Why something that arrived from the swarm is not let in."""

from __future__ import annotations

from enum import StrEnum


class Rejection(StrEnum):
    """Reasons, in the order in which they are looked for: the cheapest first."""

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
