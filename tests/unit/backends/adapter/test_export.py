"""Adapters in the formats of other programs: these compute with them what base model and adapter do together.

A merged model does so in programs that know nothing of adapters.
"""

from __future__ import annotations

import json
import shutil
import sys
import warnings
from collections import Counter
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, LlamaFileType

from sapo_edge.backends.adapter.export import ExportFormat, Quantisation, export, usage
from sapo_edge.backends.adapter.files import ADAPTER_FILE, read_adapter, write_state, write_tensors
from sapo_edge.backends.adapter.merged import number_format
from sapo_edge.backends.llama.runtime import LlamaModel
from sapo_edge.backends.model.gguf_header import GgufHeader, TensorInfo, read_header
from sapo_edge.errors import BackendError, CheckpointError, ModelError, StateError
from sapo_edge.policy import LoraSettings, Message
from tests import needs
from tests.contract.training import edit
from tests.directories import SHAPES as DIRECTORIES
from tests.directories import dtype_of, reference, write_directory
from tests.models import ROPES, SHAPES, ModelShape, ReferenceModel, kl, write_model
from tests.unit.backends.adapter.bridging import TorchSide, llama_logits

IDS = [*b"What is 3 + 4?"]
LORA = LoraSettings(rank=4, alpha=6.0)
NEWER = "olmo2", "hunyuan", "ernie4_5", "exaone4"
"""Shapes whose files transformers does not read."""


def peft_adapter(directory: Path, base: Path) -> Path:
    """An adapter written by PEFT, both of its matrices random."""
    import torch
    from peft import LoraConfig, get_peft_model

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        model = get_peft_model(
            reference(base).base, LoraConfig(r=4, lora_alpha=6, target_modules="all-linear", task_type="CAUSAL_LM")
        )
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    model.save_pretrained(str(directory))
    return directory


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_directory(tmp_path_factory.mktemp("base") / "model", SHAPES["qwen3"])


@pytest.fixture(scope="module")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return peft_adapter(tmp_path_factory.mktemp("adapter"), base)


@needs.MLX
def test_plain_mlx_lm_computes_with_it(base: Path, adapter: Path, tmp_path: Path) -> None:
    from sapo_edge.backends.apple.runtime import require_mlx

    require_mlx()
    import mlx.core as mx
    from mlx_lm.tuner.utils import load_adapters
    from mlx_lm.utils import load_model

    path = export(adapter, tmp_path, ExportFormat.MLX, base)
    model: Any
    model, _ = load_model(base)
    plain = np.array(model(mx.array([IDS]))[0], np.float64)
    adapted = np.array(load_adapters(model, str(path))(mx.array([IDS]))[0], np.float64)
    assert np.abs(plain - reference(base).logits(IDS)).max() < 1e-3
    assert np.abs(adapted - reference(base).logits(IDS, adapter)).max() < 1e-3
    assert np.abs(adapted - plain).max() > 0.1


def test_an_adapter_for_mlx_fits_beside_one_for_peft_or_is_refused(base: Path, adapter: Path, tmp_path: Path) -> None:
    export(adapter, tmp_path, ExportFormat.PEFT, base)
    path = export(adapter, tmp_path, ExportFormat.MLX, base)
    assert json.loads((tmp_path / "adapter_config.json").read_text())["peft_type"] == "LORA"
    settings = json.loads((path / "adapter_config.json").read_text())
    assert (settings["num_layers"], settings["lora_parameters"]["scale"]) == (2, 1.5)
    assert sorted(file.name for file in path.iterdir()) == ["adapter_config.json", "adapters.safetensors"]
    (tmp_path / "mlx" / ".adapters.safetensors.part").mkdir(parents=True)
    with pytest.raises(StateError, match=r"can't write to .*: Is a directory.*; ."):
        export(adapter, tmp_path, ExportFormat.MLX, base)
    odd = Path(shutil.copytree(adapter, tmp_path / "odd"))
    extra = {"base_model.model.lm_head.lora_A.weight": np.zeros((4, 64), np.float32)}
    edit(odd / ADAPTER_FILE, lambda weights: weights.update(extra))
    with pytest.raises(CheckpointError, match=r"lm_head.*; ."):
        export(odd, tmp_path / "out", ExportFormat.MLX, base)


def write_pair(directory: Path, shape: str, quantised: dict[str, str] | None = None) -> tuple[Path, TorchSide, Path]:
    """A GGUF file, the same model in torch with an adapter, and this adapter as a file of PEFT."""
    base = write_model(directory / "base.gguf", SHAPES[shape], quantised)
    side = TorchSide(read_header(base), LORA, 0.3)
    (adapter := directory / "adapter").mkdir()
    write_state(adapter, LORA, "base", side.weights(), {})
    return base, side, adapter


