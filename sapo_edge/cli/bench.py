"""`sapo bench`: this machine's figures, backend by backend."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sapo_edge.cli.output import narrate, print_json
from sapo_edge.cli.workspace import Workspace
from sapo_edge.doctor.bench import QUESTIONS, TOKENS, Task
from sapo_edge.errors import BackendError, ExitCode, SapoError
from sapo_edge.plain import printable
from sapo_edge.state.lock import lock_holder

NOISY = 0.2
"""Spread of a figure, by its median, from which on it is called noisy."""


def run_bench(workspace: Workspace, names: Sequence[str], *, repeats: int, as_json: bool) -> ExitCode:
    """Measure each backend in a process of its own.

    Args:
        workspace: model, manifest and threads.
        names: of backends; none for all that can be used here.
        repeats: rounds of each.
        as_json: print JSON instead of a table.

    Returns:
        FAILED if none could be measured.
    """
    from sapo_edge.backends.choose import detect, registry

    model = workspace.model
    chosen = list(names) or [backend.name for backend, support in detect.survey(model) if support.usable]
    for name in chosen:
        registry.find_backend(name)
    if not chosen:
        raise BackendError("no backend can be used on this machine", "sapo doctor says what is missing")
    notes = _notes(workspace)
    for note in notes:
        narrate(note)
    results = {name: _measure(workspace, name, model, repeats) for name in chosen}
    if as_json:
        shape = {"questions": QUESTIONS, "answers": workspace.settings.answers, "tokens": TOKENS, "repeats": repeats}
        print_json({"model": str(model), **shape, "notes": notes, "backends": results})
    else:
        _print_table(results, workspace.settings.answers, repeats)
    return ExitCode.DONE if any("error" not in result for result in results.values()) else ExitCode.FAILED


def _notes(workspace: Workspace) -> list[str]:
    """What makes figures lower than they could be."""
    from sapo_edge.backends.machine.threads import cores_in_use

    notes = []
    busy = cores_in_use(1.0)
    if busy > 0.3:
        notes.append(f"other programs use {busy:.1f} processor cores: figures are lower than on an idle machine")
    try:
        if lock_holder(workspace.paths.lock) is not None:
            notes.append("a node is running here: sapo pause makes it rest while you measure")
    except SapoError as error:
        notes.append(f"nobody knows whether a node is running here: {error.message}")
    return notes


def _measure(workspace: Workspace, name: str, model: Path, repeats: int) -> dict[str, Any]:
    """The figures of one backend, or its error and remedy."""
    settings = workspace.settings
    manifest = workspace.require_manifest().to_bytes().hex()
    task = Task(
        name, str(model), manifest, str(workspace.paths.cache), settings.answers, settings.rank, settings.threads,
        repeats,
    )  # fmt: skip
    narrate(f"measuring {name}")
    ended = subprocess.run(
        [sys.executable, "-m", "sapo_edge.doctor.bench"], input=json.dumps(asdict(task)), stdout=subprocess.PIPE,
        text=True, check=False,
    )  # fmt: skip
    try:
        found: dict[str, Any] = json.loads(ended.stdout)
    except ValueError:
        return {"error": f"its process ended with code {ended.returncode}", "remedy": "see what it said above"}
    if "error" in found:
        return found
    for figure in ("tokens_per_second", "update_seconds"):
        found[f"median_{figure}"] = statistics.median(found[figure])
    return found


def _print_table(results: dict[str, dict[str, Any]], answers: int, repeats: int) -> None:
    head = ("backend", "loads in", "samples", "(of rounds)", "updates in", "(of rounds)", "takes", "estimated")
    rows: list[tuple[str, ...]] = [head]
    for name, found in results.items():
        if "error" not in found:
            rows.append((name, *_columns(found)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    if len(rows) > 1:
        for row in rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for name, found in results.items():
        if "error" in found:
            print(f"{name}: not measured: {printable(str(found['error']))}; {printable(str(found['remedy']))}")
    narrate(f"rounds of {QUESTIONS} questions x {answers} answers x {TOKENS} tokens: medians of {repeats}, and ranges")
    noisy = [name for name, found in results.items() if "error" not in found and _is_noisy(found)]
    if noisy:
        narrate(f"noisy: {', '.join(noisy)}, by more than {NOISY:.0%}; close other programs, or ask for more --repeats")


def _columns(found: dict[str, Any]) -> tuple[str, ...]:
    rates, seconds = found["tokens_per_second"], found["update_seconds"]
    taken, estimated = found["device_bytes"] or found["peak_bytes"], found["estimated_bytes"]
    where = " of the GPU's" if found["device_bytes"] else ""
    apart = f" ({estimated / taken - 1:+.0%})" if taken else ""
    return (
        f"{found['load_seconds']:.1f} s",
        f"{found['median_tokens_per_second']:.0f} tokens/s",
        f"{min(rates):.0f} to {max(rates):.0f}",
        f"{found['median_update_seconds']:.1f} s",
        f"{min(seconds):.1f} to {max(seconds):.1f}",
        f"{taken / 1e9:.2f} GB{where}" if taken else "unknown",
        f"{estimated / 1e9:.2f} GB{apart}",
    )


def _is_noisy(found: dict[str, Any]) -> bool:
    figures = (found["tokens_per_second"], found["update_seconds"])
    return any(max(values) - min(values) > NOISY * statistics.median(values) for values in figures)
