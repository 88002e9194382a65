"""What `sapo pull` does: begins a run with an adapter that somebody published, for rounds that continue from it.

Everything that arrives is a stranger's: of the hub's files only a few names are taken, each bounded, and of the adapter
only its weights, rank and alpha. They are checked against the base model on this machine and written anew.
"""

from __future__ import annotations

import json
import shlex
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sapo_edge.backends.adapter.files import (
    ADAPTER_FILE,
    CONFIG_FILE,
    adapter_shapes,
    read_alpha,
    read_checked,
    write_state,
)
from sapo_edge.backends.hub.files import Repository
from sapo_edge.backends.hub.name import HUB
from sapo_edge.backends.model.source import open_source, shape_of
from sapo_edge.config.settings import SETTINGS
from sapo_edge.errors import ConfigError, ManifestError, ModelError
from sapo_edge.fields import check_integer, check_map, check_text
from sapo_edge.library.publish import MANIFEST, QUESTIONS, RECORD, RECORD_VERSION, manifest_from_tables
from sapo_edge.library.workspace import Workspace
from sapo_edge.plain import counted, printable
from sapo_edge.policy import LoraSettings
from sapo_edge.state.checkpoint import Checkpoint
from sapo_edge.state.checkpoints import Checkpoints
from sapo_edge.state.durable import make_private_directory
from sapo_edge.state.paths import RunPaths
from sapo_edge.state.runs import begin_run, run_names, unused, write_origin
from sapo_edge.state.secret import read_or_create_secret, seed_from_secret
from sapo_edge.tasks.manifest import Manifest

MAX_RECORD_BYTES = 64 * 1024
MAX_TABLES_BYTES = 4 * 1024 * 1024
"""Largest `MANIFEST`: its JSON, with each letter of some languages written as an escape of 6 bytes."""
HEADER_BYTES = 1024 * 1024
"""Most bytes of a safetensors file beside its weights."""


@dataclass(frozen=True, slots=True)
class Published:
    """What a repository says of its adapter: base model and manifest, with their SHA-256 (hex), and its rounds."""

    base: str
    base_repository: str
    base_digest: str
    manifest_name: str
    manifest_digest: str
    round: int


def begin_with(workspace: Workspace, name: str) -> tuple[str, Checkpoint, Published]:
    """Begin a run with the adapter of a repository: the next node validates it, and goes on training it.

    The optimizer's state is not published: Adam's moments begin at zero, and the learning rate with its warm-up.
    Returns the run's name, its checkpoint of round 0, and what the repository says of the adapter.

    Args:
        workspace: with the base model, and for an adapter whose own questions were left out, with the manifest.
        name: "owner/name".
    """
    make_private_directory(workspace.paths.cache)
    with tempfile.TemporaryDirectory(dir=workspace.paths.cache, prefix="pull-") as temporary:
        directory, repository = Path(temporary), Repository(name)
        published = _read_record(repository.fetch(RECORD, directory, MAX_RECORD_BYTES))
        source = open_source(workspace.model, mlx=True)
        if source.digest != published.base_digest:
            # A stranger's text, in a command that people paste.
            hub = shlex.quote(f"{HUB}{published.base_repository}")
            known = f"give it as --model {hub}" if published.base_repository else "name it"
            raise ModelError(
                f"{name} was trained on another model or file: {published.base}, SHA-256 {published.base_digest[:12]}",
                f"{known}, or its file, with --model",
            )
        manifest = _manifest(workspace, repository, published, directory)
        repository.fetch(CONFIG_FILE, directory, MAX_RECORD_BYTES)
        rank, alpha = read_alpha(directory)
        rank = int(SETTINGS["rank"].check(rank, CONFIG_FILE))
        alpha = float(SETTINGS["alpha"].check(alpha, CONFIG_FILE))
        shapes = adapter_shapes(shape_of(source), rank)
        weights = sum(rows * columns for rows, columns in shapes.values())
        repository.fetch(ADAPTER_FILE, directory, 4 * weights + HEADER_BYTES)
        adapter, _ = read_checked(directory, dict(shapes))
        # The first run if there is none yet, or else a new name.
        paths = workspace.paths
        run_name = unused(run_names(paths)) if paths.run.directory.exists() else paths.run_name
        write = partial(
            write_state, lora=LoraSettings(rank, alpha, 0), base=source.model_name, adapter=adapter, optimizer={}
        )
        settings = {**workspace.settings.as_dict(), "rank": rank, "alpha": alpha, "manifest": manifest.name}
        checkpoints: list[Checkpoint] = []

        def fill(run: RunPaths) -> None:
            seed = workspace.settings.seed
            if seed is None:
                seed = seed_from_secret(read_or_create_secret(workspace.paths.identity))
            first = Checkpoint(0, source.digest, manifest.digest, seed, {"tasks": 0}, settings)
            checkpoints.append(Checkpoints(run.checkpoints).save(first, write))
            write_origin(run, f"{name} after {counted(published.round, 'round')}", repository.commit)

        begin_run(paths, run_name, fill)
        return run_name, checkpoints[0], published


