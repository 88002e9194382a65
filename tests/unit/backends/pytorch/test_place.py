"""Places and devices: number formats, batch sizes by free memory, and how far bfloat16 moves the results."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from sapo_edge.backends.adapter.files import adapter_shapes
from sapo_edge.backends.backend import RoundShape
from sapo_edge.backends.common.policy import BasePolicy
from sapo_edge.backends.llama import backend as llama_backend
from sapo_edge.backends.machine.host import multiplies_bfloat16, this_host
from sapo_edge.backends.model.gguf_header import read_header
from sapo_edge.backends.model.shape import ModelShape
from sapo_edge.backends.pytorch import backend as torch_backend
from sapo_edge.backends.pytorch import place as torch_place
from sapo_edge.backends.pytorch import rates, runtime
from sapo_edge.backends.pytorch.model import adapter_parameters, add_adapter, load_base
from sapo_edge.backends.pytorch.place import CPU, estimate_memory, gpu_place, slots_for
from sapo_edge.backends.pytorch.policy import TorchPolicy
from sapo_edge.backends.pytorch.rates import Products
from sapo_edge.backends.pytorch.runtime import choose_place
from sapo_edge.errors import BackendError, ModelError
from sapo_edge.policy import PUBLISHED, LoraSettings, UpdateSettings
from tests.contract.training import PROMPT, STRONG, own_group
from tests.models import Headers, Models, encode_text, opening
from tests.unit.backends.fresh import python
from tests.unit.backends.pytorch.test_update import STILL, Recorder

SMALL = ModelShape(576, 30, 1536, 9, 3, 64, 49152, 8192, True)
"""SmolLM2-135M."""
LARGE = ModelShape(4096, 32, 14336, 32, 8, 128, 128256, 8192, False)
"""Llama-3.1-8B: 18 GB with its linear layers in bfloat16."""
MANY_SHAPES = """
import psutil, torch
from sapo_edge.backends.pytorch.place import CPU
from sapo_edge.backends.pytorch.runtime import prepare_device

prepare_device(CPU)
torch.set_num_threads(1)
weight = torch.ones(64, 64, dtype=torch.bfloat16)
for rows in range(1, 161):
    torch.nn.functional.linear(torch.ones(rows, 64, dtype=torch.bfloat16), weight)
    if rows == 80:
        before = psutil.Process().memory_full_info().uss
