"""`sapo experiment`: compares ways to train, over whole swarms on this machine."""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sapo_edge.care.signals import ending_signals, handling
from sapo_edge.cli.options import Home, JsonEvents
from sapo_edge.cli.output import emit, print_json
from sapo_edge.errors import ConfigError, StateError
from sapo_edge.plain import did_you_mean, narrate

if TYPE_CHECKING:
    from sapo_edge.experiment.plan import Plan, Setting
    from sapo_edge.experiment.runner import Step


def experiment(
    scale: Annotated[
        str | None,
        typer.Option(
            help="tiny (default): small models that ship. law: the same, 1 to 1,000 members. "
            "embedded: the embedded model. paper: the published one."
        ),
    ] = None,
    plan: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Settings and arms of your own, in TOML: docs/results.md.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where results go; default: sapo-experiment-SCALE here.")
    ] = None,
    setting: Annotated[list[str] | None, typer.Option(help="Only this setting; repeatable.")] = None,
    arm: Annotated[list[str] | None, typer.Option(help="Only this arm, and the baseline; repeatable.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, max=1000, help="Swarms of each arm.")] = None,
    seed_base: Annotated[int | None, typer.Option(min=0, max=1_000_000, help="First of the seeds.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, max=1_000_000, help="Rounds of each swarm.")] = None,
    nodes: Annotated[int | None, typer.Option(min=1, max=256, help="Members of each swarm.")] = None,
    manifest: Annotated[str | None, typer.Option(help="Train on this manifest: a shipped name or a TOML file.")] = None,
    model: Annotated[str | None, typer.Option(help="Train this model: a GGUF file or a directory.")] = None,
    backend: Annotated[str | None, typer.Option(help="llama_cpp, torch or mlx.")] = None,
    jobs: Annotated[int, typer.Option(min=0, max=256, help="Swarms at a time; 0: as many as cores allow.")] = 0,
    list_: Annotated[bool, typer.Option("--list", help="Show settings and arms, and run nothing.")] = False,
    report: Annotated[bool, typer.Option("--report", help="Only write the report of what is finished.")] = False,
    plots: Annotated[bool, typer.Option("--plots/--no-plots", help="Draw the plots.")] = True,
    home: Home = None,
    json: JsonEvents = False,
) -> None:
    """Compare ways to train, over whole swarms on this machine. Run it again to go on where it ended."""
    from sapo_edge.experiment.report import check_libraries

    chosen = _choose(scale, plan, setting or [], arm or [])
    chosen = _override(
        chosen, rounds, nodes, seeds=seeds, seed_base=seed_base, manifest=manifest, model=model, backend=backend
    )
    if list_:
        emit({"plan": asdict(chosen)}, _listed(chosen), json)
        return
    check_libraries(plots=plots)
    directory = to or Path(f"sapo-experiment-{chosen.scale}")
    if not report:
        _run(chosen, directory, jobs, home, as_json=json)
    _report(chosen, directory, plots=plots, as_json=json)


def _run(plan: Plan, directory: Path, jobs: int, home: Path | None, *, as_json: bool) -> None:
    from sapo_edge.backends.machine.threads import available_cores
    from sapo_edge.cli.progress import show_steps
    from sapo_edge.experiment.results import Results
    from sapo_edge.experiment.runner import run_jobs
    from sapo_edge.state.paths import Paths

    # Without a number of threads, one swarm uses all cores.
    workers = jobs or (max(1, available_cores() // plan.threads) if plan.threads else 1)
    results = Results(directory, lambda record: None)
    results.check(plan, {})
    todo = [job for job in plan.jobs if job.key not in results.swarms]
    # All workers end on SIGTERM and on the end of the terminal as on Ctrl-C.
    interruptible = handling(ending_signals(), signal.default_int_handler)
    with interruptible, closing(run_jobs(plan, results, Paths.default(home).cache, workers, narrate)) as steps:
        try:
            if as_json:
                _print_steps(steps)
            else:
                show_steps(todo, len(plan.jobs), steps)
        except KeyboardInterrupt:
            done = sum(job.key in results.swarms for job in plan.jobs)
            narrate(f"stopped; {done} of {len(plan.jobs)} swarms are finished, and the same command continues")
            raise


def _report(plan: Plan, directory: Path, *, plots: bool, as_json: bool) -> None:
    from sapo_edge.experiment.report import SUMMARY, write_report
    from sapo_edge.experiment.results import read_records

    records = read_records(directory, plan)
    if not records:
        remedy = "run it without --report first; --report needs the same --rounds and --nodes"
        raise StateError(f"no swarm of this plan is finished in {directory}", remedy)
    files = write_report(plan, records, directory, plots)
    if as_json:
        print_json({"event": "report", "finished": len(records), "files": [str(path) for path in files]})
        return
    typer.echo((directory / SUMMARY).read_text("utf-8"), nl=False)
    narrate(f"{len(records)} of {len(plan.jobs)} swarms are finished; {directory / 'table.md'} has all figures")


def _choose(scale: str | None, file: Path | None, settings: Iterable[str], arms: Iterable[str]) -> Plan:
    """The plan of a scale or a file, reduced to some settings and arms."""
    from sapo_edge.experiment.scales import SCALES, read_plan

    if file is not None:
        if scale is not None:
            raise ConfigError("--plan and --scale are both given", "write the scale into the file of the plan")
        plan = read_plan(file)
    else:
        scale = scale or "tiny"
        _check_known("scale", [scale], SCALES, f"choose {', '.join(SCALES)}")
        plan = SCALES[scale]()
    names = [setting.name for setting in plan.settings]
    _check_known("setting", settings, names, "--list shows them")
    kept = tuple(item for item in plan.settings if not settings or item.name in settings)
    wanted = set(arms)
    if wanted:
        known = [arm.name for setting in kept for arm in setting.arms]
        _check_known("arm", arms, known, "--list shows them")
        kept = tuple(_with_arms(setting, wanted) for setting in kept if wanted & {arm.name for arm in setting.arms})
    return replace(plan, settings=kept)


def _check_known(kind: str, names: Iterable[str], known: Collection[str], otherwise: str) -> None:
    for name in names:
        if name not in known:
            raise ConfigError(f"there is no {kind} {name}", did_you_mean(name, known, otherwise))


def _with_arms(setting: Setting, names: set[str]) -> Setting:
    arms = tuple(arm for arm in setting.arms if arm.name in names or arm.name == setting.baseline)
    return replace(setting, arms=arms)


def _override(plan: Plan, rounds: int | None, nodes: int | None, **values: Any) -> Plan:
    """The plan with the values of flags; None where one is missing."""
    try:
        settings = tuple(
            replace(setting, rounds=rounds or setting.rounds, nodes=nodes or setting.nodes) for setting in plan.settings
        )
    except ValueError as error:
        raise ConfigError(str(error), "give more --nodes, or choose other settings with --setting") from error
    return replace(plan, settings=settings, **{name: value for name, value in values.items() if value is not None})


def _listed(plan: Plan) -> Iterator[str]:
    for setting in plan.settings:
        yield f"{setting.name}: {setting.title} ({setting.nodes} members, {setting.rounds} rounds)"
        for arm in setting.arms:
            yield f"    {arm.name:24} {arm.title}"


def _print_steps(steps: Iterable[Step]) -> None:
    for step in steps:
        job = step.job
        print_json({
            "event": "swarm" if step.is_done else "rounds", "setting": job.setting.name, "arm": job.arm.name,
            "seed": job.seed, "rounds": step.finished,
        })  # fmt: skip
