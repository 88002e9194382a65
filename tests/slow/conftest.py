"""The embedded model, and one cache for all tests that sample from it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from sapo_edge.backends.model.find import embedded_model


@pytest.fixture(scope="session")
def model() -> Path:
    """The embedded model's file."""
    path = embedded_model()
    if path is None:
        pytest.skip("the extra `starter` is not installed")
    return path


@pytest.fixture(scope="session")
def cache(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of which file to sample from, measured once for all processes that run tests."""
    from sapo_edge.backends.llama.requantise import choose_sampler
    from sapo_edge.backends.model.gguf_header import read_header

    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with (shared / "embedded.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        choose_sampler(read_header(model), shared / "embedded" / "cache", 1, lambda _text: None)
    return shared / "embedded" / "cache"