@pytest.mark.parametrize("shape", ["llama-gqa", "qwen3", "granite", "gemma3", *NEWER])
def test_a_merged_file_is_base_and_adapter_together(tmp_path: Path, shape: str) -> None:
    base, side, adapter = write_pair(tmp_path, shape)
    expected = side.logits(IDS, adapter=True)
    bounds = {Quantisation.F16: 1e-4, Quantisation.Q8_0: 0.01, Quantisation.Q4_K_M: 0.2}
    for form, bound in bounds.items():
        path = export(adapter, tmp_path / form, ExportFormat.MERGED, base, quantisation=form)
        assert path == tmp_path / form / f"merged-{form}.gguf"
        assert sorted(file.name for file in path.parent.iterdir()) == ["Modelfile", path.name]
        with closing(LlamaModel(read_header(path))) as model:
            assert kl(expected, llama_logits(model, IDS)) < bound
    assert kl(expected, side.logits(IDS, adapter=False)) > 0.3
    # Vocabulary and chat template are the base model's.
    merged, template = tmp_path / "f16" / "merged-f16.gguf", "tokenizer.chat_template"
    assert read_header(merged).metadata[template] == read_header(base).metadata[template]
    # transformers does not read the others, or not as llama.cpp does.
    if shape in ("llama-gqa", "qwen3"):
        assert kl(expected, ReferenceModel(merged, SHAPES[shape]).logits(IDS)) < 1e-4


def test_a_quantised_base_keeps_what_is_not_adapted(tmp_path: Path) -> None:
    base, side, adapter = write_pair(tmp_path, "llama-gqa", {"attn": "Q4_0", "ffn": "Q8_0"})
    path = export(adapter, tmp_path, ExportFormat.MERGED, base)
    assert path.name == "merged-q8_0.gguf"
    with closing(LlamaModel(read_header(path))) as model:
        assert kl(side.logits(IDS, adapter=True), llama_logits(model, IDS)) < 0.01


def test_the_usual_formats_need_no_llama_cpp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base, _, adapter = write_pair(tmp_path, "llama-gqa", {"attn": "Q4_0"})
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    for form in (Quantisation.Q8_0, Quantisation.F16, Quantisation.BF16):
        path = export(adapter, tmp_path / form, ExportFormat.MERGED, base, quantisation=form)
        header = read_header(path)
        assert header.metadata["general.file_type"] == LlamaFileType[f"MOSTLY_{form.upper()}"]
        kinds = {info.type for info in header.tensors.values() if len(info.shape) == 2}
        assert kinds == {GGMLQuantizationType[form.upper()]}
    with pytest.raises(BackendError, match="llama"):
        export(adapter, tmp_path / "out", ExportFormat.MERGED, base, quantisation=Quantisation.Q4_K_M)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("form", "counts"),
    [
        ("q6_k", {"Q8_0": 181, "Q6_K": 30}),
        ("q5_k_m", {"Q5_1": 166, "Q5_K": 16, "Q8_0": 15, "Q6_K": 14}),
        ("q4_k_m", {"Q5_0": 166, "Q4_K": 16, "Q8_0": 15, "Q6_K": 14}),
        ("q4_0", {"Q4_0": 210, "Q8_0": 1}),
    ],
)
def test_narrow_formats_are_mixed_as_llama_cpp_mixes_them(form: str, counts: dict[str, int]) -> None:
    """What llama.cpp's own conversion made of the embedded model, whose tensors then were equal to the byte, too."""
    width, inner = 576, 1536
    shapes = {
        "attn_q": (width, width), "attn_k": (192, width), "attn_v": (192, width), "attn_output": (width, width),
        "ffn_gate": (inner, width), "ffn_up": (inner, width), "ffn_down": (width, inner), "attn_norm": (width,),
    }  # fmt: skip
    tensors = {"token_embd.weight": TensorInfo("token_embd.weight", (49152, width), 3, 0, 0)}
    for block in range(30):
        for name, shape in shapes.items():
            tensors[f"blk.{block}.{name}.weight"] = TensorInfo(name, shape, 3, 0, 0)
    header = GgufHeader(Path("m.gguf"), {"general.architecture": "llama", "llama.block_count": 30}, tensors)
    kinds = [number_format(header, name, form) for name in tensors]
    assert Counter(kind.name for kind in kinds if kind is not None) == counts and kinds.count(None) == 30
    more = [block for block in range(30) if number_format(header, f"blk.{block}.ffn_down.weight", "q4_k_m") == 14]
    assert more == [0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 26, 27, 28, 29]


