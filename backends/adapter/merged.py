"""Merges an adapter into its base model: one file or directory that needs no adapter.

A GGUF base gives a GGUF file in a number format of choice, a directory gives a directory in its own format. Tensors of
a GGUF file are read, changed and written one at a time, so that the model need not fit into the memory; of a directory,
each file has to.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sapo_edge.backends.adapter.export import BITS, Quantisation
from sapo_edge.backends.adapter.files import PEFT_PREFIX, Arrays, read_adapter, read_alpha, system_errors
from sapo_edge.backends.adapter.gguf import REMEDY, fits, pairs_of
from sapo_edge.backends.machine.disk import nearest_existing
from sapo_edge.backends.model.architectures import rope_heads, to_gguf_rows
from sapo_edge.backends.model.gguf_header import GgufHeader
from sapo_edge.backends.model.hf_directory import HfDirectory
from sapo_edge.backends.model.llama_library import convert_file, llama_library
from sapo_edge.backends.model.mlx_settings import mlx_settings
from sapo_edge.errors import CheckpointError, ModelError, StateError

if TYPE_CHECKING:
    import torch

SPARE = 100_000_000
"""Bytes of disk space that an export leaves free."""
DIRECT = ("f16", "bf16", "q8_0")
"""Formats that are written without llama.cpp."""
TYPE_FIELDS = ("general.file_type", "general.quantization_version")


def merge_gguf(adapter: Path, header: GgufHeader, file: Path, form: Quantisation) -> Path:
    """Write a GGUF file of base model and adapter together.

    Args:
        adapter: directory of a PEFT adapter.
        header: of the base model's file.
        file: to write; replaced atomically.

    Raises:
        BackendError: if llama.cpp, which writes the narrower formats, is missing.
        ModelError: if llama.cpp can't convert the file.
        StateError: if the disk has too little space.
        OSError: if the file can't be written.
    """
    direct = form in DIRECT
    if not direct:
        # Missing, it is an error before anything is written.
        llama_library()
    weights = sum(int(np.prod(info.shape)) for info in header.tensors.values())
    _check_space(file.parent, int(weights * (BITS[form] / 8 + (0 if direct else 4))))
    pairs, (rank, alpha) = pairs_of(header, read_adapter(adapter)), read_alpha(adapter)
    wide, narrow = (file.with_name(f".{file.name}.{kind}.part") for kind in ("wide", "narrow"))
    try:
        _write_gguf(header, pairs, alpha / rank, narrow if direct else wide, form)
        if not direct and not convert_file(wide, narrow, form):
            raise ModelError(
                f"llama.cpp could not write {narrow} as {form}", "free some disk space, or take another format"
            )
        os.replace(narrow, file)
    finally:
        for part in (wide, narrow):
            part.unlink(missing_ok=True)
    return file


def _write_gguf(header: GgufHeader, pairs: Mapping[str, Arrays], scale: float, file: Path, form: Quantisation) -> None:
    """Write the model with its adapted tensors in it.

    Args:
        form: of all matrices, if it is one of `DIRECT`; else the adapted ones are float32 and all others as they are.
    """
    from gguf import (
        GGML_QUANT_SIZES,
        GGML_QUANT_VERSION,
        GGMLQuantizationType,
        GGUFReader,
        GGUFValueType,
        GGUFWriter,
        LlamaFileType,
    )
    from gguf.quants import dequantize, quant_shape_to_byte_shape, quantize

    def kind_of(name: str, shape: Sequence[int], before: GGMLQuantizationType) -> GGMLQuantizationType:
        if form in DIRECT and len(shape) == 2:
            kind = GGMLQuantizationType[form.upper()]
            return kind if shape[-1] % GGML_QUANT_SIZES[kind][0] == 0 else GGMLQuantizationType.F16
        return GGMLQuantizationType.F32 if name in pairs else before

    reader = GGUFReader(header.path)
    writer = GGUFWriter(file, header.architecture)
    for field in reader.fields.values():
        # The writer sets the first ones itself, and the type of the file is another one now.
        if field.name == "general.architecture" or field.name.startswith("GGUF.") or field.name in TYPE_FIELDS:
            continue
        kind = field.types[0]
        part = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=part)
    if form in DIRECT:
        writer.add_file_type(LlamaFileType[f"MOSTLY_{form.upper()}"])
        writer.add_quantization_version(GGML_QUANT_VERSION)
    kinds = {}
    for tensor in reader.tensors:
        shape = header.tensors[tensor.name].shape
        kind = kinds[tensor.name] = kind_of(tensor.name, shape, tensor.tensor_type)
        plain = {GGMLQuantizationType.F32: np.float32, GGMLQuantizationType.F16: np.float16}.get(kind)
        stored = shape if plain else quant_shape_to_byte_shape(shape, kind)
        dtype = np.dtype(plain or np.uint8)
        writer.add_tensor_info(tensor.name, stored, dtype, dtype.itemsize * int(np.prod(stored)), kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in reader.tensors:
        kind, data = kinds[tensor.name], tensor.data
        if tensor.name in pairs or kind != tensor.tensor_type:
            values = dequantize(data, tensor.tensor_type).reshape(header.tensors[tensor.name].shape)
            if (pair := pairs.get(tensor.name)) is not None:
                change = to_gguf_rows(pair["lora_b"], rope_heads(header, tensor.name)) @ pair["lora_a"]
                values = values.astype(np.float32, copy=False) + scale * change
            data = quantize(values.astype(np.float32, copy=False), kind)
        writer.write_tensor_data(data)
    writer.close()


def merge_directory(adapter: Path, directory: HfDirectory, target: Path) -> Path:
    """Write a directory of base model and adapter together, in the number format of the base model's files.

    Args:
        adapter: directory of a PEFT adapter.
        target: directory to write into; its files of the same names are replaced.

    Raises:
        ModelError: if the model is quantised for MLX.
        StateError: if the disk has too little space.
        OSError: if a file can't be written.
    """
    if "quantization" in directory.config:
        raise ModelError(
            f"{directory.path} is quantised, and merging would round the adapter away",
            "export the adapter with --to mlx, or merge it into the model as it was before it was quantised",
        )
    _check_space(target.parent, directory.bytes)
    changes, (rank, alpha) = _changes(adapter, directory), read_alpha(adapter)
    target.mkdir(parents=True, exist_ok=True)
    for file in sorted(directory.path.iterdir()):
        # Weights in other formats than safetensors would be those of the base model.
        if file.suffix in (".json", ".jinja", ".txt", ".model", ".md"):
            shutil.copyfile(file, target / file.name)
    for weights in sorted(set(directory.files.values())):
        names = [name for name, file in directory.files.items() if file == weights]
        _merge_file(weights, names, target / weights.name, changes, alpha / rank)
    config = json.loads((target / "config.json").read_text()) | _for_mlx(directory)
    config.pop("_name_or_path", None)
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return target


def _for_mlx(directory: HfDirectory) -> dict[str, Any]:
    """Settings beside which mlx-lm, that knows nothing of this project, computes the same model."""
    try:
        return mlx_settings(directory)
    except ModelError:
        # mlx-lm can't compute this model, but others can.
        return {}


def _changes(adapter: Path, directory: HfDirectory) -> dict[str, Arrays]:
    """A and B by the name of the weight that they change."""
    changes: dict[str, Arrays] = {}
    for name, array in read_adapter(adapter).items():
        module, _, matrix = name.removeprefix(PEFT_PREFIX).rpartition(".lora_")
        if f"{module}.weight" not in directory.files or matrix not in ("A.weight", "B.weight"):
            raise CheckpointError(f"the adapter's weight {name} fits nothing in {directory.path}", REMEDY)
        changes.setdefault(f"{module}.weight", {})[matrix[0]] = array
    return changes


def _merge_file(source: Path, names: list[str], target: Path, changes: Mapping[str, Arrays], scale: float) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file

    with safe_open(source, framework="pt") as opened:
        merged = {name: _merged(opened.get_tensor(name), changes.get(name), name, scale) for name in names}
    part = target.with_name(f".{target.name}.part")
    with system_errors(part):
        save_file(merged, part, metadata={"format": "pt"})
    os.replace(part, target)


def _merged(values: torch.Tensor, pair: Arrays | None, name: str, scale: float) -> torch.Tensor:
    import torch

    if pair is None:
        return values
    if not fits(pair, tuple(values.shape)):
        raise CheckpointError(f"the adapter's weights of {name} are incomplete, damaged or of another shape", REMEDY)
    change: npt.NDArray[Any] = pair["B"] @ pair["A"]
    return (values.float() + scale * torch.from_numpy(change)).to(values.dtype)


def _check_space(directory: Path, needed: int) -> None:
    free = shutil.disk_usage(nearest_existing(directory)).free
    if free < needed + SPARE:
        raise StateError(
            f"the merged model needs up to {needed / 1e9:.1f} GB while it is written, and {directory} has "
            f"{free / 1e9:.1f} GB free",
            "free some space, or give another directory",
        )
