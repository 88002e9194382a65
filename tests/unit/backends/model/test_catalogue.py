"""The sizes of known models, from which the table in docs/models.md is made."""

from __future__ import annotations

import pytest

from sapo_edge.backends.model.architectures import ARCHITECTURES
from sapo_edge.backends.model.shape import ModelShape
from tests.benchmarks.catalogue import KnownModel, header_of, known_models


@pytest.mark.parametrize("model", known_models(), ids=lambda model: model.name)
def test_sizes_are_those_of_the_published_model(model: KnownModel) -> None:
    shape = model.shape
    assert (shape.block_weights + shape.table_weights) / 1e6 == pytest.approx(model.parameters, rel=2e-3)
    # The product reads the same sizes from a file.
    assert ModelShape.of_gguf(header_of(model)) == shape


def test_every_architecture_has_a_model_in_the_table() -> None:
    assert {model.architecture for model in known_models()} == {a.gguf for a in ARCHITECTURES.values() if a.gguf}
