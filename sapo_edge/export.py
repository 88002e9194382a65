"""An adapter in the formats that other programs read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from sapo_edge.errors import CheckpointError, SapoError, StateError

FORMATS = ("peft", "gguf")
PEFT_FILES = ("adapter_config.json", "adapter_model.safetensors")
GGUF_NAME = "adapter.gguf"


def export(adapter: Path, target: Path, form: str, write_gguf: Callable[[Path, Path], None]) -> Path:
    """Write an adapter into a directory.

    Args:
        adapter: directory of a checkpoint or of a PEFT adapter.
        target: directory to write into, made if it doesn't exist; what lies there under the same name is replaced.
        form: one of `FORMATS`.
        write_gguf: (adapter directory, file) -> None, of the backend.

    Returns:
        What to hand to the other program: the directory for peft, the file for gguf.

    Raises:
        CheckpointError: if there is no adapter.
        StateError: if the target can't be written.
    """
    missing = [name for name in PEFT_FILES if not (adapter / name).is_file()]
    if missing:
        raise CheckpointError(
            f"{adapter} holds no adapter ({missing[0]} is missing)", "give the directory of a checkpoint as --adapter"
        )
    try:
        target.mkdir(parents=True, exist_ok=True)
        if form == "gguf":
            write_gguf(adapter, target / GGUF_NAME)
            return target / GGUF_NAME
        for name in PEFT_FILES:
            temporary = target / f".{name}.part"
            shutil.copyfile(adapter / name, temporary)
            os.replace(temporary, target / name)
        return target
    except SapoError:
        raise
    except OSError as error:
        raise StateError(
            f"can't write to {target}: {error.strerror}", "free some space, or give another directory"
        ) from error


def usage(path: Path, form: str, model: Path) -> str:
    """A line that shows how to use what was exported."""
    if form == "gguf":
        return f"llama-cli -m {model} --lora {path}"
    return f'peft.PeftModel.from_pretrained(base_model, "{path}")'
