"""Packed weights: the float32 model's values, products and gradients, without its memory."""

from __future__ import annotations

import mmap
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType

from sapo_edge.backends.model import ggml
from sapo_edge.backends.model.gguf_header import GgufHeader, read_header
from sapo_edge.backends.model.source import open_source
from sapo_edge.backends.pytorch import packed
from sapo_edge.backends.pytorch.learner import TorchLearner
from sapo_edge.backends.pytorch.model import load_base
from sapo_edge.backends.pytorch.packed import PackedEmbedding, PackedLinear, PackedMatrix, Scratch, pack_module
from sapo_edge.backends.pytorch.place import CPU, PACKED, PART_WEIGHTS, Place, cpu_place
from sapo_edge.backends.pytorch.policy import TorchPolicy
from sapo_edge.backends.pytorch.products import by_onednn, frozen_linear, wide_product
from sapo_edge.backends.pytorch.rates import Products
from sapo_edge.errors import BackendError
from sapo_edge.policy import LoraSettings
from tests.contract.formula import Gradients, distance
from tests.contract.training import PROMPT, STRONG, own_group
from tests.directories import write_directory
from tests.models import SHAPES, Headers, ModelShape, encode_text, opening, write_model
from tests.unit.backends.model.test_ggml import FORMATS
from tests.unit.backends.pytorch.test_update import Recorder

# A k-quant's block has 256 weights.
WIDE = {
    name: replace(SHAPES[name], width=256, inner=256, heads=8, kv_heads=4, head_dim=32, layers=2)
    for name in ("llama", "qwen2", "gemma3")
}


@pytest.fixture(scope="session")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], GgufHeader]:
    """Tiny models whose matrices all have one format; of llama's the rows of q and k are in GGUF's order."""
    directory = tmp_path_factory.mktemp("quantised")
    return {
        (name, form): read_header(write_model(directory / f"{name}-{form}.gguf", shape, {"": form}))
        for name, shape in WIDE.items()
        for form in (FORMATS if name == "llama" else ("Q4_K",))
    }


def gradient(header: GgufHeader, place: Place, monkeypatch: pytest.MonkeyPatch) -> tuple[Gradients, TorchLearner]:
    """The gradient of an update with a random adapter."""
    recorder = Recorder(header, monkeypatch, place)
    return recorder.update(), recorder.learner


@pytest.mark.parametrize(
    ("name", "form"), [*(("llama", form) for form in FORMATS), ("qwen2", "Q4_K"), ("gemma3", "Q4_K")]
)
def test_gradients_are_those_of_the_float32_model(
    quantised: dict[tuple[str, str], GgufHeader], name: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "THREAD_WEIGHTS", 1000)
    header = quantised[name, form]
    wide, _ = gradient(header, CPU, monkeypatch)
    # In parts, sums are added up in another order.
    for part, limit in ((PART_WEIGHTS, 1e-7), (30_000, 1e-4)):
        monkeypatch.setattr(packed, "PART_WEIGHTS", part)
        narrow, learner = gradient(header, PACKED, monkeypatch)
        assert distance(narrow, wide) < limit
    linear = [module for module in learner.model.modules() if isinstance(module, torch.nn.Linear)]
    base = [module for module in linear if module.weight.numel() == 0]
    # Seven linear layers in each of two blocks, and the output.
    assert len(base) == 15 and all(isinstance(module, PackedLinear) for module in base)
    assert isinstance(learner.trunk.embed_tokens, PackedEmbedding)


