"""The file from which llama.cpp reads the adapter."""

from __future__ import annotations

import os
import weakref
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
        self.path, self._in_memory = workspace / "sampler-adapter.gguf", False
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("sapo-edge-adapter")
            # Also when the policy that owns it is dropped and not closed.
            self._free = weakref.finalize(self, os.close, descriptor)
            in_memory = Path(f"/proc/self/fd/{descriptor}")
            self._in_memory = in_memory.exists()
            if self._in_memory:
                self.path = in_memory
            else:
                self._free()

    def write(self, header: GgufHeader, weights: Mapping[str, npt.NDArray[Any]], alpha: float) -> None:
        """See `write_adapter`."""
        write = write_adapter_in_place if self._in_memory else write_adapter
        write(self.path, header, weights, alpha)

    def close(self) -> None:
        """Free the memory."""
        if self._in_memory:
            self._free()
