"""Number formats are widened to the same values with and without llama.cpp's library."""

from __future__ import annotations

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from sapo_edge.backends.model import ggml

FORMATS = (
    "F16", "BF16", "Q8_0", "Q6_K", "Q5_K", "Q5_1", "Q5_0", "Q4_K", "Q4_1", "Q4_0", "Q3_K", "Q2_K", "IQ4_NL", "IQ4_XS",
)  # fmt: skip


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize("form", FORMATS)
def test_values_are_those_of_gguf_py_to_the_bit(form: str, installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = GGMLQuantizationType[form]
    values = np.random.default_rng(0).standard_normal((3, 512)).astype(np.float32)
    blocks, wide = ggml.quantise(kind, values), np.empty_like(values)
    monkeypatch.setattr(ggml, "loads_llama", lambda: installed)
    ggml._widener.cache_clear()
    assert ggml.can_widen(kind) == installed
    ggml.widen(kind, blocks, wide)
    ggml._widener.cache_clear()
    assert wide.tobytes() == dequantize(blocks, kind).astype(np.float32).tobytes()
    assert np.abs(wide - values).max() < 1.5


def test_sizes_that_do_not_fit_are_refused_before_native_code_runs() -> None:
    with pytest.raises(ValueError, match="not 512 values"):
        ggml.widen(GGMLQuantizationType.Q8_0, np.zeros(34, np.uint8), np.empty(512, np.float32))
    with pytest.raises(ValueError, match="side by side"):
        ggml.widen(GGMLQuantizationType.Q8_0, np.zeros((2, 68), np.uint8)[:, :34], np.empty((2, 32), np.float32))
