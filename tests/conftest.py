"""For all tests."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest
from hypothesis import settings

import sapo_edge.swarm  # noqa: F401 - lets libp2p do without libraries that it names
import tests.machines  # the profile `long`
import tests.unflushed  # noqa: F401 - waits for no disk
from tests.hub import hub, repositories  # noqa: F401 - fixtures
from tests.undisturbed import UNDISTURBED

# Before anything starts a process, which takes them from here.
os.environ.update(UNDISTURBED)
# Threads that wait for each other leave the processor to other tests.
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"

# What is loaded and collected stays: looking at it for garbage again and again takes seconds in each process.
gc.disable()

# No test may depend on how busy the machine is.
settings.register_profile("without a deadline", deadline=None)
settings.load_profile("without a deadline")

TESTS = Path(__file__).parent
PRIORITY = os.getpriority(os.PRIO_PROCESS, 0)
LONGEST_FIRST = ("slow", "swarm", "cli", "tui", "packaging", "contract", "unit")
"""Folders by how long their longest file takes."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run long files first: with several processes none is left with a long file while the others have finished."""
    items.sort(key=lambda item: LONGEST_FIRST.index(item.path.relative_to(TESTS).parts[0]))


def pytest_collection_finish() -> None:
    """Collect garbage seldom: the apps of the terminal app's tests are cycles, and a third of their time went there."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 10)
    gc.enable()


def pytest_runtest_teardown() -> None:
    """No test may slow those after it: a process can't raise its priority again."""
    assert os.getpriority(os.PRIO_PROCESS, 0) == PRIORITY, "run `lower_priority` in a process of its own"
