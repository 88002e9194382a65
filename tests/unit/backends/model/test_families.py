"""What a GGUF file says about a family's own settings, as llama.cpp reads it; what no backend computes is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sapo_edge.backends.model.architectures import model_values
from sapo_edge.backends.model.gguf_header import GgufHeader
from sapo_edge.errors import ModelError
from tests.models import Headers


def changed(header: GgufHeader, **values: Any) -> GgufHeader:
    """A header with other values of its architecture; None removes one."""
    metadata = dict(header.metadata)
    for name, value in values.items():
        metadata[f"{header.architecture}.{name.replace('__', '.')}"] = value
    return replace(header, metadata={key: value for key, value in metadata.items() if value is not None})


@pytest.mark.parametrize(
    ("pattern", "full"),
    [(None, [5]), (6, [5]), (2, [1, 3, 5, 7]), (1, list(range(8))), ([True, False] * 4, [1, 3, 5, 7])],
    ids=["Gemma's own", "the same", "every second", "every", "a list"],
)
def test_gemmas_layers_with_a_window(headers: Headers, pattern: object, full: list[int]) -> None:
    header = changed(headers["gemma3"], block_count=8, attention__sliding_window_pattern=pattern)
    kinds = model_values(header)["layer_types"]
    assert [index for index, kind in enumerate(kinds) if kind == "full_attention"] == full and len(kinds) == 8


def test_gemma_without_a_window_attends_to_everything(headers: Headers) -> None:
    values = model_values(changed(headers["gemma3"], attention__sliding_window=None))
    assert set(values["layer_types"]) == {"full_attention"} and values["sliding_window"] is None


def test_an_early_conversion_of_gemma_has_the_windows_positions_of_all_gemmas(headers: Headers) -> None:
    values = model_values(changed(headers["gemma3"], rope__freq_base=1e6, rope__freq_base_swa=None))
    bases = {kind: rope["rope_theta"] for kind, rope in values["rope_parameters"].items()}
    assert bases == {"full_attention": 1e6, "sliding_attention": 10000.0}


def test_granites_multipliers_default_to_none(headers: Headers) -> None:
    header = changed(headers["granite"], embedding_scale=None, residual_scale=None, attention__scale=None)
    values = model_values(header)
    assert (values["embedding_multiplier"], values["residual_multiplier"]) == (1.0, 1.0)
    assert values["attention_multiplier"] == pytest.approx(values["head_dim"] ** -0.5)


@pytest.mark.parametrize(
    ("model", "change", "what"),
    [
        ("granite", {"rope__scaling__finetuned": False}, "without positions"),
        ("granite", {"logit_scale": None}, "logit_scale"),
        ("gemma3", {"final_logit_softcapping": 30.0}, "caps its logits"),
        ("gemma3", {"attention__sliding_window_pattern": [True]}, "which layers"),
        ("gemma3", {"attention__sliding_window_pattern": 0}, "which layers"),
        ("gemma3", {"attention__sliding_window": -1}, "sliding_window"),
        ("gemma3", {"rope__freq_base_swa": "high"}, "freq_base_swa"),
        # OLMo 3's files have OLMo 2's name.
        ("olmo2", {"attention__sliding_window": 4096}, "sliding window"),
        ("exaone4", {"attention__sliding_window": 4096}, "sliding window"),
    ],
)
def test_what_can_not_be_computed_is_refused(headers: Headers, model: str, change: dict[str, Any], what: str) -> None:
    with pytest.raises(ModelError, match=rf"{what}.*; ."):
        model_values(changed(headers[model], **change))
