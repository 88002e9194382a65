"""A model's file as a transformers model on a device, with a LoRA adapter on every linear layer but the output.

The file is loaded here and not by `from_pretrained(gguf_file=...)`, which parses the vocabulary twice and holds all
weights twice: 14 s and 1.2 GB for the embedded model against 2 s and 0.8 GB. A test compares the two, weight by weight.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from accelerate import init_empty_weights
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from huggingface_hub.errors import StrictDataclassError
from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

from sapo_edge.backends.model.architectures import architecture_of, model_values
from sapo_edge.backends.model.ggml import quantise
from sapo_edge.backends.model.gguf_header import REMEDY, GgufHeader
from sapo_edge.backends.model.gguf_tensors import GgufTensors
from sapo_edge.backends.model.hf_directory import HfTensors
from sapo_edge.backends.model.source import ModelSource
from sapo_edge.backends.pytorch.attention import IMPLEMENTATION, register
from sapo_edge.backends.pytorch.layers import fuse, narrow_blocks, place_parameter
from sapo_edge.backends.pytorch.packed import PackedEmbedding, PackedMatrix, Scratch, pack_module
from sapo_edge.backends.pytorch.place import CPU, QUANTISED, Place
from sapo_edge.backends.pytorch.products import frozen_linear, linear
from sapo_edge.errors import BackendError, ModelError
from sapo_edge.installing import how_to_install
from sapo_edge.policy import LoraSettings


def load_base(source: ModelSource, place: Place = CPU) -> Any:
    """Load the base model, frozen. Its weights pass through the computer's memory one tensor at a time."""
    register()
    # Buffers are computed, not loaded. A directory's configuration names the format of its files, often bfloat16.
    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(
            _config(source), attn_implementation=IMPLEMENTATION, dtype=torch.float32
        )
    narrow_blocks(model, place.weights)
    _fill(model, source, place)
    model.requires_grad_(False)
    return model.eval()


def _config(source: ModelSource) -> Any:
    if isinstance(source, GgufHeader):
        try:
            return AutoConfig.for_model(architecture_of(source).name, **model_values(source))
        except StrictDataclassError as error:
            reason = " ".join(str(error).split())
            raise ModelError(f"transformers refuses the sizes in {source.path} ({reason})", REMEDY) from error
    return AutoConfig.from_pretrained(str(source.path), trust_remote_code=False, local_files_only=True)


def _fill(model: Any, source: ModelSource, place: Place) -> None:
    """Put the source's tensors into the model: matrices stay packed if the place says so, all else is copied."""
    tensors = GgufTensors(source) if isinstance(source, GgufHeader) else HfTensors(source)
    tied = model.config.tie_word_embeddings
    wide, scratch = Scratch(), Scratch(getattr(torch, place.products))
    for name, parameter in list(model.named_parameters()):
        if tied and name == "lm_head.weight":
            continue
        module_name, _, attribute = name.rpartition(".")
        module, shape = model.get_submodule(module_name), tuple(parameter.shape)
        packed = _packed(tensors, name, shape, place, scratch if _in_block(name) else wide)
        if packed is None:
            place_parameter(module, attribute, tensors.take(name, shape), place.device)
        else:
            pack_module(module, packed)
    factors = tensors.rope_factors(model.config.head_dim // 2) if isinstance(tensors, GgufTensors) else None
    if factors is not None:
        # transformers computes RoPE's frequencies from settings that the file lacks.
        model.model.rotary_emb.inv_freq /= torch.tensor(factors)
    tensors.finish()
    embedding = model.get_input_embeddings()
    if tied and isinstance(embedding, PackedEmbedding):
        pack_module(model.lm_head, embedding.packed)
    else:
        model.tie_weights()
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(place.device))


def _in_block(name: str) -> bool:
    """Whether a parameter belongs to a block, not to the embedding or the output."""
    return "layers." in name


def _packed(
    tensors: GgufTensors | HfTensors, name: str, shape: tuple[int, ...], place: Place, scratch: Scratch
) -> PackedMatrix | None:
    """A matrix of a GGUF file, mapped, or one of a directory, quantised; None if it is to be float32."""
    if isinstance(tensors, GgufTensors):
        is_packed = place.weights == "packed" and tensors.is_packed(name, shape)
        return _mapped(tensors, name, shape, scratch) if is_packed else None
    if place.weights not in QUANTISED or len(shape) != 2:
        return None
    # Embedding and output matrix get more bits, as in llama.cpp's mixtures.
    kinds = QUANTISED[place.weights if _in_block(name) else "q8_0"]
    kind = next((kind for kind in kinds if shape[1] % GGML_QUANT_SIZES[GGMLQuantizationType(kind)][0] == 0), None)
    if kind is None:
        return None
    try:
        blocks = quantise(kind, tensors.take(name, shape).float().numpy())
    except NotImplementedError as error:
        remedy = f"{how_to_install('llama-cpp-python')}, or set quantise to q8_0"
        raise BackendError(f"quantise = {place.weights} needs llama.cpp", remedy) from error
    return PackedMatrix(blocks, kind, shape[1], None, scratch)


def _mapped(tensors: GgufTensors, name: str, shape: tuple[int, ...], scratch: Scratch) -> PackedMatrix:
    info = tensors.find(name, shape)
    rows = np.arange(shape[0])
    order = tensors.in_order(info, rows)
    return PackedMatrix(
        tensors.blocks(info), info.type, shape[1], None if order is rows else order, scratch, tensors.mapping
    )


def head_of(causal: Any, products: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """The function from final states (n, width) to logits (n, vocabulary) of a causal language model.

    Args:
        products: number format of a CPU's products.
    """
    scale = getattr(causal.config, "logits_scaling", 1.0)
    matrix: Any = causal.lm_head
    head: Callable[[torch.Tensor], torch.Tensor] = matrix
    if type(matrix) is torch.nn.Linear:
        product = frozen_linear if products == "float32" else linear
        head = partial(product, weight=matrix.weight, bias=matrix.bias)
    # transformers divides the logits, of which there are a hundred times as many.
    return head if scale == 1.0 else lambda states: head(states / scale)


def add_adapter(model: Any, settings: LoraSettings, name: str) -> PeftModel:
    """Put a LoRA adapter on every linear layer but the output. A new adapter changes nothing: B is zero.

    Its configuration calls the base model by `name`.
    """
    model.name_or_path = name
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=int(settings.alpha) if float(settings.alpha).is_integer() else settings.alpha,
        lora_dropout=0.0,
        target_modules="all-linear",
        task_type=TaskType.CAUSAL_LM,
        base_model_name_or_path=name,
    )
    # PEFT draws A from torch's global generator, whose state is restored afterwards.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        with warnings.catch_warnings():
            # PEFT and transformers disagree about the name of a method: nothing that a user could act on.
            warnings.simplefilter("ignore", FutureWarning)
            adapted = get_peft_model(model, config)
    fuse(adapted)
    return adapted.train()


def adapter_parameters(model: PeftModel) -> dict[str, torch.Tensor]:
    """The adapter's weights by PEFT's saved names, in a fixed order. Shares memory with the model."""
    return {
        name.replace(".default.", "."): parameter
        for name, parameter in sorted(model.named_parameters())
        if ".lora_" in name
    }


def set_adapter(parameters: Mapping[str, torch.Tensor], weights: Mapping[str, npt.NDArray[np.float32]]) -> None:
    """Copy weights into the parameters of an adapter, by the same names."""
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(torch.from_numpy(weights[name]))
