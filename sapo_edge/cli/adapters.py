"""`sapo eval` and `sapo export`: what is done with a trained adapter."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from sapo_edge.backends.adapter.export import ExportFormat, export, usage
from sapo_edge.cli.output import narrate, print_json
from sapo_edge.cli.workspace import Workspace
from sapo_edge.errors import CheckpointError
from sapo_edge.evaluate import Evaluation, evaluate
from sapo_edge.policy import CallHandle
from sapo_edge.state.checkpoint import RECORD, read_checkpoint
from sapo_edge.state.checkpoints import Checkpoints
from sapo_edge.tasks.source import TaskSource


def find_adapter(workspace: Workspace, given: Path | None) -> Path:
    """The adapter that the user names, or the best of this state directory.

    Raises:
        CheckpointError: if there is none.
    """
    if given is not None:
        if not (given / "adapter_config.json").is_file():
            raise CheckpointError(
                f"{given} holds no adapter", "give the directory of a checkpoint or of a PEFT adapter"
            )
        return given
    found = best_adapter(workspace)
    if found is None:
        raise CheckpointError(
            "nothing is trained yet", "train first with: sapo run --rounds 40, or give --adapter DIRECTORY"
        )
    return found


def best_adapter(workspace: Workspace) -> Path | None:
    """The best checkpoint of this state directory, or the newest if none was evaluated; None before the first."""
    checkpoints = Checkpoints(workspace.paths.checkpoints, workspace.settings.keep_checkpoints)
    found = checkpoints.best() or checkpoints.latest()
    return None if found is None else found.directory


def check_model(adapter: Path, digest: str) -> None:
    """Make sure that a checkpoint was made with this model: another one may have weights of the same shapes.

    Args:
        adapter: directory of a checkpoint, or of a PEFT adapter, which doesn't say.
        digest: SHA-256 (hex) of the model's file.

    Raises:
        CheckpointError: if it was made with another one, or is damaged.
    """
    if not (adapter / RECORD).is_file():
        return
    if read_checkpoint(adapter).model_digest != digest:
        raise CheckpointError(f"{adapter} was made with another model", "give the one it was made with as --model")


def run_eval(workspace: Workspace, adapter: Path | None, *, as_json: bool) -> None:
    """Held-out accuracy of base and adapter, side by side."""
    from sapo_edge.backends.adapter.files import read_alpha

    settings = workspace.settings
    source = TaskSource(workspace.require_manifest())
    tasks = source.held_out(settings.held_out)
    directory = find_adapter(workspace, adapter)
    read_alpha(directory)
    with tempfile.TemporaryDirectory(prefix="sapo-eval-") as temporary:
        policy, _ = workspace.open_policy(Path(temporary), trainable=False, seed=0)
        try:
            check_model(directory, policy.model_digest)
            policy.load(directory)
            results = {}
            for name, use_adapter in (("base", False), ("adapter", True)):
                with _progress(name) as handle:
                    results[name] = evaluate(
                        policy,
                        tasks,
                        source.manifest.prompt_for,
                        source.score,
                        settings.max_tokens,
                        handle,
                        use_adapter=use_adapter,
                    )
        finally:
            policy.close()
    if as_json:
        record = {name: _as_dict(result) for name, result in results.items()}
        print_json({"manifest": source.manifest.name, "adapter_path": str(directory), **record})
    else:
        narrate(f"adapter: {directory}")
        _print_table(results, source.manifest.name)


@contextmanager
def _progress(name: str) -> Iterator[CallHandle]:
    """A bar on stderr while a policy answers."""
    console = Console(stderr=True)
    columns = TextColumn(name), BarColumn(bar_width=24), TextColumn("{task.completed:.0f}/{task.total:.0f} questions")
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, total=1)
        yield CallHandle(lambda done, total: bar.update(task, completed=done, total=total))


def _as_dict(result: Evaluation) -> dict[str, Any]:
    low, high = result.interval
    entries = {
        name: {"correct": right, "questions": questions} for name, (right, questions) in result.by_entry().items()
    }
    return {
        "accuracy": result.accuracy, "correct": result.right, "questions": result.questions, "low": low, "high": high,
        "entries": entries,
    }  # fmt: skip


def _print_table(results: dict[str, Evaluation], manifest: str) -> None:
    base, adapter = results["base"], results["adapter"]
    print(f"held-out questions of {manifest}, greedy, pass@1 with 95 % interval")
    for name, result in results.items():
        low, high = result.interval
        print(f"  {name:8} {result.accuracy:.2f}  ({result.right} of {result.questions}, {low:.2f} to {high:.2f})")
    print("by task (base -> adapter, of questions)")
    for entry, (right, questions) in base.by_entry().items():
        print(f"  {entry:20} {right:3} -> {adapter.by_entry()[entry][0]:3}  of {questions}")
    gained = sum(after and not before for before, after in zip(base.correct, adapter.correct, strict=True))
    lost = sum(before and not after for before, after in zip(base.correct, adapter.correct, strict=True))
    print(f"the adapter answers {gained} questions that the base got wrong, and misses {lost} that it got right")


def run_export(workspace: Workspace, adapter: Path | None, target: Path, form: ExportFormat, *, as_json: bool) -> None:
    """Write the adapter for another program."""
    from sapo_edge.backends.model.source import open_source

    directory = find_adapter(workspace, adapter)
    model = workspace.model
    check_model(directory, open_source(model, mlx=True).digest)

    path = export(directory, target, form, model)
    if as_json:
        print_json({"format": form, "path": str(path), "adapter": str(directory), "model": str(model)})
    else:
        print(path)
        narrate(f"from {directory}; use it with: {usage(path, form, model)}")
