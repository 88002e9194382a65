"""Downloads models of the Hugging Face hub, and compares what arrives with its checksums.

The hub then sees this machine's address.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from sapo_edge.backends.hub.cache import is_complete
from sapo_edge.backends.hub.name import FORM, HubName, belongs
from sapo_edge.backends.machine.disk import nearest_existing
from sapo_edge.errors import ModelError

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo, RepoSibling

TWICE = "consolidated"
"""How the names of all weights begin that Mistral's repositories hold once more, for another program."""
SPARE = 200_000_000
"""Bytes of disk space that a download leaves free."""

Progress: TypeAlias = Callable[[int, int], None]
"""Called with bytes so far and bytes in all."""


def download(name: HubName, progress: Progress) -> Path:
    """Download a model's file or directory. After an interruption, files that had arrived are not fetched again.

    Raises:
        OSError, ValueError, RuntimeError: of the hub's client.
    """
    from huggingface_hub import HfApi

    info = HfApi().model_info(name.repository, files_metadata=True)
    files = _wanted(name, info)
    total = sum(file.size or 0 for file in files)
    check_space(f"the model {name}", sum(file.size or 0 for file in files if not _is_here(name, file, info)))
    done = 0
    progress(0, total)
    path = Path()
    for file in files:
        path = cached(name.repository, file, info.sha, reporting(progress, done, total))
        check_sum(f"the model {name}", path, file)
        done += file.size or 0
        progress(done, total)
    _remember_newest(name, str(info.sha))
    if name.file:
        return path
    if not is_complete(path.parent):
        raise ModelError(f"the model {name} has no weights as safetensors", f"use another model: {FORM}")
    return path.parent


def cached(repository: str, file: RepoSibling, commit: str | None, bar: type[Any], *, kind: str = "model") -> Path:
    """A file in the hub's cache, downloaded if it is not there yet."""
    from huggingface_hub import hf_hub_download

    return Path(hf_hub_download(repository, file.rfilename, repo_type=kind, revision=commit, tqdm_class=bar))


def _remember_newest(name: HubName, commit: str) -> None:
    """Note which snapshot is the newest, as the hub's own client does after a download by branch."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    folder = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=name.repository, repo_type="model")
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / "main").write_text(commit)


def _wanted(name: HubName, info: ModelInfo) -> list[RepoSibling]:
    """The files to download, small ones first."""
    files = {file.rfilename: file for file in info.siblings or ()}
    if name.file:
        return [files[_chosen(name, sorted(files))]]
    if "config.json" not in files:
        ggufs = [file for file in sorted(files) if file.endswith(".gguf")]
        remedy = "name one: " + " ".join(str(HubName(name.repository, file)) for file in ggufs) if ggufs else FORM
        problem = "is a repository of GGUF files" if ggufs else "has no config.json"
        raise ModelError(f"the model {name} {problem}", remedy)
    wanted = (file for path, file in files.items() if belongs(path) and not path.startswith(TWICE))
    return sorted(wanted, key=lambda file: file.size or 0)


def _chosen(name: HubName, files: Sequence[str]) -> str:
    """The GGUF file that a name means."""
    found = name.among(files)
    if len(found) != 1:
        problem = "has no GGUF file of this name" if not found else "has several GGUF files of this name"
        listed = " ".join(found or [file for file in files if file.endswith(".gguf")]) or "none"
        raise ModelError(f"the model {name} {problem}", f"it has: {listed}")
    if fnmatch(found[0], "*-[0-9]*-of-[0-9]*.gguf"):
        raise ModelError(f"{found[0]} is one part of a larger file", "use a smaller format, whose file has one part")
    return found[0]


def _is_here(name: HubName, file: RepoSibling, info: ModelInfo) -> bool:
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(name.repository, file.rfilename, revision=info.sha), str)


def check_space(what: str, missing: int) -> None:
    """Check that the disk has room for so many bytes of what is downloaded."""
    from huggingface_hub import constants

    existing = nearest_existing(Path(constants.HF_HUB_CACHE))
    free = shutil.disk_usage(existing).free
    if free < missing + SPARE:
        raise ModelError(
            f"{missing / 1e9:.1f} GB of {what} are missing, and {existing} has {free / 1e9:.1f} GB free",
            "free some disk space, or set HF_HOME to a directory on a larger disk",
        )


def check_sum(what: str, path: Path, file: RepoSibling) -> None:
    """Compare a file with the hub's SHA-256, which it has of large ones; a damaged one is removed."""
    expected = file.lfs.sha256 if file.lfs is not None else None
    with path.open("rb") as opened:
        if expected is None or hashlib.file_digest(opened, "sha256").hexdigest() == expected:
            return
    blob = path.resolve()
    path.unlink()
    blob.unlink(missing_ok=True)
    problem = f"{file.rfilename} of {what} arrived damaged: its checksum is not the hub's"
    raise ModelError(problem, "try again; it has been removed")


def reporting(progress: Progress, before: int, total: int) -> Any:
    """A progress bar class, as the hub's client takes it, that shows nothing and reports, beginning at some bytes."""
    from tqdm import tqdm  # type: ignore[import-untyped]

    class Reporting(tqdm):  # type: ignore[misc] # it has no types
        def __init__(self, *arguments: Any, **options: Any) -> None:
            # The client has names of its own for bars, and disables them where there is no terminal.
            options.pop("name", None)
            super().__init__(*arguments, **options | {"disable": False})

        def display(self, *_arguments: Any, **_options: Any) -> bool:
            progress(before + int(self.n), total)
            return True

        def update(self, n: float | None = 1) -> None:
            super().update(n)
            self.display()

        def close(self) -> None:
            self.disable = True

    return Reporting