@pytest.mark.parametrize("form", ["Q4_K", "BF16"])
def test_packed_products_in_bfloat16_are_those_of_bfloat16_weights(
    quantised: dict[tuple[str, str], GgufHeader], form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("THREAD_WEIGHTS", "TILE_WEIGHTS"):
        monkeypatch.setattr(packed, name, 1000)
    header, place = quantised["llama", form], replace(PACKED, products="bfloat16")
    narrow, learner = gradient(header, cpu_place(Products("bfloat16")), monkeypatch)
    whole, _ = gradient(header, place, monkeypatch)
    assert distance(whole, narrow) < 1e-6
    # Not by chance: they are others than float32's.
    assert distance(whole, gradient(header, CPU, monkeypatch)[0]) > 1e-4
    assert {p.dtype for p in learner.parameters.values()} == {torch.float32}
    # In parts, the results of parts are rounded before they are added up.
    monkeypatch.setattr(packed, "PART_WEIGHTS", 30_000)
    assert distance(gradient(header, place, monkeypatch)[0], narrow) < 0.05


def test_onednn_makes_float32_products_only_for_bfloat16_and_only_meanwhile() -> None:
    matmul: Any = getattr(torch.backends.mkldnn, "matmul", None)
    if matmul is None:
        pytest.skip("this torch has no such switch")
    before = matmul.fp32_precision
    with by_onednn("float32"):
        assert matmul.fp32_precision == before
    with pytest.raises(ZeroDivisionError), by_onednn("bfloat16"):
        assert matmul.fp32_precision == "bf16"
        raise ZeroDivisionError
    assert matmul.fp32_precision == before


@pytest.mark.skipif(
    not torch.backends.mkl.is_available(),  # type: ignore[no-untyped-call]
    reason="without MKL no product is made in blocks",
)
def test_a_wide_product_is_made_in_blocks_with_the_same_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight, gradient = (torch.randn(shape, generator=generator) for shape in ((70, 64), (2000, 64), (70, 2000)))
    multiply = Mock(wraps=torch.mm)
    monkeypatch.setattr(torch, "mm", multiply)
    monkeypatch.setattr("sapo_edge.backends.pytorch.products.BLOCK", 100)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    learned = x.clone().requires_grad_()
    result = frozen_linear(learned, weight, None)
    torch.autograd.backward(result, gradient)
    assert learned.grad is not None
    torch.testing.assert_close(result, x @ weight.t())
    torch.testing.assert_close(learned.grad, gradient @ weight)
    torch.testing.assert_close(wide_product(x, weight.t()), x @ weight.t())
    # What is narrow, as the input's gradient here, is made at once.
    widths = [call.args[1].shape[1] for call in multiply.call_args_list]
    assert widths == [*[100] * 20, 64, *[100] * 20]


@pytest.mark.parametrize("name", ["llama-gqa", "llama-f16"])
def test_a_model_computes_the_same_packed(headers: Headers, name: str) -> None:
    """Untied, and with matrices that are float32 in the file, which stay as they are."""
    tokens = torch.tensor([encode_text("two plus two")])
    wide, narrow = load_base(headers[name]), load_base(headers[name], PACKED)
    assert isinstance(narrow.lm_head, PackedLinear) == (name == "llama-f16")
    with torch.no_grad():
        assert torch.equal(wide(tokens).logits, narrow(tokens).logits)


def matrix(scratch: Scratch) -> PackedMatrix:
    """8 rows of 32 values, row i full of i."""
    values = np.repeat(np.arange(8, dtype=np.float32)[:, None], 32, axis=1)
    return PackedMatrix(ggml.quantise(GGMLQuantizationType.F16, values), 1, 32, None, scratch)


def test_a_scaled_embedding_stays_scaled() -> None:
    class Scaled(torch.nn.Embedding):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return super().forward(ids) * 3.0

    embedding = Scaled(8, 32)
    pack_module(embedding, matrix(Scratch()))
    assert embedding(torch.tensor([[2, 5]]))[0, :, 0].tolist() == [6.0, 15.0]


def test_all_matrices_of_a_model_share_their_wide_memory() -> None:
    scratch = Scratch()
    first, second = matrix(scratch), matrix(scratch)
    assert len({weight.data_ptr() for one in (first, second, first) for _, weight in one._parts()}) == 1


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="reads Linux's list of mappings")
def test_the_file_is_not_counted_as_the_processes_memory(tmp_path: Path) -> None:
    file = tmp_path / "blocks"
    file.write_bytes(bytes(1000 * 4096 * 2))
    with file.open("rb") as opened:
        mapping = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)
    blocks = np.frombuffer(mapping, np.uint8).reshape(1000, 8192)
    PackedMatrix(blocks, GGMLQuantizationType.F16, 4096, None, Scratch(), mapping).product(torch.ones(1, 4096), None)
    lines = Path("/proc/self/smaps").read_text().splitlines()
    (start,) = (index for index, line in enumerate(lines) if line.endswith(str(file)))
    resident = int(next(line for line in lines[start:] if line.startswith("Rss:")).split()[1]) * 1024
    assert resident < file.stat().st_size / 4