def test_the_modelfile_has_the_prompt_of_the_training(tmp_path: Path) -> None:
    base, _, adapter = write_pair(tmp_path, "llama")
    prompt = (Message("system", 'Say """only"""\nthe result.'), Message("user", "3 + 4?"), Message("assistant", "7"))
    path = export(adapter, tmp_path / "out", ExportFormat.MERGED, base, prompt=prompt)
    assert (path.parent / "Modelfile").read_text() == (
        'FROM ./merged-q8_0.gguf\nSYSTEM """Say \'\'\'only\'\'\'\nthe result."""\nMESSAGE user """3 + 4?"""\n'
        'MESSAGE assistant """7"""\nPARAMETER temperature 0\nPARAMETER stop </answer>\n'
    )
    commands = dict(usage(path, ExportFormat.MERGED, base))
    assert commands["Ollama"].startswith(f"ollama create my-model -f {path.parent / 'Modelfile'} ")
    assert commands["LM Studio"] == f"lms import --copy {path}" and commands["llama.cpp"].startswith("llama-cli -m")


@pytest.mark.parametrize(
    ("shape", "half"),
    [
        *((SHAPES["qwen3"], half) for half in (False, True)),
        *((SHAPES[name], False) for name in ("gemma3", "granite", *NEWER)),
        *((shape, False) for shape in DIRECTORIES.values()),
    ],
    ids=lambda value: f"{value.architecture}-{value.window}" if isinstance(value, ModelShape) else str(value),
)
def test_a_merged_directory_is_base_and_adapter_together(tmp_path: Path, shape: ModelShape, half: bool) -> None:
    base = write_directory(tmp_path / "base", shape, half=half)
    adapter = peft_adapter(tmp_path / "adapter", base)
    (old := tmp_path / "out" / "merged").mkdir(parents=True)
    for name in ("model-00001-of-00002.safetensors", "model.safetensors.index.json"):
        (old / name).write_text("of a larger model that was merged here before")
    path = export(adapter, tmp_path / "out", ExportFormat.MERGED, base)
    assert path == old and [file.name for file in path.glob("*.safetensors*")] == ["model.safetensors"]
    expected = reference(base).logits(IDS, adapter)
    assert kl(expected, reference(path).logits(IDS)) < (1e-2 if half else 1e-8)
    assert kl(expected, reference(base).logits(IDS)) > 0.1
    assert dtype_of(path) == ("bfloat16" if half else "float32")
    assert (path / "tokenizer.json").read_bytes() == (base / "tokenizer.json").read_bytes()
    assert "from_pretrained" in dict(usage(path, ExportFormat.MERGED, base))["transformers"]


@needs.MLX
@pytest.mark.parametrize("shape", ["llama-3.2", "llama-gqa", "qwen2", "smollm3", "granite", "gemma3", *NEWER])
def test_plain_mlx_lm_reads_a_merged_directory_as_transformers_does(tmp_path: Path, shape: str) -> None:
    from sapo_edge.backends.apple.runtime import require_mlx

    require_mlx()
    import mlx.core as mx
    import mlx_lm

    rope = ROPES["llama3"] if SHAPES[shape].rope == "llama3" else None
    base = write_directory(tmp_path / "base", SHAPES[shape], rope)
    adapter = peft_adapter(tmp_path / "adapter", base)
    expected = reference(base).logits(IDS, adapter)
    path = export(adapter, tmp_path, ExportFormat.MERGED, base)
    model, _ = mlx_lm.load(str(path))
    # mlx-lm rounds the scale of Gemma's embedding to bfloat16.
    bound = 1e-4 if shape == "gemma3" else 1e-6
    assert kl(expected, np.array(model(mx.array([IDS])))[0]) < bound
    assert kl(expected, reference(path).logits(IDS)) < 1e-6


def test_what_can_not_be_merged_is_an_error(
    base: Path, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = Path(shutil.copytree(adapter, tmp_path / "adapter"))
    with pytest.raises(ModelError, match=r"in its own number format.*; .*--quantisation"):
        export(adapter, tmp_path / "out", ExportFormat.MERGED, base, quantisation=Quantisation.Q4_0)
    other = write_directory(tmp_path / "other", SHAPES["llama"])
    with pytest.raises(CheckpointError):
        export(adapter, tmp_path / "out", ExportFormat.MERGED, other)
    weights = read_adapter(adapter)
    name = min(weights)
    for damaged in (weights[name] * np.float32(np.nan), weights[name][:-1].copy(), weights[name][0].copy()):
        write_tensors(adapter / ADAPTER_FILE, {**weights, name: damaged})
        with pytest.raises(CheckpointError, match=r"damaged.*; ."):
            export(adapter, tmp_path / "out", ExportFormat.MERGED, base)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=1000))
    for full in (base, write_model(tmp_path / "base.gguf", SHAPES["qwen3"])):
        with pytest.raises(StateError, match="GB free"):
            export(adapter, tmp_path / "out", ExportFormat.MERGED, full)
