"""A model's file as a transformers model on a device, with a LoRA adapter on every linear layer.

Loaded here rather than by `from_pretrained(gguf_file=...)`: that parses the vocabulary twice and holds all weights
twice, 14 s and 1.2 GB for the embedded model against 2 s and 0.8 GB. A test compares the two, weight by weight.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sapo_edge.backends.model.architectures import transformers_config
from sapo_edge.backends.model.gguf_header import GgufHeader
from sapo_edge.backends.model.gguf_tensors import GgufTensors
from sapo_edge.backends.model.hf_directory import HfTensors
from sapo_edge.backends.model.source import ModelSource
from sapo_edge.backends.pytorch.attention import IMPLEMENTATION, register
from sapo_edge.backends.pytorch.place import CPU, Place
from sapo_edge.errors import BackendError
from sapo_edge.policy import LoraSettings

if TYPE_CHECKING:
    import torch
    from peft import PeftModel


def require_torch() -> None:
    """Import what training needs, once, in the order and with the settings that this project wants.

    Raises:
        BackendError: naming what is missing.
    """
    # OpenMP's threads spin while they wait, which starves them where another program is busy: an update of 4 s took
    # 90 s. Read when torch (and llama.cpp, linked to the same OpenMP) loads it; the user's own choice stands.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        import peft  # noqa: F401
        import torch  # noqa: F401
        import transformers
    except (ImportError, OSError, RuntimeError, AttributeError, ValueError) as error:
        # A library that torch links to may be missing, or two packages not fit each other, which shows in many ways.
        raise BackendError(
            f"training needs torch, transformers and peft ({error})", "install them with: pip install sapo-edge"
        ) from error
    transformers.utils.logging.set_verbosity_error()


def load_base(source: ModelSource, place: Place = CPU) -> Any:
    """The base model, frozen, on a device; its weights pass through the machine's memory one tensor at a time.

    Args:
        source: the file or directory.
        place: the device, and the format of the blocks' weights there.

    Raises:
        ModelError: if the architecture is not supported, or a tensor is missing or unknown.
        BackendError: if what the weights' format needs is missing.
    """
    from accelerate import init_empty_weights
    from transformers import AutoModelForCausalLM

    from sapo_edge.backends.pytorch.precision import narrow_blocks

    register()
    # Its buffers are computed, so they are made as they will be.
    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(_config(source), attn_implementation=IMPLEMENTATION)
    narrow_blocks(model, place.weights)
    _fill(model, source, place.device)
    model.tie_weights()
    model.requires_grad_(False)
    return model.eval()


def _config(source: ModelSource) -> Any:
    """transformers' configuration."""
    if isinstance(source, GgufHeader):
        return transformers_config(source)
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(str(source.path), trust_remote_code=False, local_files_only=True)


def _fill(model: Any, source: ModelSource, device: str) -> None:
    """Copy the source's tensors into the model, one at a time."""
    from sapo_edge.backends.pytorch.precision import place_parameter

    tensors = GgufTensors(source) if isinstance(source, GgufHeader) else HfTensors(source)
    tied = model.config.tie_word_embeddings
    for name, parameter in list(model.named_parameters()):
        if tied and name == "lm_head.weight":
            continue
        module, _, own = name.rpartition(".")
        place_parameter(model.get_submodule(module), own, tensors.take(name, tuple(parameter.shape)), device)
    tensors.finish()
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(device))


def add_adapter(model: Any, settings: LoraSettings, name: str) -> PeftModel:
    """Put a LoRA adapter on every linear layer but the output. Its start changes nothing: B is zero.

    Args:
        model: from `load_base`.
        settings: rank, alpha, seed of A's values.
        name: what the adapter's configuration names as its base.
    """
    import torch
    from peft import LoraConfig, TaskType, get_peft_model

    from sapo_edge.backends.pytorch.fused import fuse

    model.name_or_path = name
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=int(settings.alpha) if float(settings.alpha).is_integer() else settings.alpha,
        lora_dropout=0.0,
        target_modules="all-linear",
        task_type=TaskType.CAUSAL_LM,
        base_model_name_or_path=name,
    )
    # PEFT draws A from torch's global generator; that of the user's process is put back afterwards.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        with warnings.catch_warnings():
            # PEFT and transformers disagree about the name of a method; nothing that a user could act on.
            warnings.simplefilter("ignore", FutureWarning)
            adapted = get_peft_model(model, config)
    fuse(adapted)
    return adapted.train()


def adapter_parameters(model: PeftModel) -> dict[str, torch.Tensor]:
    """The trainable weights by PEFT's saved names, in a fixed order. Shares memory with the model."""
    return {
        name.replace(".default.", "."): parameter
        for name, parameter in sorted(model.named_parameters())
        if parameter.requires_grad
    }


def set_adapter(model: PeftModel, weights: Mapping[str, npt.NDArray[np.float32]]) -> None:
    """Give an adapter these weights, in place.

    Args:
        model: with an adapter of that shape.
        weights: all of them, by PEFT's saved names.
    """
    import torch

    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            with torch.no_grad():
                parameter.copy_(torch.from_numpy(weights[name.replace(".default.", ".")]))
