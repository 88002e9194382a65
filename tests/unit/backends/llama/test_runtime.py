"""What llama.cpp is asked for; its answers are tested with the backend."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from sapo_edge.backends.llama.runtime import LlamaContext, LlamaModel
from sapo_edge.backends.model.llama_library import llama_library
from sapo_edge.errors import ModelError


def test_nothing_is_computed_on_a_gpu_and_windows_keep_what_sequences_share() -> None:
    requests: list[Any] = []
    library = SimpleNamespace(
        llama_context_default_params=llama_library().llama_context_default_params,
        llama_init_from_model=lambda _model, parameters: requests.append(parameters),
    )
    model = cast(LlamaModel, SimpleNamespace(library=library, pointer=None))
    with pytest.raises(ModelError, match="could not make a context"):
        LlamaContext(model, cells=256, sequences=2, threads=1, batch=32)
    (parameters,) = requests
    assert (parameters.op_offload, parameters.offload_kqv, parameters.swa_full) == (False, False, True)
