"""A trained adapter: which one counts, whether it fits, how it compares with its base model, and talking to it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sapo_edge.errors import CheckpointError, ConfigError
from sapo_edge.library.conversation import Conversation, Models
from sapo_edge.library.progress import answering
from sapo_edge.plain import printable

if TYPE_CHECKING:
    from sapo_edge.evaluate import Evaluation
    from sapo_edge.library.workspace import Workspace
    from sapo_edge.state.checkpoint import Checkpoint
    from sapo_edge.state.paths import Paths
    from sapo_edge.tasks.manifest import Manifest
    from sapo_edge.tasks.source import Function


def find_adapter(workspace: Workspace, directory: Path | None) -> Path:
    """The adapter in a directory that the user names, or the best one of the state directory, verified."""
    if directory is not None:
        if not os.path.isfile(directory / "adapter_config.json"):
            raise CheckpointError(
                f"{directory} holds no adapter", "give the directory of a checkpoint or of a PEFT adapter"
            )
        checkpoint = find_record(directory)
        if checkpoint is not None:
            checkpoint.verify_files()
        return directory
    best = _best_adapter(workspace.paths)
    if best is None:
        raise CheckpointError(
            "nothing is trained yet", "train first with: sapo run --rounds 40, or give --adapter DIRECTORY"
        )
    return best


def _best_adapter(paths: Paths) -> Path | None:
    from sapo_edge.state.checkpoints import Checkpoints

    checkpoint = Checkpoints(paths.checkpoints).to_use()
    return None if checkpoint is None else checkpoint.directory


def find_record(adapter: Path) -> Checkpoint | None:
    """The record of a checkpoint; None for a PEFT adapter that is no checkpoint."""
    from sapo_edge.state.checkpoint import RECORD, read_record

    return read_record(adapter) if (adapter / RECORD).is_file() else None


def check_model(adapter: Path, digest: str) -> None:
    """Make sure that a checkpoint was made with the model of a digest; another one may have weights of the same shapes.

    A PEFT adapter that is no checkpoint doesn't name its model.
    """
    checkpoint = find_record(adapter)
    if checkpoint is not None and checkpoint.model_digest != digest:
        raise CheckpointError(f"{adapter} was made with another model", "give the one it was made with as --model")


def trained_on(workspace: Workspace, checkpoint: Checkpoint | None) -> Manifest | None:
    """The manifest that an adapter was trained on, whatever is in use by now; None if it is not on this machine.

    A PEFT adapter that is no checkpoint doesn't name it, and gets the one in use.
    """
    used = workspace.manifest
    if checkpoint is None:
        return used
    kept = workspace.membership.manifest(bytes.fromhex(checkpoint.manifest_digest))
    if kept is None and used is not None and used.digest == checkpoint.manifest_digest:
        return used
    return kept


def evaluate_both(
    workspace: Workspace, adapter: Path, *, general: bool = False, functions: Mapping[str, Function] | None = None
) -> tuple[dict[str, Evaluation], int]:
    """Evaluations of base model and adapter, by name, and what the base was shown beyond.

    Args:
        general: both are asked the general questions instead, alike.
    """
    from sapo_edge.backends.adapter.files import read_alpha
    from sapo_edge.evaluate import evaluate, evaluate_base
    from sapo_edge.tasks.general import general_source
    from sapo_edge.tasks.source import TaskSource

    source = general_source() if general else TaskSource(workspace.require_manifest(), functions)
    manifest, examples = source.manifest, 0
    tasks = source.own_tasks() if general else source.held_out("test", workspace.settings.held_out)
    if not tasks:
        raise ConfigError(
            f"there are no test questions of {manifest.name} to answer",
            "give --questions 1 or more, or a manifest whose tasks have more distinct questions",
        )
    limit = manifest.max_tokens if general else workspace.settings.max_tokens or manifest.max_tokens
    ask = partial(evaluate, tasks=tasks, prompt_for=manifest.prompt_for, judge=source.judge, max_tokens=limit)
    # A damaged adapter fails here, before the model is loaded.
    read_alpha(adapter)
    results = {}
    with workspace.answering_policy("eval", as_learner=True) as policy:
        check_model(adapter, policy.model_digest)
        policy.load(adapter)
        with answering("base") as handle:
            if general:
                results["base"] = ask(policy, handle=handle, use_adapter=False)
            else:
                results["base"], examples = evaluate_base(policy, source, tasks, limit, lambda: handle)
        with answering("adapter") as handle:
            results["adapter"] = ask(policy, handle=handle)
    return results, examples


def export_adapter(
    workspace: Workspace, adapter: Path | None, to: str, directory: Path, quantisation: str | None = None
) -> Path:
    """Write an adapter for other programs; returns what to give them: see `backends.adapter.export.export`.

    Args:
        adapter: None for the best one of the state directory.
        to, quantisation: an `ExportFormat`, and of a merged GGUF file a `Quantisation`.
    """
    from sapo_edge.backends.adapter.export import ExportFormat, Quantisation, export
    from sapo_edge.backends.model.source import open_source

    try:
        form, numbers = ExportFormat(to), None if quantisation is None else Quantisation(quantisation)
    except ValueError as error:
        kinds = ExportFormat if to not in list(ExportFormat) else Quantisation
        raise ConfigError(f"{error}", f"choose one of {', '.join(kinds)}") from error
    source, file = find_adapter(workspace, adapter), workspace.model
    check_model(source, open_source(file, mlx=True).digest)
    if numbers is not None and form is not ExportFormat.MERGED:
        raise ConfigError(f"--quantisation means nothing with --to {form}", "leave it out, or give --to merged")
    manifest = trained_on(workspace, find_record(source)) if form is ExportFormat.MERGED else None
    prompt = manifest.prompt_for("")[:-1] if manifest is not None else ()
    return export(source, directory, form, file, quantisation=numbers, prompt=prompt)


@contextmanager
def open_conversation(
    workspace: Workspace, adapter: Path | None, say: Callable[[str], None], *, base: bool = True
) -> Iterator[tuple[Conversation, Models]]:
    """Load model and adapter, None for the best one, until the block ends, without torch where another backend runs."""
    from sapo_edge.backends.model.source import open_source

    directory = _best_adapter(workspace.paths) if adapter is None else find_adapter(workspace, adapter)
    is_named = workspace.resolved.sources["manifest"].startswith(("flag", "environment"))
    learned = None if directory is None or is_named else trained_on(workspace, find_record(directory))
    manifest = learned or workspace.require_manifest()
    model = open_source(workspace.model, mlx=True).model_name
    say(f"loading {printable(model)}")
    with workspace.answering_policy("chat", say=say) as policy:
        models = Models(model, manifest.name)
        if directory is not None:
            check_model(directory, policy.model_digest)
            policy.load(directory)
            checkpoint = find_record(directory)
            about = () if checkpoint is None else (checkpoint.round, checkpoint.accuracy)
            models = Models(model, manifest.name, str(directory), *about)
        limit = workspace.own_max_tokens
        adapted = directory is not None
        yield Conversation(policy, manifest, adapted=adapted, base=base, max_tokens=limit), models
