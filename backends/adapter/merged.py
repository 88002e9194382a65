"""Merges an adapter into its base model: one file or directory that needs no adapter.

A GGUF base gives a GGUF file in a number format of choice, a directory gives a directory in its own format. Tensors of
a GGUF file are read, changed and written one at a time, so that the model need not fit into the memory; of a directory,
each file has to.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from sapo_edge.backends.adapter.export import BITS, Quantisation
from sapo_edge.backends.adapter.files import Arrays, read_adapter, read_alpha, system_errors
from sapo_edge.backends.adapter.gguf import REMEDY, fits, pairs_by_tensor, pairs_of
from sapo_edge.backends.machine.disk import nearest_existing, replacing
from sapo_edge.backends.model.architectures import rope_heads, to_gguf_rows
from sapo_edge.backends.model.ggml import quantise, widen
from sapo_edge.backends.model.gguf_header import MAGIC, GgufHeader, raw_values
from sapo_edge.backends.model.hf_directory import HfDirectory
from sapo_edge.backends.model.llama_library import llama_library
from sapo_edge.backends.model.mlx_settings import mlx_settings
from sapo_edge.errors import CheckpointError, ModelError, StateError

if TYPE_CHECKING:
    import torch
    from gguf import GGMLQuantizationType

SPARE = 100_000_000
"""Bytes of disk space that an export leaves free."""
DIRECT = ("f16", "bf16", "q8_0")
"""Formats that are written without llama.cpp."""
SENSITIVE = r"blk\.(\d+)\.(?:attn_v|attn_qkv|ffn_down)\.weight"
WITHOUT_BLOCKS = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
"""What llama.cpp takes instead where a row is no whole number of blocks of 256."""
TYPE_FIELDS = ("general.file_type", "general.quantization_version")
UINT32 = 4
"""GGUF's number of that type of value."""


def merge_gguf(adapter: Path, header: GgufHeader, file: Path, form: Quantisation) -> None:
    """Write a GGUF file of a base model and a PEFT adapter (a directory) together; it is replaced atomically."""
    if form not in DIRECT:
        # It rounds to the narrower formats. Missing, it is an error before anything is written.
        llama_library()
    weights = sum(math.prod(info.shape) for info in header.tensors.values())
    _check_space(file.parent, int(weights * BITS[form] / 8))
    pairs, (rank, alpha) = pairs_of(header, read_adapter(adapter)), read_alpha(adapter)
    with replacing(file) as part:
        write_gguf(header, part, form, pairs, alpha / rank)


