"""A directory's settings as mlx-lm reads them, with transformers' meaning.

Most of mlx-lm's models ignore `rope_parameters`, where transformers 5 keeps the settings of RoPE, and take defaults
instead: without an error, the model computes something else. Without `tie_word_embeddings` they take a model for a tied
one. What transformers itself wrote before version 5 has the names that mlx-lm reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sapo_edge.backends.model.architectures import ARCHITECTURES
from sapo_edge.backends.model.families import FULL, WINDOW
from sapo_edge.backends.model.hf_directory import HfDirectory
from sapo_edge.errors import ModelError

GEMMA3 = "gemma3_text"


def mlx_settings(directory: HfDirectory) -> dict[str, Any]:
    """What a directory's config.json lacks for mlx-lm.

    Raises:
        ModelError: if MLX does not compute its architecture, its windows or its order of layers.
    """
    config, record = directory.config, ARCHITECTURES[directory.architecture]
    if not record.mlx or (directory.windowed and record.name != GEMMA3):
        what = "a sliding window" if record.mlx else f"the architecture {record.name}"
        raise ModelError(f"{directory.path} has {what}, which MLX can't compute here", "use --backend torch")
    tied = "lm_head.weight" not in directory.files
    settings: dict[str, Any] = {"tie_word_embeddings": config.get("tie_word_embeddings", tied)}
    if directory.architecture == GEMMA3:
        return settings | gemma3_settings(config, directory.path)
    if isinstance(rope := config.get("rope_parameters"), dict):
        kind = rope.get("rope_type", "default")
        scaling = None if kind == "default" else rope | {"type": kind}
        settings |= {"rope_theta": rope.get("rope_theta", config.get("rope_theta", 10000.0)), "rope_scaling": scaling}
    return settings


def gemma3_settings(config: Mapping[str, Any], path: object) -> dict[str, Any]:
    """Those of a Gemma 3; what its configuration has by mlx-lm's names already is left out.

    Its kinds of layers have to repeat with a period, the only way that mlx-lm knows.
    """
    settings: dict[str, Any] = {}
    rope = config.get("rope_parameters")
    if isinstance(rope, dict) and FULL in rope:
        settings |= {"rope_theta": rope[FULL]["rope_theta"], "rope_scaling": rope[FULL]}
        if WINDOW in rope:
            settings["rope_local_base_freq"] = rope[WINDOW]["rope_theta"]
    if kinds := config.get("layer_types"):
        period = kinds.index(FULL) + 1 if FULL in kinds else len(kinds) + 1
        if any((kind == FULL) != (index % period == 0) for index, kind in enumerate(kinds, 1)):
            raise ModelError(f"{path} has an order of layers that mlx-lm can't compute", "use another backend")
        settings["sliding_window_pattern"] = period
    return settings
