"""Processes that end with their test, and what others wrote in JavaScript."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import pytest

from tests.swarm.finding.homes import HOMES, homes
from tests.swarm.finding.processes import Node, Relay
from tests.swarm.javascript import modules, node
from tests.swarm.namespaces import NotPermittedError

__all__ = ["Running", "internet", "modules", "node", "running"]

P = TypeVar("P", Node, Relay)


class Running(ExitStack):
    """Keeps processes until the end of the test, and returns each once it has started."""

    def __call__(self, process: P) -> P:
        return self.enter_context(process).started()


@pytest.fixture
def internet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    """Homes of these kinds."""
    try:
        with homes(tmp_path, *(HOMES[kind] for kind in request.param)):
            yield
    except NotPermittedError as error:
        pytest.skip(str(error))


@pytest.fixture
def running() -> Iterator[Running]:
    with Running() as processes:
        yield processes
