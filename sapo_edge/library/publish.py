"""What `sapo push` publishes of a checkpoint: adapter, model card, manifest, and what another home continues from.

Paths, addresses and names of this machine stay here: the files are made for this, and only the weights are copied.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgpack

import sapo_edge
from sapo_edge.backends.adapter.export import MERGED_NAME, ExportFormat, export
from sapo_edge.backends.adapter.files import CONFIG_FILE
from sapo_edge.backends.hub.base import base_of
from sapo_edge.backends.model.hf_directory import HfDirectory
from sapo_edge.backends.model.source import open_source
from sapo_edge.control.report import read_report
from sapo_edge.errors import ConfigError, ManifestError
from sapo_edge.fields import check_map
from sapo_edge.library.adapters import check_model, trained_on
from sapo_edge.library.card import Facts, write_card
from sapo_edge.library.workspace import Workspace
from sapo_edge.policy import Prompt
from sapo_edge.state.checkpoint import Checkpoint
from sapo_edge.state.durable import reported
from sapo_edge.state.journal import reading
from sapo_edge.state.paths import Paths, RunPaths
from sapo_edge.state.runs import read_origin, run_names
from sapo_edge.tasks.manifest import Manifest

RECORD_VERSION = 1
RECORD = "sapo.json"
"""Name of the file that tells what the adapter belongs to."""
MANIFEST = "manifest.json"
"""Name of the manifest's file: its tables, with the number of own questions in place of those that are left out."""
QUESTIONS = "questions"
"""Name of the folder of own questions that a manifest names by digest."""
REPLACED = (f"{MERGED_NAME}-*.gguf", "Modelfile", MANIFEST, f"{QUESTIONS}/*")
"""Files of an earlier push that are removed unless this one has them: they are of another adapter."""

_EXTERNAL = "SELECT total(json_extract(event, '$.external')) FROM rounds WHERE round <= ?"


def gather(workspace: Workspace, checkpoint: Checkpoint, *, with_questions: bool) -> Facts:
    """What can be told of a verified checkpoint, own questions or not, from this state directory's own record."""
    source = open_source(workspace.model, mlx=True)
    check_model(checkpoint.directory, source.digest)
    metadata = {} if isinstance(source, HfDirectory) else source.metadata
    manifest = trained_on(workspace, checkpoint)
    if with_questions and (manifest is None or not all(data.is_in(manifest.store) for data in manifest.data)):
        raise ConfigError("the own questions are not on this machine", "leave out --with-questions")
    run = run_of(workspace.paths, checkpoint)
    learned, external, origin = None, None, ""
    if run is not None and run.journal.exists():
        report, origin = read_report(run.journal, checkpoint.round), read_origin(run)
        # Only if they are this checkpoint's.
        learned = report if report is not None and report.round == checkpoint.round else None
        with reading(run.journal) as connection:
            external = int(connection.execute(_EXTERNAL, (checkpoint.round,)).fetchone()[0])
    base = base_of(workspace.settings.model, workspace.model, metadata)
    return Facts(checkpoint, base, manifest, learned, external, origin, with_questions)


def write_files(
    workspace: Workspace, facts: Facts, repository: str, directory: Path, *, merged: bool
) -> list[tuple[str, int]]:
    """Write all that is published as "owner/name" into a directory; returns name and size of each file.

    Args:
        merged: whether model and adapter come as one GGUF file, too.
    """
    checkpoint, manifest = facts.checkpoint, facts.manifest
    prompt: Prompt = () if manifest is None else manifest.prompt_for("")[:-1]
    if not facts.is_whole:
        prompt = tuple(message for message in prompt if message.role == "system")
    name = ""
    if merged:
        if workspace.model.is_dir():
            raise ConfigError("a model that is a directory gives no merged GGUF file", "leave out --merged")
        export(checkpoint.directory, directory, ExportFormat.MERGED, workspace.model, prompt=prompt)
        name = next(directory.glob("*.gguf")).name
    export(checkpoint.directory, directory, ExportFormat.PEFT, workspace.model)
    with reported("write", directory, "name another directory"):
        config = json.loads((directory / CONFIG_FILE).read_text())
        # What the backend wrote may be a path of this machine.
        config["base_model_name_or_path"] = facts.base.repository or facts.base.name
        _write_json(directory / CONFIG_FILE, config)
        _write_json(directory / RECORD, _record(facts))
        if manifest is not None:
            _write_json(directory / MANIFEST, told_tables(manifest, whole=facts.is_whole))
            if facts.is_whole and manifest.data:
                assert manifest.store is not None
                (directory / QUESTIONS).mkdir(exist_ok=True)
                for data in manifest.data:
                    shutil.copyfile(data.path(manifest.store), data.path(directory / QUESTIONS))
        (directory / "README.md").write_text(write_card(facts, repository, name), "utf-8")
        files = [path for path in sorted(directory.rglob("*")) if path.is_file()]
        return [(path.relative_to(directory).as_posix(), path.stat().st_size) for path in files]


def told_tables(manifest: Manifest, *, whole: bool) -> dict[str, Any]:
    """A manifest as JSON values; unless it is whole, own questions are their number, and worked examples are, too."""
    tables: dict[str, Any] = msgpack.unpackb(manifest.to_bytes())
    for entry, table in zip(manifest.tasks, tables["tasks"], strict=True):
        if not whole and entry.questions:
            table["questions"] = len(entry.questions)
        elif isinstance(table.get("questions"), dict):
            table["questions"]["sha256"] = table["questions"]["sha256"].hex()
    if not whole:
        tables["examples"] = len(manifest.examples)
    return tables


def manifest_from_tables(text: bytes) -> Manifest | None:
    """The manifest of a file that `told_tables` wrote; None if questions were left out, a ManifestError for others."""
    try:
        tables = check_map("manifest", json.loads(text))
        held = [task.get("questions") for task in tables["tasks"]]
        if any(isinstance(questions, int) for questions in held) or isinstance(tables["examples"], int):
            return None
        for questions in held:
            if isinstance(questions, dict):
                questions["sha256"] = bytes.fromhex(questions["sha256"])
        data = msgpack.packb(tables)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise ManifestError(f"{MANIFEST} is no manifest", "use another repository") from error
    return Manifest.from_bytes(data)


def run_of(paths: Paths, checkpoint: Checkpoint) -> RunPaths | None:
    """The run of this state directory to which a checkpoint belongs; None if it is of none."""
    place = checkpoint.directory.resolve().parent
    runs = map(paths.run_of, run_names(paths))
    return next((run for run in runs if run.checkpoints.resolve() == place), None)


def _record(facts: Facts) -> Mapping[str, Any]:
    checkpoint, manifest = facts.checkpoint, facts.manifest
    return {
        "v": RECORD_VERSION,
        "version": sapo_edge.__version__,
        "base": {"name": facts.base.name, "repository": facts.base.repository, "digest": checkpoint.model_digest},
        "manifest": {"name": "" if manifest is None else manifest.name, "digest": checkpoint.manifest_digest},
        "round": checkpoint.round,
        "head_start": facts.head_start,
        "external": facts.external,
        "seed": checkpoint.seed,
        "origin": facts.origin,
    }


def _write_json(file: Path, body: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(body, indent=1) + "\n", "utf-8")
