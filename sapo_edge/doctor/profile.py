"""Settings for small computers, chosen by the memory that this process may have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MIB = 1024 * 1024

Value = int | float | str


@dataclass(frozen=True, slots=True)
class Profile:
    """Settings for machines of one size.

    Attributes:
        memory: least memory of such a machine, bytes. One "of 2 GB" shows less: a part is the kernel's and the GPU's.
        summary: what a node does there.
        settings: that differ from the defaults.
    """

    memory: int
    summary: str
    settings: Mapping[str, Value]


_FEW_WRITES: dict[str, Value] = {"save_every": 15, "keep_checkpoints": 1, "evaluate_every": 50}
PROFILES: Mapping[str, Profile] = {
    "512mb": Profile(
        0, "answers and shares, learns nothing",
        {"role": "generator", "own": 2, "answers": 4, "share": 8, "held_out": 0, "relay": "off"},
    ),
    "1gb": Profile(
        800 * MIB, "answers and shares, learns nothing",
        {"role": "generator", "share": 16, "held_out": 0, "relay": "off"},
    ),
    "2gb": Profile(
        1700 * MIB, "learns with small groups",
        {"own": 2, "external": 2, "answers": 4, "rank": 8, "share": 16, "held_out": 50, "memory": 1.2, **_FEW_WRITES},
    ),
    "4gb": Profile(
        3500 * MIB, "learns with half of the usual rollouts",
        {"own": 2, "external": 2, "share": 32, "held_out": 100, "memory": 2.5, **_FEW_WRITES},
    ),
    "8gb": Profile(7000 * MIB, "learns as on a laptop", _FEW_WRITES),
}  # fmt: skip
"""Profiles by name, the smallest first. All take the embedded model and threads as measured."""
URGENT = ("512mb", "1gb", "2gb")
"""Profiles of machines on which the defaults may not fit or are slow."""
LARGE = 12_000 * MIB
"""Memory from which a machine needs no profile."""


def choose_profile(memory: int) -> str:
    """Name of the profile for so many bytes of memory; "" for a machine that needs none."""
    if memory >= LARGE:
        return ""
    return [name for name, profile in PROFILES.items() if memory >= profile.memory][-1]
