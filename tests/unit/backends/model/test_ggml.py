"""Number formats are widened to the same values with and without llama.cpp's library."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType

from sapo_edge.backends.model import ggml


@pytest.fixture
def without_llama_cpp(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    ggml._widener.cache_clear()
    monkeypatch.setattr(ggml, "is_installed", lambda _name: False)
    yield
    ggml._widener.cache_clear()


@pytest.mark.usefixtures("without_llama_cpp")
@pytest.mark.parametrize("name", ["Q4_1", "Q8_0", "Q6_K", "BF16"])
def test_values_are_those_of_gguf_py_where_the_library_is_missing(name: str) -> None:
    kind = int(GGMLQuantizationType[name])
    values = np.random.default_rng(0).standard_normal((4, 256)).astype(np.float32)
    blocks = ggml.quantise(kind, values)
    slow, fast = np.empty_like(values), np.empty_like(values)
    assert not ggml.can_widen(kind)
    ggml.widen(kind, blocks, slow)
    ggml._widener.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ggml, "is_installed", lambda _name: True)
        assert ggml.can_widen(kind)
        ggml.widen(kind, blocks, fast)
    assert (slow == fast).all() and np.abs(slow - values).max() < 0.5
