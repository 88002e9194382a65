"""For all tests."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from tests.undisturbed import UNDISTURBED

# Before anything starts a process, which takes them from here.
os.environ.update(UNDISTURBED)

TESTS = Path(__file__).parent
LONGEST_FIRST = ("slow", "swarm", "cli", "tui", "packaging", "contract", "unit")
"""Folders by how long their longest file takes."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run long files first: with several processes none is left with a long file while the others have finished."""
    items.sort(key=lambda item: LONGEST_FIRST.index(item.path.relative_to(TESTS).parts[0]))


def pytest_collection_finish() -> None:
    """Leave all modules out of later garbage collections, which took a third of some tests' time to look at them."""
    gc.collect()
    gc.freeze()
