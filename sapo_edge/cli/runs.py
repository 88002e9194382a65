"""`sapo runs`: several runs beside each other: list, begin, choose, compare and remove them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sapo_edge.cli.options import Home, Json
from sapo_edge.cli.output import emit, report
from sapo_edge.control.client import explained_lock
from sapo_edge.plain import counted, format_time, narrate, printable, table
from sapo_edge.state.checkpoints import Checkpoints
from sapo_edge.state.paths import Paths

if TYPE_CHECKING:
    from sapo_edge.control.runs import RunView
    from sapo_edge.events import HeldOut
    from sapo_edge.state.checkpoint import Checkpoint

app = typer.Typer(no_args_is_help=True, help="Several runs beside each other.")
Name = Annotated[str, typer.Argument(metavar="NAME", help="A run of `sapo runs list`.")]


@app.command("list")
def list_runs(home: Home = None, json: Json = False) -> None:
    """List the runs: rounds, last round's time, right answers to validation questions, model; * marks the current."""
    from sapo_edge.control.runs import read_runs

    views = read_runs(Paths.default(home))
    cells = [(" ", "run", "rounds", "last round", "best", "model")]
    for view in views:
        ended = format_time(view.ended)[:16] if view.rounds else "-"
        mark, model = "*" if view.current else " ", printable(view.problem or view.model)
        cells.append((mark, view.name, str(view.rounds), ended, _best(view.best), model))
    emit({"runs": [_record(view) for view in views]}, table(cells, {2, 4}), json)


@app.command()
def new(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Default: run-2, run-3, ...")] = None,
    home: Home = None,
    json: Json = False,
) -> None:
    """Begin a run beside the others: the next `sapo run` starts with the untrained model. Needs a stopped node."""
    from sapo_edge.state.runs import begin_run, run_names, unused

    paths = Paths.default(home)
    name = name or unused(run_names(paths))
    with explained_lock(paths):
        begin_run(paths, name)
    record = {"done": "new", "run": name, "directory": str(paths.run_of(name).directory)}
    report(record, f"the next `sapo run` begins the run {name}; the others stay as they are", json)
    unset_others(paths, None)


@app.command()
def use(name: Name, home: Home = None, json: Json = False) -> None:
    """Return to a run: the next `sapo run` continues it. Needs a node that does not run."""
    from sapo_edge.state.runs import use_run

    paths = Paths.default(home)
    with explained_lock(paths):
        use_run(paths, name)
    report({"done": "use", "run": name}, f"the next `sapo run` continues the run {name}", json)
    checkpoint = Checkpoints(paths.checkpoints).newest_record()
    unset_others(paths, checkpoint)
    if checkpoint is not None:
        _name_manifest(paths, checkpoint.manifest_digest)


def unset_others(paths: Paths, checkpoint: Checkpoint | None) -> None:
    """Remove from config.toml what is of another run, and say so: with other values no node continues a checkpoint."""
    from sapo_edge.config.layers import read_file, set_values
    from sapo_edge.library.workspace import STATE_SETTINGS

    values = read_file(paths.config_file)
    made_with = {} if checkpoint is None else checkpoint.settings
    own = {name: made_with[name] for name in ("manifest", *STATE_SETTINGS) if name in made_with}
    if checkpoint is not None and "manifest" in values:
        # The name may stand for another manifest by now.
        same = _digest(paths, str(values["manifest"])) == checkpoint.manifest_digest
        own["manifest"] = values["manifest"] if same else None
    others = [name for name, value in values.items() if name == "rounds" or (name in own and own[name] != value)]
    if others:
        set_values(paths.config_file, dict.fromkeys(others))
        listed = ", ".join(f"{name} = {printable(values[name])}" for name in others)
        narrate(f"no longer in config.toml, because it was set for another run: {listed}")


def _name_manifest(paths: Paths, digest: str) -> None:
    """Name a run's manifest in config.toml, and say so, if the joined swarm's would be trained on otherwise."""
    from sapo_edge.config.layers import read_file, set_values
    from sapo_edge.swarm.joining.membership import Membership
    from sapo_edge.tasks.manifest import shipped_name

    swarm = Membership(paths.state).current
    if swarm is not None and swarm.manifest.hex() != digest and "manifest" not in read_file(paths.config_file):
        name = shipped_name(digest) or digest
        set_values(paths.config_file, {"manifest": name})
        narrate(f"now in config.toml, because the joined swarm trains on {printable(swarm.name)}: manifest = {name}")


def _digest(paths: Paths, manifest: str) -> str:
    from sapo_edge.errors import ManifestError
    from sapo_edge.library.workspace import find_manifest
    from sapo_edge.swarm.joining.membership import Membership

    with suppress(ManifestError):
        return find_manifest(paths, Membership(paths.state), manifest).digest
    return ""


@app.command()
def remove(name: Name, home: Home = None, json: Json = False) -> None:
    """Delete a run with its checkpoints; not the current one. Needs a node that does not run."""
    from sapo_edge.state.runs import remove_run

    paths = Paths.default(home)
    with explained_lock(paths):
        remove_run(paths, name)
    report({"done": "remove", "run": name}, f"the run {name} is deleted", json)


@app.command()
def compare(
    name: Name,
    other: Annotated[str | None, typer.Argument(metavar="OTHER", help="Default: the current run.")] = None,
    home: Home = None,
    json: Json = False,
) -> None:
    """Compare two runs: their best adapters on the same questions, each task, and the settings that differ."""
    from sapo_edge.control.runs import compare_best, differing, read_run
    from sapo_edge.state.runs import check_run_exists

    paths = Paths.default(home)
    chosen = (name, other or paths.run_name)
    for run in chosen:
        check_run_exists(paths, run)
    views = [read_run(paths, run) for run in chosen]
    gain, differences = compare_best(*views), differing(*views)
    record = {
        "runs": [_record(view) for view in views],
        "gain": None if gain is None else asdict(gain),
        "settings": {setting: values for setting, *values in differences},
    }
    lines = [f"{view.name}: {counted(view.rounds, 'round')}, best {_best(view.best)}" for view in views]
    if gain is None:
        lines.append("their best adapters can't be compared: they were not asked the same questions")
    else:
        points = f"{100 * gain.value:+z.0f} points of 100 (95 %: {100 * gain.low:+z.0f} to {100 * gain.high:+z.0f})"
        lines.append(f"{views[1].name} against {views[0].name} on the same questions: {points}")
    lines += [f"  {printable(f'{setting}: {first} | {second}')}" for setting, first, second in differences]
    emit(record, lines, json)


def _best(best: HeldOut | None) -> str:
    return "-" if best is None else f"{best.correct / max(1, best.questions):.2f} ({best.correct} of {best.questions})"


def _record(view: RunView) -> dict[str, Any]:
    fields = asdict(view)
    report = fields.pop("report")
    if (best := view.best) is not None:
        fields["best"] = {"round": best.round, "right": best.correct, "questions": best.questions, "split": best.split}
    return {**fields, "tasks": [] if report is None else report["tasks"]}
