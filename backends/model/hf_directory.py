"""A model as a Hugging Face directory: config.json, safetensors, tokenizer. Read without torch or transformers.

Only safetensors are read: torch's own format is pickled, and a pickled model can run code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sapo_edge.backends.hub.cache import INDEX, WEIGHTS
from sapo_edge.backends.model.architectures import Architecture, find_architecture
from sapo_edge.backends.model.families import FULL, WINDOW
from sapo_edge.backends.model.gguf_header import MAX_BLOCKS, file_digest
from sapo_edge.backends.model.shape import ModelShape
from sapo_edge.errors import ModelError

if TYPE_CHECKING:
    import torch

CONFIG = "config.json"
ROPES = ("default", "linear", "llama3", "yarn")
"""Scalings of positions (RoPE) that depend on the position alone, not on the length of the sequence."""
UNSUPPORTED = "attn_logit_softcapping", "final_logit_softcapping", "use_bidirectional_attention", "resid_pdrop"
"""Settings that no backend computes."""
MAX_JSON = 64 * 1024 * 1024
REMEDY = "use the directory of an instruction-tuned model as transformers saves it, or a GGUF file"


class HfDirectory:
    """A model's directory: its configuration, sizes and files, checked: a ModelError if it can't be trained here.

    MLX (`mlx`) can load weights that were quantised for it.

    Attributes:
        config: the content of config.json.
        files: the file of each tensor by name.
        windowed: whether a layer attends to a window.
    """

    def __init__(self, path: Path, *, mlx: bool = False) -> None:
        self.path = path
        self.config: Mapping[str, Any] = _read_object(path / CONFIG)
        try:
            tied = self._check(mlx).tied
            self.shape = ModelShape.of_values({"tie_word_embeddings": tied, **self.config})
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            raise ModelError(f"{path / CONFIG} is incomplete ({error})", REMEDY) from error
        self.files = self._find_files()
        if not self.files:
            raise ModelError(f"{path} has no weights", REMEDY)
        if self.shape.layers > MAX_BLOCKS:
            # Lists of all layers are made before a missing one is noticed.
            raise ModelError(f"{path / CONFIG} claims {self.shape.layers} layers", REMEDY)

    @property
    def model_name(self) -> str:
        return self.path.name

    @property
    def architecture(self) -> str:
        """By transformers' name."""
        return str(self.config["model_type"])

    @property
    def digest(self) -> str:
        """SHA-256 (hex) over names and digests of the configuration and the weights: the identity of a base model."""
        return _digest((self.path / CONFIG, *sorted(set(self.files.values()))))

    @property
    def bytes(self) -> int:
        """Size of the weights' files."""
        return sum(file.stat().st_size for file in set(self.files.values()))

    def _check(self, mlx: bool) -> Architecture:
        """The architecture; a ModelError if the model can't be trained."""
        where = self.path / CONFIG
        architecture = find_architecture(self.config.get("model_type"), where)
        quantised = self.config.get("quantization")
        by_mlx = mlx and isinstance(quantised, dict) and quantised.get("mode", "affine") == "affine"
        if not by_mlx and (quantised is not None or self.config.get("quantization_config") is not None):
            remedy = "use the model as it was before it was quantised; --backend mlx runs those quantised for MLX"
            raise ModelError(f"{self.path} holds quantised weights of a kind that can't be trained here", remedy)
        self._check_attention(architecture)
        rope = self.config.get("rope_parameters") or self.config.get("rope_scaling") or {}
        # Layers of different kinds have settings of their own.
        kinds = [rope[kind] for kind in (WINDOW, FULL) if kind in rope] if isinstance(rope, dict) else []
        for each in kinds or [rope]:
            name = (each.get("rope_type") or each.get("type") or "default") if isinstance(each, dict) else each
            constant = architecture.alpha and name == "dynamic" and isinstance(each, dict) and each.get("alpha")
            if name not in ROPES and not constant:
                problem = f"{where} scales positions (RoPE) by {name!r}, which is not supported"
                raise ModelError(problem, "use a model without this scaling")
        return architecture

    def _check_attention(self, architecture: Architecture) -> None:
        """Raise ModelError for attention, or caps of its scores or of logits, that no backend computes."""
        where, config = self.path / CONFIG, self.config
        some = any(layer != FULL for layer in config.get("layer_types") or ())
        can = architecture.mixed or architecture.windowed
        self.windowed = some or bool(config.get("use_sliding_window", can) and config.get("sliding_window"))
        if (self.windowed and not can) or (some and not architecture.mixed):
            remedy = "use a model whose layers all attend to the whole context"
            raise ModelError(f"{where} sets a sliding window for attention, which is not supported", remedy)
        for name in UNSUPPORTED:
            if config.get(name):
                raise ModelError(f"{where} sets {name}, which is not supported", "use another model")

    def _find_files(self) -> dict[str, Path]:
        if (self.path / INDEX).is_file():
            places = _read_object(self.path / INDEX).get("weight_map")
            names = {str(name) for name in places.values()} if isinstance(places, dict) else set()
        else:
            names = {WEIGHTS}
        files: dict[str, Path] = {}
        for name in sorted(names):
            # Without its directories, a name can't point outside this one.
            file = self.path / Path(name).name
            files |= dict.fromkeys(_tensor_names(file), file)
        return files


class HfTensors:
    """A directory's tensors by transformers' names, read one at a time in the number format of the file."""

    def __init__(self, directory: HfDirectory) -> None:
        self._directory = directory
        self._unused = {name for name in directory.files if not name.endswith("rotary_emb.inv_freq")}
        if directory.shape.tied:
            # Some directories store the embedding twice.
            self._unused.discard("lm_head.weight")

    def take(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """A parameter by transformers' name."""
        from safetensors import SafetensorError, safe_open

        file = self._directory.files.get(name)
        if file is None:
            raise ModelError(f"{self._directory.path} has no tensor {name}", REMEDY)
        try:
            with safe_open(file, framework="pt") as opened:
                values: torch.Tensor = opened.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{file} is damaged ({error})", "download or copy it again") from error
        if tuple(values.shape) != shape or not values.is_floating_point():
            raise ModelError(f"{file} has a {name} of shape {tuple(values.shape)}, not {shape}", REMEDY)
        self._unused.discard(name)
        return values

    def finish(self) -> None:
        """Check that every tensor of the directory was used."""
        if self._unused:
            problem = f"{self._directory.path} has a {min(self._unused)}, which its architecture does not have"
            raise ModelError(problem, REMEDY)


def _digest(files: tuple[Path, ...]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.name} {file_digest(file)}\n".encode())
    return digest.hexdigest()


def _read_object(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_JSON:
            raise ModelError(f"{path} is too large", REMEDY)
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} can't be read ({error})", REMEDY) from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} is not an object", REMEDY)
    return value


def _tensor_names(path: Path) -> list[str]:
    """Names of the tensors in a safetensors file; its header tells how long the file has to be."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as opened:
            return list(opened.keys())
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path} is missing, truncated or damaged ({error})", REMEDY) from error
