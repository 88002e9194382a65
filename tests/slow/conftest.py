"""The embedded model."""

from __future__ import annotations

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
