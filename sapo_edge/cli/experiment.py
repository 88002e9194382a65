"""`sapo experiment`: compares ways to train, over whole swarms on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sapo_edge.cli.options import Home, JsonEvents
from sapo_edge.cli.output import narrate, print_json
from sapo_edge.errors import ConfigError
from sapo_edge.plain import did_you_mean, duration

if TYPE_CHECKING:
    from sapo_edge.experiment.plan import Plan, Setting
    from sapo_edge.experiment.runner import Step


def experiment(
    scale: Annotated[
        str,
        typer.Option(help="tiny: a small model, made here. embedded: the embedded model. paper: the published one."),
    ] = "tiny",
    plan: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Settings and arms of your own, in TOML: docs/experiments.md.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where results go; default: sapo-experiment-SCALE here.")
    ] = None,
    setting: Annotated[list[str] | None, typer.Option(help="Only this setting; repeatable.")] = None,
    arm: Annotated[list[str] | None, typer.Option(help="Only this arm, and the baseline; repeatable.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, max=1000, help="Swarms of each arm.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, max=1_000_000, help="Rounds of each swarm.")] = None,
    nodes: Annotated[int | None, typer.Option(min=1, max=256, help="Members of each swarm.")] = None,
    manifest: Annotated[str | None, typer.Option(help="Train on this manifest: a shipped name or a TOML file.")] = None,
    model: Annotated[str | None, typer.Option(help="Train this model: a GGUF file or a directory.")] = None,
    backend: Annotated[str | None, typer.Option(help="llama_cpp, torch, mlx, or an installed one.")] = None,
    network: Annotated[
        str | None, typer.Option(help="memory, or loopback: members talk over libp2p on this machine.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=0, max=256, help="Swarms at a time; 0: as many as cores.")] = 0,
    list_: Annotated[bool, typer.Option("--list", help="Show settings and arms, and run nothing.")] = False,
    report: Annotated[bool, typer.Option("--report", help="Only write the report of what is finished.")] = False,
    plots: Annotated[bool, typer.Option("--plots/--no-plots", help="Draw the plots.")] = True,
    home: Home = None,
    json: JsonEvents = False,
) -> None:
    """Compare ways to train, over whole swarms on this machine. Run it again to go on where it ended."""
    from sapo_edge.experiment.libraries import check_libraries
    from sapo_edge.experiment.report import write_report
    from sapo_edge.experiment.runner import claim, jobs_of, read_results, run_jobs
    from sapo_edge.state.paths import Paths

    chosen = _choose(scale, plan, setting or [], arm or [])
    chosen = _connect(_override(chosen, seeds, rounds, nodes, manifest, model, backend), network)
    if list_:
        _print_list(chosen, as_json=json)
        return
    check_libraries(plots=plots)
    suffix = "" if chosen.network == "memory" else f"-{chosen.network}"
    directory = to or Path(f"sapo-experiment-{chosen.scale}{suffix}")
    claim(directory, chosen)
    if not report:
        steps = run_jobs(chosen, directory, Paths.default(home).cache, jobs or os.cpu_count() or 1, narrate)
        (_print_steps if json else _show_steps)(chosen, directory, steps)
    records, costs = read_results(directory, chosen)
    files = write_report(chosen, records, costs, directory, plots)
    if json:
        print_json({"event": "report", "finished": len(records), "files": [str(path) for path in files]})
    else:
        narrate(f"{len(records)} of {len(jobs_of(chosen))} swarms are finished; the report is in {directory}")
        typer.echo((directory / "table.md").read_text("utf-8"), nl=False)


def _choose(scale: str, file: Path | None, settings: Iterable[str], arms: Iterable[str]) -> Plan:
    """The plan of a scale or a file, reduced to some settings and arms.

    Raises:
        ConfigError: if there is no such scale, setting or arm.
    """
    from sapo_edge.experiment.plan_file import read_plan
    from sapo_edge.experiment.scales import SCALES

    if file is None and scale not in SCALES:
        raise ConfigError(f"there is no scale {scale}", did_you_mean(scale, SCALES, f"choose {', '.join(SCALES)}"))
    plan = read_plan(file) if file is not None else SCALES[scale]()
    names = [setting.name for setting in plan.settings]
    for name in settings:
        if name not in names:
            raise ConfigError(f"there is no setting {name}", did_you_mean(name, names, "--list shows them"))
    kept = tuple(item for item in plan.settings if not settings or item.name in settings)
    wanted = set(arms)
    if wanted:
        known = [arm.name for setting in kept for arm in setting.arms]
        for name in wanted.difference(known):
            raise ConfigError(f"there is no arm {name}", did_you_mean(name, known, "--list shows them"))
        kept = tuple(_with_arms(setting, wanted) for setting in kept if wanted & {arm.name for arm in setting.arms})
    return replace(plan, settings=kept)


def _with_arms(setting: Setting, names: set[str]) -> Setting:
    return replace(
        setting, arms=tuple(arm for arm in setting.arms if arm.name in names or arm.name == setting.baseline)
    )


def _override(
    plan: Plan,
    seeds: int | None,
    rounds: int | None,
    nodes: int | None,
    manifest: str | None,
    model: str | None,
    backend: str | None,
) -> Plan:
    settings = tuple(
        replace(setting, rounds=rounds or setting.rounds, nodes=nodes or setting.nodes) for setting in plan.settings
    )
    return replace(
        plan,
        settings=settings,
        seeds=seeds or plan.seeds,
        manifest=manifest or plan.manifest,
        model=model or plan.model,
        backend=backend or plan.backend,
    )


def _connect(plan: Plan, network: str | None) -> Plan:
    """The plan with a network.

    Raises:
        ConfigError: if there is no such network, or it does not carry what an arm needs.
    """
    from sapo_edge.experiment.plan import NETWORKS

    network = network or plan.network
    if network not in NETWORKS:
        raise ConfigError(
            f"there is no network {network}", did_you_mean(network, NETWORKS, f"choose {' or '.join(NETWORKS)}")
        )
    if network != "memory":
        plan = replace(plan, settings=tuple(map(_without_claims, plan.settings)))
    return replace(plan, network=network)


def _without_claims(setting: Setting) -> Setting:
    claiming = {arm.name for arm in setting.arms if arm.training.claims}
    if setting.baseline in claiming:
        raise ConfigError(
            f"{setting.name} compares with {setting.baseline}, which needs log-probabilities that the wire lacks",
            "use --network memory",
        )
    if claiming:
        narrate(f"{setting.name}: left out, because the wire carries no log-probabilities: {', '.join(claiming)}")
    return _with_arms(setting, {arm.name for arm in setting.arms} - claiming)


def _print_list(plan: Plan, *, as_json: bool) -> None:
    if as_json:
        print_json({"plan": asdict(plan)})
        return
    for setting in plan.settings:
        typer.echo(f"{setting.name}: {setting.title} ({setting.nodes} members, {setting.rounds} rounds)")
        for arm in setting.arms:
            typer.echo(f"    {arm.name:24} {arm.title}")


def _print_steps(_plan: Plan, directory: Path, steps: Iterable[Step]) -> None:
    """One event a line on stdout."""
    for step in steps:
        job = step.job
        print_json(
            {
                "event": "swarm" if step.is_done else "rounds",
                "setting": job.setting.name,
                "arm": job.arm.name,
                "seed": job.seed,
                "rounds": step.finished,
                "record": str(job.record(directory)) if step.is_done else None,
            }
        )


def _show_steps(plan: Plan, directory: Path, steps: Iterable[Step]) -> None:
    """A progress bar with the time left, and a line for each finished swarm where there is no terminal."""
    import time

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    from sapo_edge.experiment.runner import Job, jobs_of

    todo = [job for job in jobs_of(plan) if not job.is_done(directory)]
    if not todo:
        return
    effort = {job: job.rounds * job.setting.nodes * (job.arm.training.own + job.arm.training.external) for job in todo}
    done: dict[Job, int] = dict.fromkeys(todo, 0)
    finished, start = 0, time.monotonic()
    console = Console(stderr=True, highlight=False)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:.0f} %  {task.fields[left]}"),
        console=console,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task("", total=sum(effort.values()), left="")
        for step in steps:
            done[step.job] = step.finished
            finished += step.is_done
            work = sum(effort[job] * rounds / job.rounds for job, rounds in done.items())
            left = (time.monotonic() - start) * (sum(effort.values()) / max(work, 1e-9) - 1)
            text = f"{finished} of {len(todo)} swarms"
            bar.update(task, description=text, completed=work, left=f"{duration(left)} left")
            if step.is_done and not console.is_terminal:
                narrate(f"{step.job.name}: done ({text}, {duration(left)} left)")