def write_gguf(
    header: GgufHeader, file: Path, form: str, pairs: Mapping[str, Arrays] = MappingProxyType({}), scale: float = 0.0
) -> None:
    """Write a model with its matrices in another number format, one of `Quantisation`.

    Args:
        pairs: A and B of an adapter, by the name of the tensor that they change; `scale` is the adapter's.
    """
    from gguf.constants import GGML_QUANT_SIZES, GGML_QUANT_VERSION, GGMLQuantizationType, LlamaFileType

    types = zip(TYPE_FIELDS, (LlamaFileType[f"MOSTLY_{form.upper()}"], GGML_QUANT_VERSION), strict=True)
    values = raw_values(header.path, TYPE_FIELDS) + [
        _text(key) + struct.pack("<II", UINT32, value) for key, value in types
    ]
    alignment = int(header.metadata.get("general.alignment", 32))
    source, kinds, infos, end = np.memmap(header.path, np.uint8, "r"), {}, [], 0
    for name, info in header.tensors.items():
        kinds[name] = kind = GGMLQuantizationType(number_format(header, name, form) or info.type)
        count, size = GGML_QUANT_SIZES[kind]
        infos.append(
            _text(name) + struct.pack(f"<I{len(info.shape)}QIQ", len(info.shape), *info.shape[::-1], kind, end)
        )
        end += -(-math.prod(info.shape) // count * size // alignment) * alignment
    with file.open("wb") as target:
        target.write(MAGIC + struct.pack("<IQQ", 3, len(infos), len(values)) + b"".join(values + infos))
        for name, info in header.tensors.items():
            target.write(bytes(-target.tell() % alignment))
            data, pair = source[info.offset : info.offset + info.bytes], pairs.get(name)
            if pair is not None or kinds[name] != info.type:
                wide = np.empty(info.shape, np.float32)
                widen(info.type, data, wide)
                if pair is not None:
                    wide += scale * (to_gguf_rows(pair["B"], rope_heads(header, name)) @ pair["A"])
                data = quantise(kinds[name], wide)
            target.write(data.data)
        target.write(bytes(-target.tell() % alignment))


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def number_format(header: GgufHeader, name: str, form: str) -> GGMLQuantizationType | None:
    """A tensor's number format in a file of a form, by the rules of llama.cpp's own conversion; None as it is.

    Those rules give the output's matrix, and in the forms on M what is most sensitive, more bits than the others.
    """
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    shape = header.tensors[name].shape
    if len(shape) != 2:
        return None
    kind = form.removesuffix("_m").upper()
    if form not in DIRECT:
        output = "output.weight" if "output.weight" in header.tensors else "token_embd.weight"
        sensitive = re.fullmatch(SENSITIVE, name) if form.endswith("_m") else None
        if name == output or (sensitive and _has_more_bits(int(sensitive[1]), header)):
            kind = "Q6_K"
    # Blocks of 256 values don't fit every width.
    kinds = (GGMLQuantizationType[each] for each in (kind, WITHOUT_BLOCKS.get(kind, "F16"), "F16"))
    return next(narrow for narrow in kinds if shape[-1] % GGML_QUANT_SIZES[narrow][0] == 0)


def _has_more_bits(block: int, header: GgufHeader) -> bool:
    """llama.cpp's choice of blocks: the first and last eighth, and every third between them."""
    blocks = int(header.metadata[f"{header.architecture}.block_count"])
    eighth = blocks // 8
    return block < eighth or block >= 7 * blocks // 8 or (block - eighth) % 3 == 2


def merge_directory(adapter: Path, directory: HfDirectory, target: Path) -> Path:
    """Write a directory of a base model and a PEFT adapter (a directory) together, in the base model's number format.

    Files of the same names are replaced.
    """
    if directory.config.get("quantization") is not None:
        remedy = "export the adapter with --to mlx, or merge it into the model as it was before it was quantised"
        raise ModelError(f"{directory.path} is quantised, and merging would round the adapter away", remedy)
    _check_space(target.parent, directory.bytes)
    adapted, (rank, alpha) = read_adapter(adapter), read_alpha(adapter)
    changes = pairs_by_tensor(adapted, lambda name: name if name in directory.files else None, directory.path)
    target.mkdir(parents=True, exist_ok=True)
    for file in sorted(directory.path.iterdir()):
        # Weights in other formats than safetensors would be those of the base model.
        if file.suffix in (".json", ".jinja", ".txt", ".model", ".md"):
            shutil.copyfile(file, target / file.name)
    for weights in sorted(set(directory.files.values())):
        names = [name for name, file in directory.files.items() if file == weights]
        _merge_file(weights, names, target / weights.name, changes, alpha / rank)
    for file in target.glob("*.safetensors*"):
        # Of a larger model that was merged here before: some programs load all files of weights that they find.
        if not (directory.path / file.name).exists():
            file.unlink()
    config = json.loads((target / "config.json").read_text())
    # Beside these, mlx-lm, that knows nothing of this project, computes the same model, if it can at all.
    with suppress(ModelError):
        config |= mlx_settings(directory)
    config.pop("_name_or_path", None)
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return target


def _merge_file(source: Path, names: list[str], target: Path, changes: Mapping[str, Arrays], scale: float) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file

    with safe_open(source, framework="pt") as opened:
        merged = {name: _merged(opened.get_tensor(name), changes.get(name), name, scale) for name in names}
    with replacing(target) as part, system_errors(part):
        save_file(merged, part, metadata={"format": "pt"})


def _merged(values: torch.Tensor, pair: Arrays | None, name: str, scale: float) -> torch.Tensor:
    import torch

    if pair is None:
        return values
    if not fits(pair, tuple(values.shape)):
        raise CheckpointError(f"the adapter's weights of {name} are incomplete, damaged or of another shape", REMEDY)
    return (values.float() + scale * torch.from_numpy(pair["B"] @ pair["A"])).to(values.dtype)


def _check_space(directory: Path, needed: int) -> None:
    free = shutil.disk_usage(nearest_existing(directory)).free
    if free < needed + SPARE:
        raise StateError(
            f"the merged model needs up to {needed / 1e9:.1f} GB while it is written, and {directory} has "
            f"{free / 1e9:.1f} GB free",
            "free some space, or give another directory",
        )
