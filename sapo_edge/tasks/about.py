"""What the shipped manifests teach, in a few words for people who choose among them."""

from __future__ import annotations

from collections.abc import Mapping

SKILL_WORDS: Mapping[str, str] = {
    "starter": "sums and words",
    "home": "requests to a smart home",
    "extract": "letters into data",
    "tools": "calls of tools",
    "arithmetic": "harder sums",
    "reasoning-gym-nine": "nine kinds of puzzles",
}
"""By name, in the order in which they are offered. Not those that only continue what an earlier version has begun."""
