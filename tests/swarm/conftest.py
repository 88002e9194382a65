"""Processes that end with their test, and what others wrote in JavaScript."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Protocol, TypeVar

import pytest

from tests.swarm.finding.processes import Node, Relay
from tests.swarm.javascript import modules, node

__all__ = ["Running", "modules", "node", "running"]

P = TypeVar("P", Node, Relay)


class Running(Protocol):
    """Keeps a process until the end of the test, and returns it once it has started."""

    def __call__(self, process: P) -> P: ...


@pytest.fixture
def running() -> Iterator[Running]:
    with ExitStack() as stack:

        def keep(process: P) -> P:
            stack.callback(process.stop, signal.SIGKILL)
            return process.started()

        yield keep
