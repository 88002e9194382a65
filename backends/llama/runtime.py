"""llama.cpp's low-level API behind two classes that own their native memory.

Only this module and `llama_library.py`, `vocabularies.py` and `ggml.py` in `model/` call llama.cpp. The high-level
`llama_cpp.Llama` decodes one sequence at a time, which costs two thirds of the rate that group sampling can have.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sapo_edge.backends.model.gguf_header import GgufHeader
from sapo_edge.backends.model.llama_library import held_errors
from sapo_edge.backends.model.vocabularies import GgufVocabulary
from sapo_edge.errors import Cancelled, ModelError

MICRO_BATCH = 512
"""Most tokens that llama.cpp computes in one pass."""
CANCEL_SECONDS = 0.1
"""How often a decode is looked at, whether it is to be cancelled."""
ABORTED = 2
"""What `llama_decode` returns after it was aborted."""


class LlamaModel(GgufVocabulary):
    """A model's vocabulary, chat template and weights, by default the file's own. They are mapped, not copied."""

    def __init__(
        self, header: GgufHeader, weights: Path | None = None, *, rearranged: bool = True, thinking: bool = False
    ) -> None:
        super().__init__(header, weights=weights or header.path, rearranged=rearranged, thinking=thinking)


class LlamaContext:
    """A KV cache with many sequences in one unified buffer, and the batch that feeds it.

    Args:
        cells: tokens that the cache holds, over all sequences.
        sequences: most sequences in the cache.
        batch: most tokens of one decode.
    """

    def __init__(self, model: LlamaModel, *, cells: int, sequences: int, threads: int, batch: int) -> None:
        self.library = model.library
        self.model = model
        self.batch_size = batch
        parameters = self.library.llama_context_default_params()
        parameters.n_ctx = cells
        parameters.n_batch = batch
        parameters.n_ubatch = min(batch, MICRO_BATCH)
        parameters.n_seq_max = sequences
        # Each row of logits takes vocabulary x 4 bytes of the compute buffer; the default reserves n_batch rows.
        parameters.n_outputs_max = sequences
        parameters.n_threads = threads
        parameters.n_threads_batch = threads
        # Only the unified cache lets sequences share a prefix without a copy.
        parameters.kv_unified = True
        # A build for a GPU would copy weights there for large batches: this backend leaves the GPU to others.
        parameters.op_offload = False
        parameters.offload_kqv = False
        # Sequences that share a prefix need all of it, also in layers that attend to a window.
        parameters.swa_full = True
        parameters.no_perf = True
        self.pointer = self.library.llama_init_from_model(model.pointer, parameters)
        if not self.pointer:
            raise ModelError(
                f"llama.cpp could not make a context of {cells} tokens",
                "free some memory, or ask for fewer or shorter answers",
            )
        self.memory = self.library.llama_get_memory(self.pointer)
        self._batch = self.library.llama_batch_init(batch, 0, sequences)
        self._filled = 0
        self._outputs = 0
        self._adapter: Any = None
        # A thread of its own decodes: Python handles signals, such as Ctrl-C, only in a main thread that is not in C.
        self._worker = ThreadPoolExecutor(1, "sapo-decode")
        # llama.cpp asks before each of a thousand operations. The length of this text is the answer: a function in
        # Python would wait for the interpreter's lock each time, up to 5 ms while another thread computes.
        self._aborts = ctypes.create_string_buffer(2)
        self._asked = ctypes.cast(ctypes.CDLL(None).strlen, self.library.ggml_abort_callback)
        self.library.llama_set_abort_callback(self.pointer, self._asked, ctypes.cast(self._aborts, ctypes.c_void_p))

    def set_threads(self, threads: int) -> None:
        self.library.llama_set_n_threads(self.pointer, threads, threads)

    def set_adapter(self, path: Path | None) -> None:
        """Decode with this GGUF adapter from now on, or with none; frees the one before."""
        old, self._adapter = self._adapter, None
        if path is None:
            self.library.llama_set_adapters_lora(self.pointer, None, 0, None)
        else:
            adapter = self.library.llama_adapter_lora_init(self.model.pointer, os.fsencode(path))
            if not adapter:
                raise ModelError(f"llama.cpp can't load the adapter {path}", "check that it was made for this model")
            pointers = (self.library.llama_adapter_lora_p_ctypes * 1)(adapter)
            self.library.llama_set_adapters_lora(self.pointer, pointers, 1, (ctypes.c_float * 1)(1.0))
            self._adapter = adapter
        if old is not None:
            self.library.llama_adapter_lora_free(old)

    def add(self, tokens: Sequence[int], start: int, sequences: Sequence[int], *, logits: bool) -> int | None:
        """Add tokens to the batch, each to all of these sequences, which must be equal before `start`.

        Returns the row of the last token's logits, if `logits`.
        """
        batch, first = self._batch, self._filled
        for offset, token in enumerate(tokens):
            index = first + offset
            batch.token[index] = token
            batch.pos[index] = start + offset
            batch.n_seq_id[index] = len(sequences)
            for place, sequence in enumerate(sequences):
                batch.seq_id[index][place] = sequence
            batch.logits[index] = 0
        self._filled += len(tokens)
        if not logits:
            return None
        batch.logits[self._filled - 1] = 1
        self._outputs += 1
        return self._outputs - 1

    def decode(self, is_cancelled: Callable[[], bool] = lambda: False) -> npt.NDArray[np.float32]:
        """Compute the batch and empty it. Returns (rows, vocabulary) logits, valid until the next decode.

        `is_cancelled` is asked every `CANCEL_SECONDS`; after `Cancelled` the context can only be closed.
        """
        self._batch.n_tokens, rows = self._filled, self._outputs
        self._filled = self._outputs = 0
        status = self._decode(is_cancelled)
        if status == ABORTED:
            raise Cancelled
        if status != 0:
            raise ModelError(f"llama.cpp failed to decode (status {status})", "ask for fewer or shorter answers")
        size = self.model.vocabulary_size
        if rows == 0:
            return np.empty((0, size), np.float32)
        pointer = self.library.llama_get_logits(self.pointer)
        return np.ctypeslib.as_array(ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float)), shape=(rows, size))

    def _decode(self, is_cancelled: Callable[[], bool]) -> int:
        """llama.cpp's status."""
        decoding = self._worker.submit(self._compute)
        try:
            while not wait([decoding], CANCEL_SECONDS).done:
                if is_cancelled():
                    break
        finally:
            # Also if a signal's handler raises: while a thread computes, nothing may free what it computes with.
            if not decoding.done():
                self._aborts[0] = b"1"
            wait([decoding])
        return decoding.result()

    def _compute(self) -> int:
        with held_errors() as errors:
            status = int(self.library.llama_decode(self.pointer, self._batch))
        if status != ABORTED:
            # That a decode was aborted is an error to llama.cpp, but not to whoever pressed Ctrl-C.
            sys.stderr.writelines(errors)
        return status

    def copy(self, source: int, target: int) -> None:
        """Make `target` begin with everything in `source`, which the cache then shares."""
        self.library.llama_memory_seq_cp(self.memory, source, target, -1, -1)

    def drop(self, sequence: int) -> None:
        self.library.llama_memory_seq_rm(self.memory, sequence, -1, -1)

    def close(self) -> None:
        if self.pointer:
            self._worker.shutdown()
            self.set_adapter(None)
            self.library.llama_batch_free(self._batch)
            self.library.llama_free(self.pointer)
            self.pointer = None
