"""The scale `tiny`: four models that come with the program, and the questions that they half know.

A fresh node knows the right rules but seldom follows them, as a language model before reinforcement learning does.
`tests/benchmarks/tiny_models.py` made the models; held-out questions were not in their warm-up.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from sapo_edge.errors import ConfigError
from sapo_edge.tasks.manifest import Manifest, TaskEntry

MAX_TOKENS = 10
"""Longest answer in tokens: the longest right one has 9."""
HARDER_MAX_TOKENS = 12
"""The same for the harder questions."""
KINDS: Mapping[str, str] = {"base": "mixed", "mixed": "mixed", "hard": "hard", "small": "small", "trained": "trained"}
"""mixed: a node alone learns; hard: it earns next to nothing; small: a smaller mixed one; trained: it is ahead."""


def tiny_model(name: str) -> Path:
    """The directory of a model."""
    if name not in KINDS:
        raise ConfigError(f"there is no tiny model {name}", f"choose {', '.join(KINDS)}")
    return Path(__file__).parent / "models" / KINDS[name]


def fix_instructions() -> None:
    """Make sums as any processor with AVX2 makes them, also where there is AVX-512; call it before torch is loaded.

    So the same command gives the same bytes on both.
    """
    try:
        flags = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return
    if "avx2" in flags:
        os.environ.update({"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "COMPATIBLE"})


def tiny_manifest() -> Manifest:
    """Four kinds of questions with thousands of questions each, so that 400 held-out ones are few of them."""
    return Manifest("tiny", _entries(letters=(3, 4), terms=(2, 3), numbers=2, rotations=(1, 3)), max_tokens=MAX_TOKENS)


def harder_manifest() -> Manifest:
    """Longer words, one more term, one more number, more than one turn: does what is learnt carry over?"""
    entries = _entries(letters=(5, 5), terms=(4, 4), numbers=3, rotations=(5, 7))
    return Manifest("tiny-harder", entries, max_tokens=HARDER_MAX_TOKENS)


def unseen_manifest() -> Manifest:
    """A task that no manifest of a swarm has; the warm-up shows it as it shows the others."""
    config = {"min_words": 2, "max_words": 2, "min_word_length": 3, "max_word_length": 3}
    return Manifest("tiny-unseen", (TaskEntry("sorting", "word_sorting", config),), max_tokens=MAX_TOKENS)


def _entries(
    letters: tuple[int, int], terms: tuple[int, int], numbers: int, rotations: tuple[int, int]
) -> tuple[TaskEntry, ...]:
    filters = {
        "min_numbers": numbers, "max_numbers": numbers, "min_decimals": 0, "max_decimals": 0, "min_value": 10.0,
        "max_value": 99.0,
    }  # fmt: skip
    sums = {"min_terms": terms[0], "max_terms": terms[1], "min_digits": 1, "max_digits": 1}
    matrices = {"min_n": 2, "max_n": 2, "min_rotations": rotations[0], "max_rotations": rotations[1]}
    return (
        TaskEntry("backward", "spell_backward", {"min_word_len": letters[0], "max_word_len": letters[1]}),
        TaskEntry("sums", "chain_sum", sums),
        TaskEntry("filters", "number_filtering", filters),
        TaskEntry("matrices", "rotate_matrix", matrices),
    )
