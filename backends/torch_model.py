"""A GGUF file as a transformers model in float32 with a LoRA adapter on every linear layer.

Loaded here rather than by `from_pretrained(gguf_file=...)`: that parses the vocabulary twice and holds all weights
twice, 14 s and 1.2 GB for the embedded model against 2 s and 0.8 GB. A test compares the two, weight by weight.
"""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from sapo_edge.backends.architectures import from_gguf_rows, gguf_names, rope_heads, transformers_config
from sapo_edge.backends.gguf_file import GgufHeader
from sapo_edge.backends.pack_attention import IMPLEMENTATION, register
from sapo_edge.errors import BackendError, ModelError
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
    except ImportError as error:
        raise BackendError(
            f"training needs torch, transformers and peft ({error})", "install them with: pip install sapo-edge"
        ) from error
    transformers.utils.logging.set_verbosity_error()


def load_base(header: GgufHeader) -> Any:
    """The base model, in float32, on the CPU, frozen.

    Raises:
        ModelError: if the architecture is not supported, or a tensor is missing or unknown.
    """
    from transformers import AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    register()
    config = transformers_config(header)
    with no_init_weights():
        model = AutoModelForCausalLM.from_config(config, attn_implementation=IMPLEMENTATION)
    model.tie_weights()
    _fill(model, header)
    model.requires_grad_(False)
    return model.eval()


def _fill(model: Any, header: GgufHeader) -> None:
    """Copy the file's tensors into the model, one at a time."""
    import torch
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    names = gguf_names(header)
    data = np.memmap(header.path, mode="r", dtype=np.uint8)
    tied = model.config.tie_word_embeddings
    unused = set(header.tensors)
    for name, parameter in model.named_parameters():
        if tied and name == "lm_head.weight":
            continue
        module, _, kind = name.rpartition(".")
        target = f"{names.get_name(module)}.{kind}"
        info = header.tensors.get(target)
        if info is None or info.shape != tuple(parameter.shape):
            raise ModelError(
                f"{header.path} has no {target} of shape {tuple(parameter.shape)}",
                "use a complete GGUF conversion of the model",
            )
        unused.remove(target)
        raw = data[info.offset : info.offset + info.bytes].reshape(*info.shape[:-1], -1)
        values = dequantize(raw, GGMLQuantizationType(info.type)).reshape(info.shape).astype(np.float32, copy=False)
        with torch.no_grad():
            # A copy, because torch warns about arrays that it could not write to.
            parameter.copy_(torch.tensor(from_gguf_rows(values, rope_heads(header, target))))
    if unused:
        # llama.cpp computes with it, and what learns would be another model than what samples.
        raise ModelError(
            f"{header.path} has a {min(unused)}, which can't be trained with here", "use a model without it"
        )


def add_adapter(model: Any, settings: LoraSettings, name: str) -> PeftModel:
    """Put a LoRA adapter on every linear layer but the output. Its start changes nothing: B is zero.

    Args:
        model: from `load_base`.
        settings: rank, alpha, seed of A's values.
        name: what the adapter's configuration names as its base.
    """
    import torch
    from peft import LoraConfig, TaskType, get_peft_model

    from sapo_edge.backends.fused import fuse

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
