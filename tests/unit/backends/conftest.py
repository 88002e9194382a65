"""Tiny models for the tests of the backends' parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from sapo_edge.backends.model.gguf_header import read_header
from tests.directories import write_directory
from tests.models import SHAPES, Headers, Models, write_model


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Tiny models by name, each alone in its directory, as transformers requires."""
    return {name: write_model(tmp_path_factory.mktemp(name) / f"{name}.gguf", shape) for name, shape in SHAPES.items()}


@pytest.fixture(scope="session")
def headers(models: Models) -> Headers:
    return {name: read_header(path) for name, path in models.items()}


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model `llama-gqa` as transformers saves it."""
    return write_directory(tmp_path_factory.mktemp("directory") / "tiny", SHAPES["llama-gqa"])
