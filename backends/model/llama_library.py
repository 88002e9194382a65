"""llama.cpp's library: it samples for its own backend, tokenises GGUF files for the others, and converts numbers.

llama-cpp-python is on PyPI as sources alone, and compiling llama.cpp takes minutes. `packaging/wheels.py` makes a wheel
of its Python code that compiles nothing: llama.cpp then comes from xllamacpp's wheel, of which no Python code is run.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from sapo_edge.backends.machine.host import package_directory, processor_flags
from sapo_edge.backends.machine.threads import wait_for_each_other
from sapo_edge.errors import BackendError
from sapo_edge.installing import how_to_install

GGML_LOG_LEVEL_ERROR = 4
"""From ggml.h; the binding does not export it."""

NEEDED_FLAGS = {"avx2", "bmi2", "f16c", "fma"}
"""What xllamacpp's library was compiled for on x86-64: without them the process would be killed."""
PREBUILT_VERSION = "2026.10.11549"
"""Of xllamacpp, whose llama.cpp is some days younger than that of llama-cpp-python 0.3.36: what differs is known."""
ABSENT = ("llama_max_parallel_sequences", "llama_model_quantize", "llama_model_quantize_default_params")
"""Functions that llama-cpp-python names and xllamacpp's library leaves out; nothing here calls them."""
LOADER = "_ctypes_extensions.py"
"""The file of llama-cpp-python that finds and loads the library."""
COMPILED = "llama.cpp has to be compiled for this processor: docs/install.md says how; or use --backend torch"

_log_callback: Any = None
_held = threading.local()


@contextmanager
def held_errors() -> Iterator[list[str]]:
    """Collect what llama.cpp logs in this thread instead of writing it to stderr."""
    _held.texts = []
    try:
        yield _held.texts
    finally:
        _held.texts = None


@lru_cache(maxsize=1)
def prebuilt_library() -> Path | None:
    """The library that llama-cpp-python is to use because it has none of its own; None if it has, or there is none."""
    binding, prebuilt = package_directory("llama_cpp"), package_directory("xllamacpp")
    if binding is None or prebuilt is None or (binding / "lib").is_dir() or not (binding / LOADER).is_file():
        return None
    return next(prebuilt.glob("xllamacpp*.so"), None)


def too_old_for_prebuilt() -> str:
    """What this processor lacks of what the prebuilt library needs, in words; "" if nothing, or none is used."""
    flags = processor_flags()
    lacking = NEEDED_FLAGS - flags if flags and prebuilt_library() is not None else set()
    return f"this processor has no {', '.join(sorted(lacking)).upper()}" if lacking else ""


def library_version() -> str:
    """What llama.cpp's speed depends on beside the processor: versions, and who compiled it; "" if it is missing."""
    if package_directory("llama_cpp") is None:
        return ""
    library = prebuilt_library()
    packages = ("llama-cpp-python", *(("xllamacpp",) if library is not None else ()))
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)


def faster_ways() -> str:
    """What would sample faster here than the prebuilt library, in words; "" if that is not used, or nothing would."""
    if prebuilt_library() is None or "avx512f" not in processor_flags():
        return ""
    return "; compiled for AVX-512 it samples up to 1.8 times as fast (docs/install.md)"


@lru_cache(maxsize=1)
def loads_llama() -> bool:
    """Whether llama.cpp is installed and can be loaded; loads it."""
    try:
        llama_library()
    except BackendError:
        return False
    return True


def llama_library() -> Any:
    """The `llama_cpp` module, which then logs errors alone; a BackendError if it is missing or can't be loaded."""
    global _log_callback
    wait_for_each_other()
    if lacking := too_old_for_prebuilt():
        raise BackendError(f"{lacking}, which llama.cpp in xllamacpp's wheel needs", COMPILED)
    try:
        llama_cpp = import_binding()
    except (ImportError, OSError, RuntimeError) as error:
        openmp = "install GNU's OpenMP: apt install libgomp1"
        remedy = openmp if "libgomp" in str(error) else how_to_install("llama-cpp-python")
        raise BackendError(f"llama-cpp-python can't be loaded ({error})", remedy) from error
    if _log_callback is None:

        @llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
        def log(level: int, text: bytes, _data: ctypes.c_void_p) -> None:
            if level != GGML_LOG_LEVEL_ERROR:
                return
            held = getattr(_held, "texts", None)
            (sys.stderr.write if held is None else held.append)(text.decode("utf-8", errors="replace"))

        # Must live as long as the process: llama.cpp calls it from any thread.
        _log_callback = log
        llama_cpp.llama_log_set(log, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
    return llama_cpp


def import_binding() -> Any:
    """The `llama_cpp` module with its own library, or else with that of xllamacpp's wheel.

    Raises:
        ImportError, OSError, RuntimeError: if it can't be loaded.
    """
    library = prebuilt_library() if "llama_cpp" not in sys.modules else None
    if library is not None:
        _use(library)
    import llama_cpp

    if library is not None:
        _add_new_field(llama_cpp)
    return llama_cpp


class _Prebuilt(ctypes.CDLL):
    """xllamacpp's library, with functions that fail in place of those that it leaves out."""

    def __getattr__(self, name: str) -> Any:
        if name not in ABSENT:
            return super().__getattr__(name)

        def absent(*_: object) -> None:
            raise NotImplementedError(f"xllamacpp's library has no {name}")

        return absent


def _use(path: Path) -> None:
    """From now on, llama-cpp-python loads this library, wherever it looks for one."""
    try:
        library = _Prebuilt(str(path))
    except OSError as error:
        # Not every system has GNU's OpenMP; torch brings one for itself.
        openmp = (package_directory("torch") or Path()) / "lib/libgomp.so.1"
        if "libgomp" not in str(error) or not openmp.exists():
            raise
        ctypes.CDLL(str(openmp), ctypes.RTLD_GLOBAL)
        library = _Prebuilt(str(path))
    if (version := importlib.metadata.version("xllamacpp")) != PREBUILT_VERSION:
        raise ImportError(f"xllamacpp {version} is installed, which has another layout than {PREBUILT_VERSION}")
    name = "llama_cpp._ctypes_extensions"
    spec = importlib.util.spec_from_file_location(name, (package_directory("llama_cpp") or Path()) / LOADER)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    vars(module)["load_shared_library"] = lambda _name, _directory: library
    sys.modules[name] = module


def _add_new_field(library: Any) -> None:
    """Give the parameters of a context the one field that the prebuilt library's have and the binding's lack."""
    fields = list(library.llama_context_params._fields_)
    fields.insert([name for name, _ in fields].index("embeddings"), ("moe_cache_size", ctypes.c_size_t))
    parameters = type("llama_context_params", (ctypes.Structure,), {"_fields_": fields})
    library.llama_context_default_params.restype = parameters
    library.llama_init_from_model.argtypes = [library.llama_model_p_ctypes, parameters]
