"""llama.cpp's library: it samples for its own backend, tokenises GGUF files for the others, and converts them."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sapo_edge.errors import BackendError
from sapo_edge.installing import how_to_install

GGML_LOG_LEVEL_ERROR = 4
"""From ggml.h; the binding does not export it."""

_log_callback: Any = None
_held = threading.local()


@contextmanager
def held_errors() -> Iterator[list[str]]:
    """Collect what llama.cpp logs in this thread instead of printing it; `print_error` prints it later."""
    _held.texts = []
    try:
        yield _held.texts
    finally:
        _held.texts = None


def print_error(text: str) -> None:
    sys.stderr.write(text)


def llama_library() -> Any:
    """The `llama_cpp` module, which then logs errors alone.

    Raises:
        BackendError: if llama-cpp-python is missing or can't be loaded.
    """
    global _log_callback
    # As in `require_torch`: OpenMP reads it when the first library that uses it loads.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        import llama_cpp
    except (ImportError, OSError, RuntimeError) as error:
        raise BackendError(
            f"llama-cpp-python can't be loaded ({error})",
            how_to_install("llama-cpp-python"),
        ) from error
    if _log_callback is None:

        @llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
        def log(level: int, text: bytes, _data: ctypes.c_void_p) -> None:
            if level != GGML_LOG_LEVEL_ERROR:
                return
            held = getattr(_held, "texts", None)
            (print_error if held is None else held.append)(text.decode("utf-8", errors="replace"))

        # Must live as long as the process: llama.cpp calls it from any thread.
        _log_callback = log
        llama_cpp.llama_log_set(log, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
    return llama_cpp


def convert_file(source: Path, target: Path, form: str) -> bool:
    """Write a GGUF file in another number format, by llama.cpp's name of it; False if llama.cpp can't."""
    library = llama_library()
    parameters = library.llama_model_quantize_default_params()
    parameters.allow_requantize = True
    parameters.ftype = getattr(library, f"LLAMA_FTYPE_MOSTLY_{form.upper()}")
    return bool(library.llama_model_quantize(str(source).encode(), str(target).encode(), parameters) == 0)
