"""Processes that end with their test, and a public network with a DHT."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.swarm.finding.conftest import running
from tests.swarm.javascript import modules, node
from tests.swarm.namespaces import NotPermittedError
from tests.swarm.rendezvous.public import Public

__all__ = ["modules", "node", "public", "running"]


@pytest.fixture
def public() -> Iterator[Public]:
    with ExitStack() as stack:
        try:
            yield stack.enter_context(Public())
        except NotPermittedError as error:
            pytest.skip(str(error))
