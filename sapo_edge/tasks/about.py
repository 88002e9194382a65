"""What manifests teach and ask, in a few words for people who choose among them."""

from __future__ import annotations

from collections.abc import Mapping

from sapo_edge.plain import counted, size
from sapo_edge.tasks.manifest import Manifest, shipped_name

SKILL_WORDS: Mapping[str, str] = {
    "starter": "easy arithmetic",
    "home": "requests to a smart home",
    "extract": "letters into data",
    "tools": "calls of tools",
    "arithmetic": "harder sums",
    "reasoning-gym-nine": "nine kinds of puzzles",
}
"""By name, in the order in which they are offered. Not those that only continue what an earlier version has begun."""

SHOWN = 4
"""Most kinds of questions that are named."""


def describe_kinds(manifest: Manifest) -> str:
    """What kinds of questions a manifest has, in words. Names in a manifest are plain ASCII."""
    if (words := SKILL_WORDS.get(shipped_name(manifest.digest) or "")) is not None:
        return words
    kinds = dict.fromkeys(entry.generator.replace("_", " ") for entry in manifest.tasks if entry.generator)
    parts = [*list(kinds)[:SHOWN], *([f"{len(kinds) - SHOWN} more kinds"] if len(kinds) > SHOWN else [])]
    if manifest.own_questions:
        parts.append(f"{counted(manifest.own_questions, 'question')} of people's own")
    return ", ".join(parts)


def describe_demands(manifest: Manifest) -> str:
    """What the swarm of a manifest asks of a member's machine."""
    questions = sum(data.size for data in manifest.data)
    known = shipped_name(manifest.digest) is not None
    load = f"{size(questions)} of questions are" if questions else "nothing is" if known else "only its manifest is"
    return f"answers of up to {manifest.max_tokens} tokens by your own model, whatever its size; {load} downloaded"