def _read_record(file: Path) -> Published:
    try:
        record = check_map(RECORD, json.loads(file.read_bytes()))
        if check_integer("v", record["v"], 1) > RECORD_VERSION:
            raise ModelError("the adapter was published by a newer sapo-edge", "update it")
        base, manifest = check_map("base", record["base"]), check_map("manifest", record["manifest"])
        return Published(
            printable(check_text("base.name", base["name"], 256)),
            printable(check_text("base.repository", base["repository"], 256)),
            bytes.fromhex(check_text("base.digest", base["digest"], 64)).hex(),
            printable(check_text("manifest.name", manifest["name"], 64)),
            bytes.fromhex(check_text("manifest.digest", manifest["digest"], 64)).hex(),
            check_integer("round", record["round"], 0, 10**9),
        )
    except (ValueError, KeyError, RecursionError) as error:
        raise ModelError(f"{RECORD} can't be read ({error})", "use another repository") from error


def _manifest(workspace: Workspace, repository: Repository, published: Published, directory: Path) -> Manifest:
    """The manifest that the adapter was trained on, kept on this machine from now on."""
    digest = bytes.fromhex(published.manifest_digest)
    named, told = workspace.manifest, workspace.resolved.sources["manifest"]
    if told.startswith(("flag", "environment")) and named is not None and named.digest != published.manifest_digest:
        raise ManifestError(
            f"{repository.name} was trained on another manifest, {published.manifest_name}",
            "leave out the manifest, or give that one",
        )
    current = workspace.membership.current
    if current is not None and current.manifest != digest:
        raise ConfigError(
            f"this home's swarm trains on {current.name}, the adapter on {published.manifest_name}",
            "leave the swarm with `sapo swarm leave`, or use another home: --home DIRECTORY",
        )
    if named is not None and named.digest == published.manifest_digest:
        return workspace.membership.keep_manifest(named.to_bytes(), digest, named.store)
    known = workspace.membership.manifest(digest)
    if known is not None and all(data.is_in(known.store) for data in known.data):
        return known
    manifest = None
    if MANIFEST in repository:
        manifest = manifest_from_tables(repository.fetch(MANIFEST, directory, MAX_TABLES_BYTES).read_bytes())
    if manifest is None:
        raise ManifestError(
            f"the questions of {published.manifest_name} were not published",
            "give the manifest that the adapter was trained on as --manifest",
        )
    store = directory / QUESTIONS
    for data in manifest.data:
        data.verify(repository.fetch(f"{QUESTIONS}/{data.path(store).name}", directory, data.size))
    return workspace.membership.keep_manifest(manifest.to_bytes(), digest, store if manifest.data else None)
