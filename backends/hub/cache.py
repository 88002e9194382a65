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
    snapshot = _snapshot(repository) if repository is not None else None
    if snapshot is None:
        return None
    if not name.file:
        return snapshot if is_complete(snapshot) else None
    # A part of a name may mean another file on the hub; what was downloaded by it is the only one here.
    found = name.among([file.relative_to(snapshot).as_posix() for file in _files(snapshot)])
    return snapshot / found[0] if len(found) == 1 else None


def kept_models() -> list[KeptModel]:
    """The hub's models on this machine: directories with safetensors, and each GGUF file."""
    models: list[KeptModel] = []
    for repository in _cached_repositories():
        snapshot = _snapshot(repository)
        if snapshot is None:
            continue
        licence = str(page_of(snapshot).get("license") or "")
        if (snapshot / "config.json").exists():
            size = sum(file.stat().st_size for file in _directory_files(snapshot))
            models.append(KeptModel(str(HubName(repository.repo_id)), snapshot, size, licence, is_complete(snapshot)))
        models += [
            KeptModel(
                str(HubName(repository.repo_id, file.relative_to(snapshot).as_posix())), file, file.stat().st_size,
                licence, complete=True,
            )
            for file in _files(snapshot) if file.suffix == ".gguf"
        ]  # fmt: skip
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


def _snapshot(repository: CachedRepoInfo) -> Path | None:
    """The newest version of a repository that is here."""
    newest = max(repository.revisions, key=lambda revision: revision.last_modified, default=None)
    revision = repository.refs.get("main") or newest
    return None if revision is None else revision.snapshot_path


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
