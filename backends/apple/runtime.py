"""MLX and mlx-lm, loaded once: with a fast BLAS, without torch, and with the process's limits kept.

The other modules of this folder import MLX at their top, except `backend`, `policy`, `memory` and `quantised`: call
`require_mlx` before importing them.
"""

from __future__ import annotations

import ctypes
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from sapo_edge.errors import BackendError
from sapo_edge.installing import how_to_install

OPENBLAS = "libopenblas.so.0"
CACHE_LIMIT = 512 * 1024 * 1024
"""Bytes of freed buffers that MLX may keep on a GPU. Packs differ in size, so without a limit they fill the memory."""


def require_mlx() -> None:
    """Load MLX and the parts of mlx-lm that this backend uses; a BackendError if one can't be loaded."""
    openblas()
    try:
        import mlx.core as mx

        if "mlx_lm.generate" not in sys.modules:
            with _keep_file_limit(), hide_torch():
                import mlx_lm.generate
                import mlx_lm.tuner.lora  # noqa: F401
    except (ImportError, OSError, RuntimeError) as error:
        remedy = f"{how_to_install('mlx-lm')}, or choose another backend"
        raise BackendError(f"MLX can't be loaded ({error})", remedy) from error
    if on_gpu():
        mx.set_cache_limit(CACHE_LIMIT)
    else:
        # On a CPU, MLX would call the system's C++ compiler at run time.
        mx.disable_compile()


def on_gpu() -> bool:
    import mlx.core as mx

    return bool(mx.default_device() == mx.gpu)


def processor() -> str:
    """The processor that MLX computes on, in words."""
    import mlx.core as mx

    if on_gpu():
        return f"on the GPU through {'Metal' if mx.metal.is_available() else 'CUDA'}"
    if sys.platform != "linux":
        return "on the CPU"
    return f"on the CPU, matrix products by {'OpenBLAS' if openblas() else 'a slow built-in library'}"


@lru_cache(maxsize=1)
def openblas() -> Any:
    """Load OpenBLAS so that MLX uses it instead of its own library, which is 30 times slower.

    None if it is missing, or if MLX was loaded before and has found its own.
    """
    if not sys.platform.startswith("linux") or "mlx.core" in sys.modules:
        return None
    try:
        return ctypes.CDLL(OPENBLAS, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return None


def set_threads(threads: int) -> None:
    """Set the number of threads of matrix products on a CPU; everything else runs on one thread there."""
    library = openblas()
    if library is not None:
        library.openblas_set_num_threads(threads)


@contextmanager
def _keep_file_limit() -> Iterator[None]:
    """Keep the process's limit of open files: mlx-lm lowers it to 2,048 as it loads, too few for a node's sockets."""
    set_limit = resource.setrlimit
    resource.setrlimit = lambda *_arguments: None
    try:
        yield
    finally:
        resource.setrlimit = set_limit


@contextmanager
def hide_torch() -> Iterator[None]:
    """Hide torch from transformers, which is loaded only for tokenizers.

    transformers would load it: 2 s and 190 MB for nothing, and a broken torch would break this backend. Modules of
    transformers loaded without torch are removed afterwards, so that a later import gets them complete.
    """
    if "torch" in sys.modules or "transformers" in sys.modules:
        yield
        return
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["torch"]
        for name in [name for name in sys.modules if name.partition(".")[0] == "transformers"]:
            del sys.modules[name]