# Blocks of 256 fit rows of 256 values and not those of 96, which then get blocks of 32.
@pytest.mark.parametrize("shape", [WIDE["llama"], replace(SHAPES["qwen2"], half=True)])
@pytest.mark.parametrize(("form", "kinds"), [("q4_k", {12, 6}), ("q5_k", {13, 7}), ("q8_0", {8})])
def test_loading_quantises_a_directory(tmp_path: Path, shape: ModelShape, form: str, kinds: set[int]) -> None:
    source = open_source(write_directory(tmp_path / "model", shape, half=shape.half))
    wide, narrow = load_base(source), load_base(source, replace(CPU, weights=form))
    layers = {name: module for name, module in narrow.named_modules() if hasattr(module, "packed")}
    assert len(layers) == 16
    for name, module in layers.items():
        kind = module.packed.kind
        assert kind in kinds if "layers." in name else kind == 8
        values = module.packed.rows(np.arange(module.packed.shape[0]))
        target = wide.get_submodule(name)
        # Half a step of a format with 4 bits.
        assert 0 < (values - target.weight).abs().max() < 0.1 * target.weight.abs().max()
        target.weight = torch.nn.Parameter(values, requires_grad=False)
    tokens = torch.tensor([encode_text("two plus two")])
    with torch.no_grad():
        assert torch.equal(wide(tokens).logits, narrow(tokens).logits)


@pytest.mark.parametrize("form", ["q4_k", "q5_k"])
def test_formats_that_need_llama_cpp_say_so(tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ggml, "_quantiser", lambda: None)
    source = open_source(write_directory(tmp_path / "model", WIDE["llama"]))
    load_base(source, replace(CPU, weights="q8_0"))
    with pytest.raises(BackendError, match=rf"{form} needs llama\.cpp; .*llama-cpp-python.*q8_0"):
        load_base(source, replace(CPU, weights=form))


def test_a_quantised_directory_samples_and_learns(tmp_path: Path) -> None:
    path = write_directory(tmp_path / "model", SHAPES["llama"])
    with closing(TorchPolicy(opening(path, lora=LoraSettings(rank=4, alpha=8.0), quantise="q4_k"), "cpu")) as policy:
        assert policy.place.weights == "q4_k"
        # Sampler and learner are the same quantised model.
        assert policy.update([own_group(policy, PROMPT)], STRONG).mismatch_kl < 1e-7


@pytest.mark.parametrize("name", ["llama", "llama-gqa", "gemma3"])
def test_tables_in_bfloat16_compute_what_float32_ones_of_the_same_values_do(
    headers: Headers, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "PART_WEIGHTS", 100 * SHAPES[name].width)
    ids, results = torch.tensor([list(b"What is 3 + 4?")]), []
    for narrow in (False, True):
        model = load_base(headers[name])
        for table in (model.get_input_embeddings(), model.lm_head):
            if narrow:
                packed.narrow_table(table)
                assert table.weight.dtype == torch.bfloat16
            else:
                table.weight.data = table.weight.bfloat16().float()
        states = model.get_input_embeddings()(ids).requires_grad_()
        logits = model.lm_head(model.model(inputs_embeds=states).last_hidden_state)
        assert logits.dtype == states.dtype == torch.float32
        logits.square().sum().backward()
        results.append((logits.detach(), states.grad))
    for wide, other in zip(*results, strict=True):
        assert float((wide - other).abs().max()) < 1e-5 * float(wide.abs().max())
