"""The file from which llama.cpp reads the adapter."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from sapo_edge.backends.adapter.gguf import write_adapter, write_adapter_in_place
from sapo_edge.backends.model.gguf_header import GgufHeader


class AdapterFile:
    """Where the sampler finds the adapter. On Linux in memory: a round would write it to a disk again.

    It changes with every update and is 5 to 70 MB: gigabytes a day, which wear out memory cards.

    Args:
        workspace: directory for the file where the system has no files in memory.
    """

    def __init__(self, workspace: Path) -> None:
        self._descriptor = os.memfd_create("sapo-edge-adapter") if hasattr(os, "memfd_create") else None
        in_memory = Path(f"/proc/self/fd/{self._descriptor}")
        if self._descriptor is not None and not in_memory.exists():
            self.close()
        self.path = workspace / "sampler-adapter.gguf" if self._descriptor is None else in_memory

    def write(self, header: GgufHeader, weights: Mapping[str, npt.NDArray[Any]], alpha: float) -> None:
        """See `write_adapter`."""
        write = write_adapter if self._descriptor is None else write_adapter_in_place
        write(self.path, header, weights, alpha)

    def close(self) -> None:
        """Free the memory."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
