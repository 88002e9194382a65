"""`sapo run`: a node in the foreground."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sapo_edge import events
from sapo_edge.cli.consent import ask_for_consent
from sapo_edge.cli.options import Agree, Backend, Home, JsonEvents, ManifestName, Model, Set
from sapo_edge.cli.output import as_typed, discard_output
from sapo_edge.cli.service import offer_start_at_login
from sapo_edge.cli.start import start_detached
from sapo_edge.cli.swarm import describe_questions
from sapo_edge.cli.workspace import open_workspace
from sapo_edge.errors import ConfigError, ExitCode
from sapo_edge.library.workspace import Workspace
from sapo_edge.plain import narrate, table
from sapo_edge.state import logs
from sapo_edge.state.consent import agreed_to_share

if TYPE_CHECKING:
    from sapo_edge.library.fanout import Receiver
    from sapo_edge.library.session import Outcome
    from sapo_edge.service.notify import ServiceManager
    from sapo_edge.state.store import Store
    from sapo_edge.tasks.source import Function, TaskSource


def run(
    rounds: Annotated[
        int | None, typer.Option(help="Stop after this round, counted from the first start; 0: never.")
    ] = None,
    model: Model = None,
    manifest: ManifestName = None,
    backend: Backend = None,
    own: Annotated[int | None, typer.Option(help="I: own rollouts in an update.")] = None,
    external: Annotated[int | None, typer.Option(help="J: external rollouts in an update.")] = None,
    answers: Annotated[int | None, typer.Option(help="L: answers to each question.")] = None,
    solo: Annotated[bool, typer.Option("--solo", help="Work alone: share nothing, connect to no peer.")] = False,
    agree: Agree = False,
    role: Annotated[str | None, typer.Option(help="trainer, or generator: answers and shares, never learns.")] = None,
    threads: Annotated[
        int | None, typer.Option(help="Processor threads; 0: measured, other programs go first.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything; default: from the node's identity.")] = None,
    head_start: Annotated[
        str | None,
        typer.Option(
            help="Updates on right answers before the first round; 0: none; auto, the default: while validation rises."
        ),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Run in the background, and return once the node answers.")
    ] = False,
    settings: Set = None,
    home: Home = None,
    json: JsonEvents = False,
) -> None:
    """Train in the foreground. Ctrl-C finishes the round and saves; a second one stops immediately."""
    flags = {
        "rounds": rounds, "model": model, "manifest": manifest, "backend": backend, "own": own, "external": external,
        "answers": answers, "threads": threads, "seed": seed, "role": role,
        "network": "solo" if solo else None, "head_start": head_start,
    }  # fmt: skip
    if detach and json:
        remedy = "leave out one of --json and --detach; `sapo logs --follow --json` prints those of any node"
        raise ConfigError("--json prints the events of a node in the foreground", remedy)
    workspace = open_workspace(home, flags, settings)
    if detach:
        start_detached(workspace, home, flags, settings or (), agree=agree)
    else:
        raise typer.Exit(run_node(workspace, as_json=json, agree=agree))


def run_node(workspace: Workspace, *, as_json: bool, agree: bool = False) -> ExitCode:
    """Run a node until its rounds are done or it is asked to stop; INTERRUPTED if a round was given up, else DONE."""
    from sapo_edge.cli.code import judging

    workspace.check_swarm()
    is_first = not workspace.is_alone and not agreed_to_share(workspace.paths.consent)
    workspace, not_agreed = ask_for_consent(workspace, agree=agree)
    if is_first:
        offer_start_at_login(workspace)
    with judging(workspace.paths, workspace.manifest if workspace.is_alone else None) as functions:
        return _run_node(workspace, functions, not_agreed, as_json=as_json)


def _run_node(workspace: Workspace, functions: Mapping[str, Function], not_agreed: str, *, as_json: bool) -> ExitCode:
    import faulthandler

    from sapo_edge.care.garbage import set_libraries_aside
    from sapo_edge.care.priority import lower_priority
    from sapo_edge.care.signals import StopSignals
    from sapo_edge.care.stop import Stop
    from sapo_edge.library.narrator import Narrator
    from sapo_edge.library.session import Around, run_session
    from sapo_edge.service.notify import ServiceManager

    priority = lower_priority(workspace.settings.nice)
    # Prints the stack on stderr when native code crashes.
    faulthandler.enable(file=2)
    stop, manager = Stop(), ServiceManager()

    def alive() -> None:
        manager.alive()
        if stop.finish.is_set():
            manager.stopping()

    stop.alive = alive

    @contextmanager
    def watch(store: Store) -> Iterator[Receiver]:
        with Narrator(workspace.settings.rounds, store.journal.held_out_course()) as narrator:
            StopSignals(stop, narrator.say).install()
            yield _print_event if as_json else narrator

    def log(file: Path) -> AbstractContextManager[None]:
        logs.configure(file)
        return nullcontext()

    def describe(source: TaskSource) -> None:
        for text in describe_questions(source.manifest, None if workspace.is_alone else workspace.swarm):
            narrate(text)

    def close() -> None:
        discard_output()
        stop.after_round()

    around = Around(
        watch,
        partial(_report, manager),
        log,
        close,
        set_libraries_aside,
        functions=functions,
        reasons=(priority.reason,) if priority.reason else (),
        warnings=tuple(filter(None, (not_agreed, *priority.refused))),
        describe=describe,
    )
    outcome = run_session(workspace, stop, around)
    if not as_json:
        _print_result(outcome, workspace.paths.home)
    return ExitCode.INTERRUPTED if outcome.interrupted else ExitCode.DONE


def _report(manager: ServiceManager, event: events.Event) -> None:
    from sapo_edge.control.event_words import describe_event

    if isinstance(event, events.NodeStarted):
        manager.ready()
    elif isinstance(event, events.NodeStopped):
        manager.stopping()
    elif isinstance(event, events.RoundFinished):
        manager.describe(describe_event(event), event.seconds_generate + event.seconds_update)
    elif isinstance(event, events.Paused):
        manager.describe(describe_event(event))


def _print_event(event: events.Event) -> None:
    print(events.to_json(event), flush=True)


def _print_result(outcome: Outcome, home: Path | None) -> None:
    from sapo_edge.control.event_words import describe_comparison, describe_moment, describe_place
    from sapo_edge.state.checkpoint import read_record

    stopped, comparison = outcome.stopped, outcome.comparison
    more = " (nothing to do; ask for more with --rounds)" if outcome.was_done else ""
    narrate(f"stopped: {stopped.reason}{more}")
    if stopped.adapter is None:
        return
    directory = Path(stopped.adapter)
    best = read_record(directory)
    if outcome.course is not None and best.accuracy is not None:
        first, last = outcome.course
        parts = [f"{event.accuracy:.2f} {describe_moment(event.round)}" for event in dict.fromkeys((first, last))]
        parts.append(f"best {best.accuracy:.2f} after {describe_place(best.round)}")
        narrate(f"held-out validation accuracy, which chooses the best checkpoint: {', '.join(parts)}")
    if comparison is not None and comparison.round == best.round:
        narrate(describe_comparison(comparison))
    narrate(f"adapter: {directory}")
    commands = (
        ("report", "what was learned, and what comes next"),
        ("chat", "talk to it"),
        ("eval", "compare base and adapter on the test questions"),
        ("eval --general", "see whether it has forgotten anything else"),
        ("export --to merged DIRECTORY", "for Ollama, LM Studio and llama.cpp; prints their commands"),
        ("export --to peft DIRECTORY", "the adapter alone, for transformers and PEFT"),
    )
    narrate("use it:")
    for text in table((as_typed(f"sapo {name}", home), purpose) for name, purpose in commands):
        narrate(f"  {text}")
