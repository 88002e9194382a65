"""The hub's models on this machine. They are in the hub's own cache, which other programs share."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sapo_edge.backends.hub.name import HubName, belongs
from sapo_edge.errors import ModelError

if TYPE_CHECKING:
    from huggingface_hub import CachedRepoInfo

INDEX, WEIGHTS = "model.safetensors.index.json", "model.safetensors"


@dataclass(frozen=True, slots=True)
class KeptModel:
    """A model of the hub on this machine: a GGUF file or a directory.

    Attributes:
        name: as the setting `model` takes it.
        licence: its name; "" if it is not known.
        complete: whether all of its files are here.
    """

    name: str
    path: Path
    bytes: int
    licence: str
    complete: bool


def on_this_machine(name: HubName) -> Path | None:
    """A model's file or directory if all of it is here."""
    repository = next((found for found in _cached_repositories() if found.repo_id == name.repository), None)
    snapshots = _snapshots(repository) if repository is not None else []
    if not name.file:
        return next((snapshot for snapshot in snapshots if is_complete(snapshot)), None)
    # A part of a name may mean another file on the hub; what was downloaded by it is the only one here.
    files = _gguf_files(snapshots)
    found = name.among(list(files))
    return files[found[0]] if len(found) == 1 else None


def kept_models() -> list[KeptModel]:
    """The hub's models on this machine: directories with safetensors, and each GGUF file."""
    models: list[KeptModel] = []
    for repository in _cached_repositories():
        snapshots = _snapshots(repository)
        if not snapshots:
            continue
        # Another program may have fetched one file of a newer version.
        newest = next(filter(is_complete, snapshots), snapshots[0])
        licence = str(page_of(newest).get("license") or "")
        if (newest / "config.json").exists():
            size = sum(file.stat().st_size for file in _directory_files(newest))
            models.append(KeptModel(str(HubName(repository.repo_id)), newest, size, licence, is_complete(newest)))
        models += [
            KeptModel(str(HubName(repository.repo_id, name)), file, file.stat().st_size, licence, complete=True)
            for name, file in _gguf_files(snapshots).items()
        ]
    return sorted(models, key=lambda model: model.name.casefold())


def remove_model(name: HubName) -> int:
    """Remove a model from this machine; a file of a repository leaves the others. Returns the bytes that this frees."""
    kept = {model.name: model for model in kept_models()}
    path = on_this_machine(name) if name.file else None
    model = kept.get(str(name)) or next((other for other in kept.values() if path and other.path == path), None)
    if model is None:
        known = ", ".join(kept) or "none"
        raise ModelError(f"the model {name} is not on this machine", f"of the hub's models there are here: {known}")
    repository = next(repo for repo in _cached_repositories() if repo.repo_id == name.repository)
    snapshots = [revision.snapshot_path for revision in repository.revisions]
    if name.file:
        # Its place in a snapshot: the cache has snapshots/COMMIT/FILE.
        relative = Path(*model.path.relative_to(repository.repo_path).parts[2:])
        files = [snapshot / relative for snapshot in snapshots if (snapshot / relative).is_file()]
    else:
        files = [file for snapshot in snapshots for file in _directory_files(snapshot)]
    # The cache holds each file once, under its checksum, and links to it in the snapshots: of older versions, too.
    blobs = {file.resolve() for file in files}
    freed = sum(blob.stat().st_size for blob in blobs)
    for file in blobs.union(files):
        file.unlink()
    if not any(_files(repository.repo_path / "snapshots")):
        shutil.rmtree(repository.repo_path)
    return freed


def _cached_repositories() -> list[CachedRepoInfo]:
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        found = scan_cache_dir(constants.HF_HUB_CACHE).repos
    except CacheNotFound:
        return []
    return [repository for repository in found if repository.repo_type == "model"]


def _snapshots(repository: CachedRepoInfo) -> list[Path]:
    """The versions of a repository that are here, the newest first."""
    main, versions = repository.refs.get("main"), repository.revisions
    ordered = sorted(versions, key=lambda version: (version == main, version.last_modified), reverse=True)
    return [version.snapshot_path for version in ordered]


def _gguf_files(snapshots: list[Path]) -> dict[str, Path]:
    """The newest of each GGUF file by its name: what was downloaded before a newer version's file is still here."""
    files = ((file.relative_to(place).as_posix(), file) for place in snapshots[::-1] for file in _files(place))
    return {name: file for name, file in files if file.suffix == ".gguf"}


def _files(directory: Path) -> Iterator[Path]:
    return (path for path in sorted(directory.rglob("*")) if path.is_file())


def _directory_files(snapshot: Path) -> list[Path]:
    return [file for file in _files(snapshot) if belongs(file.relative_to(snapshot).as_posix())]


def is_complete(directory: Path) -> bool:
    """Whether a directory has a configuration and all of its weights."""
    weights = [WEIGHTS]
    if (directory / INDEX).is_file():
        try:
            weights = list(set(json.loads((directory / INDEX).read_bytes())["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return False
    return all((directory / name).is_file() for name in ("config.json", *map(str, weights)))


def page_of(directory: Path) -> dict[str, Any]:
    """What a model's page in its directory says of it in front; empty without a page."""
    from huggingface_hub import ModelCard
    from yaml import YAMLError  # type: ignore[import-untyped]

    page = directory / "README.md"
    # Of a file that is missing, the library would ask the hub.
    if not page.is_file():
        return {}
    try:
        card = ModelCard.load(page, ignore_metadata_errors=True)
    except (OSError, ValueError, YAMLError, RecursionError):
        # The hub keeps pages whose front is no YAML, and other programs download them.
        return {}
    return dict(card.data.to_dict())
