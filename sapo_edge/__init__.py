"""sapo-edge: collective RL post-training of small language models on consumer hardware.

Importing this package loads no torch, mlx, llama_cpp, textual, libp2p or reasoning_gym: they load where they are used.
"""

from __future__ import annotations

__version__: str


def __getattr__(name: str) -> str:
    # The version comes from git's tags when the program is built; reading it takes milliseconds that `--help` need not.
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib.metadata

    try:
        return importlib.metadata.version("sapo-edge")
    except importlib.metadata.PackageNotFoundError:
        return "0+unknown"
