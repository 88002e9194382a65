"""sapo-edge: collective RL post-training of small language models on consumer hardware.

Importing this package loads no torch, mlx, llama_cpp, textual, libp2p or reasoning_gym: they load where they are used.
`docs/python.md` shows what is here; its names and arguments stay as they are within a major version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sapo_edge.care.stop import Stop as Stop
    from sapo_edge.errors import SapoError as SapoError
    from sapo_edge.events import Event as Event
    from sapo_edge.events import RoundFinished as RoundFinished
    from sapo_edge.library.python import Results as Results
    from sapo_edge.library.python import Run as Run
    from sapo_edge.library.python import open_run as open_run
    from sapo_edge.library.python import train as train
    from sapo_edge.tasks.manifest import Manifest as Manifest

__version__: str

_PLACES = {
    "Event": "events", "Manifest": "tasks.manifest", "Results": "library.python", "RoundFinished": "events",
    "Run": "library.python", "SapoError": "errors", "Stop": "care.stop", "open_run": "library.python",
    "train": "library.python",
}  # fmt: skip
"""The module of each public name."""
__all__ = ["Event", "Manifest", "Results", "RoundFinished", "Run", "SapoError", "Stop", "open_run", "train"]


def __getattr__(name: str) -> Any:
    import importlib

    if name in _PLACES:
        return getattr(importlib.import_module(f"sapo_edge.{_PLACES[name]}"), name)
    # The version comes from git's tags when the program is built; reading it takes milliseconds that `--help` need not.
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib.metadata

    try:
        return importlib.metadata.version("sapo-edge")
    except importlib.metadata.PackageNotFoundError:
        return "0+unknown"


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, "__version__"])