print(psutil.Process().memory_full_info().uss - before)
"""
NARROW = replace(CPU, weights="bfloat16")


@pytest.mark.parametrize(
    ("shape", "gigabytes", "four_bits", "bfloat16", "weights", "why"),
    [
        (SMALL, 24, False, True, "bfloat16", "in bfloat16"),
        (SMALL, 6, False, False, "float32", "no bfloat16"),
        (LARGE, 40, True, True, "bfloat16", "in bfloat16"),
        (LARGE, 14, True, True, "nf4", "4 bits"),
        (LARGE, 11.4, True, True, "nf4", "4 bits"),
        (LARGE, 24, True, False, "nf4", "float32 needs"),
    ],
)
def test_the_format_follows_the_gpus_room_and_what_it_multiplies(
    shape: ModelShape, gigabytes: float, four_bits: bool, bfloat16: bool, weights: str, why: str
) -> None:
    place = gpu_place(shape, "cuda", "RTX", int(gigabytes * 1e9), four_bits=four_bits, bfloat16=bfloat16)
    assert (place.weights, place.graphs, place.slots) == (weights, True, torch_place.GPU_SLOTS)
    assert "RTX" in place.reason and why in place.reason


@pytest.mark.parametrize(
    ("gigabytes", "four_bits", "problem", "remedy"),
    [(14, False, r"14\.0 GB free", "pip install 'bitsandbytes>="), (4, True, "in 4 bits", "smaller model")],
)
def test_a_model_too_large_for_a_gpu_is_an_error(gigabytes: int, four_bits: bool, problem: str, remedy: str) -> None:
    with pytest.raises(ModelError, match=f"{problem}.*; .*{remedy}"):
        gpu_place(LARGE, "cuda", "RTX", gigabytes * 1_000_000_000, four_bits=four_bits)


def test_a_gpu_with_less_room_uses_smaller_packs() -> None:
    frees = [int(free * 1e9) for free in (1.5, 4, 8, 80)]
    places = [gpu_place(SMALL, "cuda", "RTX", free, four_bits=False) for free in frees]
    sizes = [place.pack_tokens for place in places]
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1] == torch_place.GPU_PACK_TOKENS
    assert places[0].logit_rows < places[-1].logit_rows == torch_place.GPU_LOGIT_ROWS
    for place, free in zip(places, frees, strict=True):
        need = estimate_memory(SMALL, RoundShape(16, 8, 8, 200, 64), place)
        # Free memory is measured when the GPU's context already exists.
        assert need - torch_place.DEVICE_RUNTIME_BYTES < free


@pytest.mark.parametrize(
    ("device", "capability", "hip", "weights"),
    [
        ("cuda", (6, 1), None, "float32"), ("cuda:1", (7, 0), None, "float32"), ("cuda", (7, 5), None, "float32"),
        ("cuda", (8, 0), None, "bfloat16"), ("cuda", (12, 0), None, "bfloat16"), ("cuda", (7, 5), "6.4", "bfloat16"),
        ("xpu", (0, 0), None, "bfloat16"),
    ],
)  # fmt: skip
def test_a_place_on_a_gpu_follows_its_capability(
    monkeypatch: pytest.MonkeyPatch, device: str, capability: tuple[int, int], hip: str | None, weights: str
) -> None:
    monkeypatch.setattr(runtime, "_check", lambda _device: None)
    monkeypatch.setattr(runtime, "free_memory", lambda _device: 20_000_000_000)
    monkeypatch.setattr(runtime, "_module", lambda _device: SimpleNamespace(get_device_name=lambda _device: "a GPU"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    monkeypatch.setattr(torch.version, "hip", hip)
    place = choose_place(SMALL, device)
    assert (place.device, place.weights, place.on_cpu) == (device, weights, False) and "a GPU" in place.reason
    assert choose_place(SMALL, "mps").weights == "float32"


def test_a_device_that_torch_lacks_or_has_no_code_for_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BackendError, match=r"can't use the device nonsense.*; ."):
        choose_place(SMALL, "nonsense")
    assert choose_place(SMALL, "cpu") == CPU
    error = RuntimeError("CUDA error: no kernel image is available for execution on the device\nCompile with ...")
    monkeypatch.setattr(torch, "ones", Mock(side_effect=error))
    with pytest.raises(BackendError, match=r"no kernel image.*; .*built for it"):
        choose_place(SMALL, "cuda")


def test_free_memory_of_a_gpu_whose_driver_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = RuntimeError("The device doesn't support querying the available free memory.")
    monkeypatch.setattr(torch.xpu, "memory_reserved", lambda _device: 300)
    monkeypatch.setattr(torch.xpu, "memory_allocated", lambda _device: 100)
    monkeypatch.setattr(torch.xpu, "get_device_properties", lambda _device: SimpleNamespace(total_memory=1000))
    monkeypatch.setattr(torch.xpu, "mem_get_info", lambda _device: (500, 1000), raising=False)
    assert runtime.free_memory("xpu") == 700
    monkeypatch.setattr(torch.xpu, "mem_get_info", Mock(side_effect=refusal))
    assert runtime.free_memory("xpu") == 900
    monkeypatch.delattr(torch.xpu, "mem_get_info")
    assert runtime.free_memory("xpu") == 900


@pytest.mark.parametrize("device", ["mps", "xpu", "cuda"])
def test_every_gpus_memory_is_returned(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    released: list[str] = []
    for name in ("mps", "xpu", "cuda"):
        monkeypatch.setattr(getattr(torch, name), "empty_cache", lambda name=name: released.append(name))
    runtime.release_device_memory(device)
    assert released == [device]


def test_parallel_answers_are_limited_by_memory_on_a_gpu() -> None:
    place = gpu_place(SMALL, "cuda", "RTX", 24_000_000_000, four_bits=False)
    assert slots_for(place, SMALL, 300, 24_000_000_000) == torch_place.GPU_SLOTS
    assert 1 < slots_for(place, SMALL, 2000, 2_000_000_000) < 20
    assert slots_for(place, SMALL, 2000, 1000) == 1
    assert slots_for(CPU, SMALL, 2000, 1000) == torch_place.SLOTS


def test_four_bits_need_bitsandbytes(headers: Headers) -> None:
    try:
        import bitsandbytes  # noqa: F401
    except ImportError:
        with pytest.raises(BackendError, match="bitsandbytes"):
            load_base(headers["llama"], replace(CPU, weights="nf4"))
    else:
        assert "FourBitLinear" in repr(load_base(headers["llama"], replace(CPU, weights="nf4")))


def test_only_the_linear_layers_of_blocks_are_narrow_and_move_little(headers: Headers) -> None:
    model = add_adapter(load_base(headers["qwen2"], NARROW), LoraSettings(rank=4), "tiny")
    for name, parameter in model.named_parameters():
        narrow = "base_layer.weight" in name
        assert parameter.dtype == (torch.bfloat16 if narrow else torch.float32), name
    assert model(torch.tensor([encode_text("two")])).logits.dtype == torch.float32
    # Tiny models have large weights: a tenth of a nat here is a hundredth in a real model.
    ids = torch.tensor([encode_text("two plus two is four, and so on")])
    for name in ("llama-gqa", "qwen2", "qwen3"):
        with torch.no_grad():
            wide, narrow = (load_base(headers[name], place)(ids).logits.log_softmax(-1) for place in (CPU, NARROW))
        assert float((wide.exp() * (wide - narrow)).sum(-1).mean()) < 2e-3


@pytest.mark.parametrize(("device", "weights"), [("cpu", "bfloat16"), ("cpu", "nf4"), ("cuda", "bfloat16")])
def test_a_narrow_model_samples_and_learns(models: Models, tmp_path: Path, device: str, weights: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("torch has no CUDA device here")
    if weights == "nf4":
        pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    options = opening(models["llama-gqa"], lora=LoraSettings(rank=4, alpha=8.0))
    policy = TorchPolicy(options, device, place=replace(CPU, weights=weights) if device == "cpu" else None)
    assert policy.place.weights == weights
    group = own_group(policy, PROMPT, answers=8)
    # Sampler and learner round in the same way, but add up in different orders.
    assert policy.update([group], UpdateSettings(learning_rate=0.0)).mismatch_kl < 1e-3
    base = policy.generate([PROMPT], 2, 8, 1.0, seed=0)
    for _ in range(4):
        policy.update([group], STRONG)
    assert policy.generate([PROMPT], 2, 8, 1.0, seed=0, use_adapter=False) == base
    again = own_group(policy, PROMPT, answers=8)
    assert [answer.token_ids for answer in again.answers] != [answer.token_ids for answer in group.answers]
    policy.save(tmp_path)
    policy.load(tmp_path)
    if weights == "bfloat16":
        wide = TorchPolicy(options, place=CPU)
        wide.load(tmp_path)
        assert wide.update([again], UpdateSettings(learning_rate=0.0)).mismatch_kl < 1e-2


def test_gradients_of_narrow_weights_are_close_to_wide_ones(headers: Headers, monkeypatch: pytest.MonkeyPatch) -> None:
    # The rule for external tokens multiplies by their probabilities, and so by their rounding.
    settings, gradients = replace(STILL, external_rule=PUBLISHED), []
    for place in (CPU, NARROW):
        gradient = Recorder(headers["llama-gqa"], monkeypatch, place).update(settings)
        gradients.append(np.concatenate([array.flatten() for array in gradient.values()]))
    wide, narrow = gradients
    assert np.dot(wide, narrow) / np.linalg.norm(wide) / np.linalg.norm(narrow) > 0.999


@pytest.mark.parametrize(
    ("flags", "expected"),
    [("fpu avx512f avx512_bf16 amx_tile", True), ("fpu amx_bf16", True), ("fpu avx2 avx512f avx512_bf16x", False)],
)
def test_a_processor_that_multiplies_bfloat16_is_known_by_its_flags(flags: str, expected: bool, tmp_path: Path) -> None:
    processors = tmp_path / "cpuinfo"
    processors.write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t: none\n\nprocessor\t: 1\n")
    assert multiplies_bfloat16(processors) == expected
    assert not multiplies_bfloat16(tmp_path / "missing")


@pytest.mark.parametrize("fastest", ["bfloat16", "float32"])
def test_a_place_and_its_estimate_follow_the_format_of_products(
    fastest: str, monkeypatch: pytest.MonkeyPatch, models: Models, tmp_path: Path
) -> None:
    # A directory's matrices stay in 4 bits; a model that is not quantised is half as large in bfloat16.
    places = [torch_place.cpu_place(Products(fastest), quantise) for quantise in ("q4_k", "")]
    assert [(place.weights, place.products) for place in places] == [("q4_k", fastest), (fastest, fastest)]
    monkeypatch.setattr(rates, "multiplies_bfloat16", lambda: True)
    monkeypatch.setattr(rates, "_rates", lambda: {"bfloat16": 1.0, "float32": 0.5 if fastest == "bfloat16" else 2.0})
    # Without room for a copy of the weights, which only bfloat16 has.
    size = RoundShape(16, 8, 8, 200, 64, memory=1, cache=tmp_path)
    shape = ModelShape.of_gguf(read_header(models["llama"]))
    needs = [torch_backend.estimate(models["llama"], replace(size, precision=p)) for p in ("float32", "auto")]
    assert needs[0] - needs[1] == (2 * shape.block_weights if fastest == "bfloat16" else 0)
    policy = TorchPolicy(opening(models["llama"], tmp_path, trainable=False, precision="auto"), device="cpu")
    assert policy.place.products == fastest and "the faster here" in policy.reasons[0]


def test_a_cpu_with_room_takes_long_packs_and_keeps_their_memory(models: Models, tmp_path: Path) -> None:
    places, estimates = [], []
    for memory in (10_000_000_000, 1_000_000):
        size = RoundShape(16, 8, 2, 60, 20, memory=memory)
        with closing(TorchPolicy(opening(models["llama"], tmp_path / str(memory), size=size), "cpu")) as policy:
            places.append((policy.place.pack_tokens, policy.place.keeps_freed))
            assert policy.learner is not None and policy.learner.pack_tokens == policy.place.pack_tokens
            estimates.append(policy.memory_estimate(8, 2, 60, 20))
            assert estimates[-1] == torch_backend.estimate(models["llama"], size)
    assert places == [(torch_place.ROOMY_TOKENS, True), (torch_place.PACK_TOKENS, False)]
    assert estimates[0] > estimates[1]


def test_the_shape_knows_every_weight(headers: Headers) -> None:
    for name, header in headers.items():
        shape, model = ModelShape.of_gguf(header), load_base(header)
        linear = sum(p.numel() for n, p in model.model.layers.named_parameters() if n.endswith("proj.weight"))
        assert shape.block_weights == linear
        tables = {p.data_ptr(): p.numel() for n, p in model.named_parameters() if "embed" in n or "lm_head" in n}
        assert shape.table_weights == sum(tables.values())
        parameters = adapter_parameters(add_adapter(model, LoraSettings(rank=4), name))
        assert adapter_shapes(shape, 4) == {key: tuple(value.shape) for key, value in parameters.items()}
        assert 4 * shape.adapter_edges == sum(value.numel() for value in parameters.values())


def allocate_a_petabyte(*_arguments: object, **_options: object) -> None:
    torch.empty(1 << 50, dtype=torch.uint8)


@pytest.mark.parametrize("backend", [torch_backend, llama_backend])
def test_a_full_memory_is_an_error_with_a_remedy(
    backend: ModuleType, models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_backend, "this_host", lambda: replace(this_host(), nvidia=lambda: None))
    options = opening(models["llama"], tmp_path, lora=LoraSettings(rank=4))
    policy: BasePolicy = backend.open_policy(options)
    group = own_group(policy, PROMPT)
    for full in (allocate_a_petabyte, lambda *_, **__: np.empty(1 << 60, np.uint8)):
        monkeypatch.setattr(policy.learner, "_hidden", full)
        with pytest.raises(ModelError, match=r"this machine's memory is full.*; .*fewer or shorter answers"):
            policy.update([group], STRONG)
    policy.close()
    monkeypatch.setattr("sapo_edge.backends.pytorch.learner.load_base", allocate_a_petabyte)
    with pytest.raises(ModelError, match="this machine's memory is full"):
        backend.open_policy(options)


def test_another_error_stays_itself() -> None:
    with pytest.raises(RuntimeError, match="shapes"), runtime.explain_full_memory("cpu"):
        torch.zeros(2, 3) @ torch.zeros(2, 3)


class FakeLinear4bit(torch.nn.Linear):
    """bitsandbytes' layer without its quantisation: inputs, product and bias in bfloat16."""

    def __init__(self, inputs: int, outputs: int, bias: bool, dtype: torch.dtype, quant_type: str) -> None:
        super().__init__(inputs, outputs, bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, bias = self.weight.bfloat16(), None if self.bias is None else self.bias.bfloat16()
        return torch.nn.functional.linear(x.bfloat16(), weight, bias).to(x.dtype)


def test_large_biases_do_not_swallow_products_in_four_bits(headers: Headers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "bitsandbytes.nn", SimpleNamespace(Linear4bit=FakeLinear4bit))
    model = load_base(headers["qwen2"], replace(CPU, weights="nf4"))
    linear = model.model.layers[0].self_attn.q_proj
    assert isinstance(linear, FakeLinear4bit)
    x = torch.randn(8, linear.in_features, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        product = torch.nn.functional.linear(x, linear.weight)
        linear.bias.fill_(300.0)
        # Numbers of this size are 2 apart in bfloat16.
        assert (linear(x) - 300.0 - product).abs().max() < 0.1
    assert not any(p.is_meta for p in model.parameters()) and linear.bias.dtype == torch.float32


@pytest.mark.skipif(not multiplies_bfloat16(), reason="oneDNN compiles nothing for these products")
def test_products_of_ever_new_shapes_take_no_more_memory() -> None:
    """Updates have a different number of tokens each: a node must not grow by them for hours."""
    assert int(python(MANY_SHAPES)) < 10e6, "60 MB without a bound"
