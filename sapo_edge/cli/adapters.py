"""`sapo eval` and `sapo export`: compare and write a trained adapter."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sapo_edge.backends.adapter.export import ExportFormat, Quantisation
from sapo_edge.care.signals import tidying
from sapo_edge.cli.options import Adapter, Backend, Home, Json, ManifestName, Model, Set, Threads
from sapo_edge.cli.output import print_json
from sapo_edge.cli.workspace import open_workspace
from sapo_edge.errors import ConfigError
from sapo_edge.events import count_right
from sapo_edge.library.adapters import evaluate_both, export_adapter, find_adapter, find_record, trained_on
from sapo_edge.plain import narrate, printable

if TYPE_CHECKING:
    from sapo_edge.evaluate import Evaluation, Gain


def evaluate(
    adapter: Adapter = None, model: Model = None, manifest: ManifestName = None, backend: Backend = None,
    questions: Annotated[int | None, typer.Option(help="Held-out test questions.")] = None,
    general: Annotated[
        bool, typer.Option("--general", help="Ask questions of other kinds instead: has it forgotten anything?")
    ] = False,
    threads: Threads = None, settings: Set = None, home: Home = None, json: Json = False,
) -> None:  # fmt: skip
    """Compare base model and adapter on the held-out test questions."""
    from dataclasses import asdict

    from sapo_edge.cli.code import judging
    from sapo_edge.evaluate import paired_gain

    if general and (manifest is not None or questions is not None):
        raise ConfigError("--general has questions of its own", "leave out --manifest and --questions")
    flags = {"model": model, "manifest": manifest, "backend": backend, "held_out": questions, "threads": threads}
    workspace = open_workspace(home, flags, settings, needs_manifest=not general)
    tasks = None if general else workspace.require_manifest()
    name = "general" if tasks is None else tasks.name
    directory = find_adapter(workspace, adapter)
    checkpoint = None if tasks is None else find_record(directory)
    may_have_seen = tasks is not None and (checkpoint is None or checkpoint.manifest_digest != tasks.digest)
    with judging(workspace.paths, tasks) as functions:
        results, examples = evaluate_both(workspace, directory, general=general, functions=functions)
    gain = paired_gain(results["base"].marks, results["adapter"].marks)
    if json:
        record = {model: _as_dict(result) for model, result in results.items()}
        print_json({
            "manifest": name, "adapter_path": str(directory), "split": "general" if general else "test", **record,
            "gain": asdict(gain), "base_examples": examples, "may_have_seen": may_have_seen,
        })  # fmt: skip
    else:
        narrate(f"adapter: {directory}")
        if may_have_seen:
            reason = "it does not say on what" if checkpoint is None else "they were not all held out of its training"
            narrate(f"it may have been trained on some of these questions: {reason}")
        _print_table(results, examples, gain, name, general=general)
    if general and (warning := forgotten(gain)):
        narrate(warning)


def forgotten(gain: Gain) -> str:
    """A warning with its remedy where general questions are answered worse by more than chance; "" otherwise."""
    if gain.high >= 0:
        return ""
    return (
        "warning: the adapter has forgotten some of what its model knew, more than chance explains. Take an earlier "
        "checkpoint (`sapo checkpoints list`, then `sapo eval --general --adapter DIRECTORY`), or train again with a "
        "smaller learning_rate, or fewer updates of the head start (--head-start N)"
    )


def export(
    directory: Annotated[Path, typer.Argument(help="Where to write.")],
    to: Annotated[
        ExportFormat,
        typer.Option(
            "--to", help="merged for Ollama, LM Studio and all others; peft for transformers, gguf for llama.cpp, mlx."
        ),
    ],
    quantisation: Annotated[
        Quantisation | None, typer.Option("--quantisation", help="Number format of a merged GGUF file; default: q8_0.")
    ] = None,
    adapter: Adapter = None, model: Model = None, home: Home = None, json: Json = False,
) -> None:  # fmt: skip
    """Write the best adapter, alone or merged with its model, in a format that other programs read."""
    from sapo_edge.backends.adapter.export import usage

    workspace = open_workspace(home, {"model": model}, needs_manifest=False)
    if to is ExportFormat.MERGED:
        narrate("merging: this takes some seconds for each gigabyte")
    source = find_adapter(workspace, adapter)
    # The app ends it by SIGTERM, and half a model would be hidden gigabytes.
    with tidying():
        path = export_adapter(workspace, source, to, directory, quantisation)
    commands = usage(path, to, workspace.model)
    if json:
        record = {"format": to, "path": str(path), "adapter": str(source), "model": str(workspace.model)}
        print_json({**record, "usage": dict(commands)})
        return
    print(path)
    narrate(f"from {source}; use it with")
    for program, command in commands:
        narrate(f"  {program:12} {command}")
    if to is ExportFormat.MERGED and path.is_file():
        manifest = trained_on(workspace, find_record(source))
        text = "lacks the prompt of the training, which is not here"
        if manifest is not None:
            name = printable(manifest.name)
            text = f"has the prompt of the manifest {name}; in other programs, set its system text and examples"
        narrate(f"the Modelfile {text}")


def _as_dict(result: Evaluation) -> dict[str, Any]:
    low, high = result.interval
    entries = {
        name: {"correct": count_right(marks), "questions": len(marks), "marks": marks}
        for name, marks in result.marks_by_entry().items()
    }
    return {
        "accuracy": result.accuracy, "correct": result.right, "formed": result.formed,
        "questions": result.questions, "low": low, "high": high, "entries": entries,
    }  # fmt: skip


def _print_table(results: dict[str, Evaluation], examples: int, gain: Gain, manifest: str, *, general: bool) -> None:
    from sapo_edge.control.event_words import describe_form, describe_too_long, format_gain
    from sapo_edge.control.report import by_task
    from sapo_edge.control.report_words import task_lines

    base, adapter = results["base"], results["adapter"]
    asked = f"held-out test questions of {manifest}, by which no checkpoint was chosen"
    if general:
        asked = "general questions, without the prompt of the training"
    print(f"{asked}; greedy, pass@1, 95 % intervals")
    print("right by content, in whatever form")
    for name, result in results.items():
        low, high = result.interval
        shown = f", with {examples} more worked examples" if examples and result is base else ""
        counts = f"{result.right} of {result.questions}, {low:.2f} to {high:.2f}"
        print(f"  {name:8} {result.accuracy:.2f}  ({counts}){shown}")
    print(f"  {format_gain(gain.value, gain.low, gain.high, base.questions)}, paired on the same questions")
    print(f"  {gain.gained} became right, {gain.lost} became wrong")
    if not general:
        print(f"  {describe_form(base.formed, adapter.formed, base.questions)}")
    if base.too_long:
        print(f"  {describe_too_long(base.too_long, base.questions)}")
    print("by task (base -> adapter)")
    for line in task_lines(by_task(base.marks_by_entry(), adapter.marks_by_entry())):
        print(line)
