"""Opens what a model is loaded from: a GGUF file or a Hugging Face directory. Importing this loads no torch."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from sapo_edge.backends.model.architectures import check_supported
from sapo_edge.backends.model.gguf_header import GgufHeader, read_header
from sapo_edge.backends.model.hf_directory import HfDirectory
from sapo_edge.backends.model.shape import ModelShape

ModelSource: TypeAlias = GgufHeader | HfDirectory


def open_source(path: Path, *, mlx: bool = False) -> ModelSource:
    """Open a GGUF file or a Hugging Face directory and check that its model can be trained.

    With `mlx`, a directory may hold weights quantised for MLX, which torch can't load.
    """
    if path.is_dir():
        return HfDirectory(path, mlx=mlx)
    header = read_header(path)
    check_supported(header)
    return header


def shape_of(source: ModelSource) -> ModelShape:
    return source.shape if isinstance(source, HfDirectory) else ModelShape.of_gguf(source)
