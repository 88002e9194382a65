"""What the choice of a backend depends on: system, packages, GPUs, memory. Importing this loads no backend."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sapo_edge.backends.machine.nvidia import Nvidia, find_nvidia

PROCESSORS = Path("/proc/cpuinfo")
IDENTIFYING = ("model name", "flags", "CPU implementer", "CPU part", "Features")
"""Fields of that list, on x86 and ARM."""


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """The versions of NVIDIA's, AMD's and Intel's platforms that an installed torch was built for; "" if it was not."""

    version: str = "unknown"
    cuda: str = ""
    hip: str = ""
    xpu: str = ""


@dataclass(frozen=True, slots=True)
class Host:
    """A machine. Its answers are functions, so that each is asked only if it matters, and tests can replace it.

    Attributes:
        system, machine: as Python's `platform` names them.
        installed: whether a package of this name can be found.
        torch: how torch was built.
        exists: whether a file or device of this name exists.
    """

    system: str
    machine: str
    installed: Callable[[str], bool]
    torch: Callable[[], TorchBuild]
    nvidia: Callable[[], Nvidia | None]
    exists: Callable[[str], bool]

    def missing(self, *names: str) -> str:
        """Those of some packages that are not installed, separated by commas."""
        return ", ".join(name for name in names if not self.installed(name))

    @property
    def apple_silicon(self) -> bool:
        """Whether this is a Mac with a GPU that MLX supports."""
        return self.system == "Darwin" and self.machine == "arm64"


def this_host() -> Host:
    return Host(platform.system(), platform.machine(), is_installed, torch_build, cache(find_nvidia), os.path.exists)


def _read(file: Path) -> str:
    """The text of a file; "" if it can't be read."""
    try:
        return file.read_text("utf-8", errors="replace")
    except OSError:
        return ""


def processor(processors: Path = PROCESSORS) -> str:
    """What changes with the processor, and on Linux with what it can do: to remember a measurement by."""
    lines = _read(processors).splitlines()
    kinds = sorted({line for line in lines if line.partition(":")[0].strip() in IDENTIFYING})
    digest = hashlib.sha256("\n".join(kinds).encode()).hexdigest()[:16]
    return f"{platform.machine()} {platform.processor()} {os.cpu_count()} {digest}"


def multiplies_bfloat16(processors: Path = PROCESSORS) -> bool:
    """Whether an x86 processor has instructions for bfloat16, on Linux; elsewhere only torch could tell.

    It may multiply float32 faster all the same.
    """
    return not {"avx512_bf16", "amx_bf16"}.isdisjoint(processor_flags(processors))


def processor_flags(processors: Path = PROCESSORS) -> frozenset[str]:
    """What an x86 processor can do, by Linux's names of it; empty elsewhere."""
    flags = re.search(r"^flags\s*:(.*)$", _read(processors), re.MULTILINE)
    return frozenset(flags[1].split()) if flags is not None else frozenset()


def package_directory(name: str) -> Path | None:
    """Where a package is installed, found without importing it; None if there is none."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None
    directories = list(spec.submodule_search_locations or []) if spec is not None else []
    return Path(directories[0]) if directories else None


def is_installed(name: str) -> bool:
    return package_directory(name) is not None


def torch_build() -> TorchBuild:
    """How torch was built, read from its version file, if there is one: importing torch takes seconds."""
    directory = package_directory("torch")
    text = "" if directory is None else _read(directory / "version.py")
    values = dict(re.findall(r"^(\w+)(?:\s*:[^=\n]*)?\s*=\s*'([^'\n]+)'", text, re.MULTILINE))
    return TorchBuild(values.get("__version__", "unknown"), *(values.get(name, "") for name in ("cuda", "hip", "xpu")))
