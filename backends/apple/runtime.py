"""MLX and mlx-lm, loaded once, with what they need and without what they would drag in.

Other modules named `mlx_*`, but for `mlx` and `mlx_memory`, import MLX at their top: call `require_mlx` first.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from sapo_edge.errors import BackendError

OPENBLAS = "libopenblas.so.0"
CACHE_LIMIT = 512 * 1024 * 1024
"""Bytes of freed buffers that MLX may keep on a GPU for later ones: packs differ in size, and would fill the memory."""


def require_mlx() -> None:
    """Load MLX, and of mlx-lm what this backend uses.

    Raises:
        BackendError: if one of them is missing or can't be loaded.
    """
    openblas()
    try:
        import mlx.core as mx

        if "mlx_lm.generate" not in sys.modules:
            with _limits_kept(), torch_hidden():
                import mlx_lm.generate
                import mlx_lm.tuner.lora  # noqa: F401
    except (ImportError, OSError, RuntimeError) as error:
        raise BackendError(
            f"MLX can't be loaded ({error})", "install it with: pip install 'sapo-edge[mlx]', or choose another backend"
        ) from error
    if on_gpu():
        mx.set_cache_limit(CACHE_LIMIT)
    else:
        # Compiled functions are C++ that MLX hands to the system's compiler while it runs.
        mx.disable_compile()


def on_gpu() -> bool:
    """Whether MLX computes on a GPU."""
    import mlx.core as mx

    return bool(mx.default_device() == mx.gpu)


def processor() -> str:
    """What computes, in words."""
    import mlx.core as mx

    if on_gpu():
        return f"on the GPU through {'Metal' if mx.metal.is_available() else 'CUDA'}"
    if sys.platform != "linux":
        return "on the CPU"
    return f"on the CPU, matrix products by {'OpenBLAS' if openblas() else 'a slow built-in library'}"


@lru_cache(maxsize=1)
def openblas() -> Any:
    """OpenBLAS, its symbols in front of those of MLX's own library, which is 30 times slower; None without it.

    Where MLX was loaded before, it has found its own.
    """
    if not sys.platform.startswith("linux") or "mlx.core" in sys.modules:
        return None
    try:
        return ctypes.CDLL(OPENBLAS, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return None


def set_threads(threads: int) -> None:
    """Change the number of threads of matrix products on a CPU; everything else there is computed by one."""
    library = openblas()
    if library is not None:
        library.openblas_set_num_threads(threads)


@contextmanager
def _limits_kept() -> Iterator[None]:
    """mlx-lm lowers the process's limit of open files to 2,048, for good, as it loads: too few for a node's sockets."""
    try:
        import resource
    except ImportError:  # not on Windows
        yield
        return
    change = resource.setrlimit
    resource.setrlimit = lambda *_arguments: None
    try:
        yield
    finally:
        resource.setrlimit = change


@contextmanager
def torch_hidden() -> Iterator[None]:
    """Let transformers, which is loaded for tokenizers alone, find no torch.

    It would load it: 2 s and 190 MB for nothing, and a broken torch would break this backend. What was loaded without
    torch is forgotten afterwards, so that whoever needs transformers with torch later gets it whole.
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
