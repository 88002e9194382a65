"""`sapo bench`: speed and memory of each backend on this machine."""

from __future__ import annotations

import json
import statistics
import subprocess
from dataclasses import asdict
from typing import Annotated, Any

import typer

from sapo_edge.children import python_command
from sapo_edge.cli.options import Home, Json, ManifestName, Model, Set, Threads
from sapo_edge.cli.output import print_json
from sapo_edge.cli.workspace import open_workspace
from sapo_edge.errors import BackendError, ExitCode, SapoError
from sapo_edge.library.workspace import Workspace
from sapo_edge.plain import narrate, printable, table
from sapo_edge.state.lock import lock_holder

NOISY = 0.2
"""Range of a figure, as a share of its median, above which it is called noisy."""


def bench(
    backend: Annotated[
        list[str] | None,
        typer.Option("--backend", help="Measure this one; repeatable. Default: all that can run here."),
    ] = None,
    model: Model = None,
    manifest: ManifestName = None,
    repeats: Annotated[int, typer.Option(min=1, max=100, help="Rounds of each.")] = 3,
    threads: Threads = None,
    settings: Set = None,
    home: Home = None,
    json: Json = False,
) -> None:
    """Measure this machine: sampling, updates and memory of each backend. Takes minutes."""
    from sapo_edge.doctor.bench import QUESTIONS, TOKENS

    workspace = open_workspace(home, {"model": model, "manifest": manifest, "threads": threads}, settings)
    answers = workspace.settings.answers
    names = _backend_names(workspace, backend)
    notes = _notes(workspace)
    for note in notes:
        narrate(note)
    # In a process of its own each: only a fresh one shows how much memory a backend takes.
    results = {name: _measure(workspace, name, repeats) for name in names}
    if json:
        shape = {"questions": QUESTIONS, "answers": answers, "tokens": TOKENS, "repeats": repeats}
        print_json({"model": str(workspace.model), **shape, "notes": notes, "backends": results})
    else:
        _print_table(results)
        narrate(
            f"rounds of {QUESTIONS} questions x {answers} answers x {TOKENS} tokens: medians of {repeats}, and ranges"
        )
    is_measured = any("error" not in result for result in results.values())
    raise typer.Exit(ExitCode.DONE if is_measured else ExitCode.FAILED)


def _backend_names(workspace: Workspace, names: list[str] | None) -> list[str]:
    from sapo_edge.backends.choose import detect

    if not names:
        names = [backend.name for backend, support in detect.survey(workspace.model) if support.usable]
    for name in names:
        detect.find_backend(name)
    if not names:
        raise BackendError("no backend can be used on this machine", "sapo doctor says what is missing")
    return names


def _notes(workspace: Workspace) -> list[str]:
    """Reasons why figures are lower than they could be."""
    from sapo_edge.backends.machine.threads import cores_in_use

    notes = []
    busy = cores_in_use(1.0)
    if busy > 0.3:
        notes.append(f"other programs use {busy:.1f} processor cores: figures are lower than on an idle machine")
    try:
        if lock_holder(workspace.paths.lock) is not None:
            notes.append("a node is running here: pause it with `sapo pause` while you measure")
    except SapoError as error:
        notes.append(f"whether a node is running here is unknown: {error.message}")
    return notes


def _measure(workspace: Workspace, name: str, repeats: int) -> dict[str, Any]:
    """The figures of one backend, or its error and remedy."""
    from sapo_edge.doctor.bench import Benchmark

    manifest = workspace.require_manifest()
    benchmark = Benchmark(
        name, str(workspace.model), manifest.to_bytes().hex(), str(manifest.store or ""), str(workspace.paths.cache),
        repeats, workspace.quantise, workspace.settings.as_dict(),
    )  # fmt: skip
    narrate(f"measuring {name}")
    ended = subprocess.run(
        python_command("-m", "sapo_edge.doctor.bench"), input=json.dumps(asdict(benchmark)), stdout=subprocess.PIPE,
        text=True, check=False,
    )  # fmt: skip
    try:
        figures: dict[str, Any] = json.loads(ended.stdout)
    except ValueError:
        return {"error": f"its process ended with code {ended.returncode}", "remedy": "see its output above"}
    if "error" in figures:
        return figures
    for figure in ("tokens_per_second", "update_seconds"):
        figures[f"median_{figure}"] = statistics.median(figures[figure])
    return figures


def _print_table(results: dict[str, dict[str, Any]]) -> None:
    head = ("backend", "loads in", "samples", "(of rounds)", "updates in", "(of rounds)", "takes", "estimated")
    measured = {name: figures for name, figures in results.items() if "error" not in figures}
    if measured:
        print("\n".join(table([head, *((name, *_columns(figures)) for name, figures in measured.items())])))
    for name, figures in results.items():
        if "error" in figures:
            print(f"{name}: not measured: {printable(figures['error'])}; {printable(figures['remedy'])}")
    if noisy := [name for name, figures in measured.items() if _is_noisy(figures)]:
        narrate(f"noisy: {', '.join(noisy)}, by more than {NOISY:.0%}; close other programs, or ask for more --repeats")


def _columns(figures: dict[str, Any]) -> tuple[str, ...]:
    rates, seconds = figures["tokens_per_second"], figures["update_seconds"]
    taken, estimated = figures["device_bytes"] or figures["peak_bytes"], figures["estimated_bytes"]
    where = " of the GPU's" if figures["device_bytes"] else ""
    deviation = f" ({estimated / taken - 1:+.0%})" if taken else ""
    return (
        f"{figures['load_seconds']:.1f} s",
        f"{figures['median_tokens_per_second']:.0f} tokens/s",
        f"{min(rates):.0f} to {max(rates):.0f}",
        f"{figures['median_update_seconds']:.1f} s",
        f"{min(seconds):.1f} to {max(seconds):.1f}",
        f"{taken / 1e9:.2f} GB{where}" if taken else "unknown",
        f"{estimated / 1e9:.2f} GB{deviation}",
    )


def _is_noisy(figures: dict[str, Any]) -> bool:
    columns = (figures["tokens_per_second"], figures["update_seconds"])
    return any(max(values) - min(values) > NOISY * statistics.median(values) for values in columns)
