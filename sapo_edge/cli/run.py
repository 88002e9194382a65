"""`sapo run`: a node in the foreground."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sapo_edge import events
from sapo_edge.cli.consent import ask_for_consent
from sapo_edge.cli.fanout import EventFanout
from sapo_edge.cli.options import Agree, Backend, Home, JsonEvents, ManifestName, Model, Set
from sapo_edge.cli.output import as_typed, narrate
from sapo_edge.cli.service import offer_start_at_login
from sapo_edge.cli.start import start_detached
from sapo_edge.cli.swarm import describe_questions
from sapo_edge.cli.workspace import Workspace, open_workspace
from sapo_edge.errors import ConfigError, ExitCode, StateError
from sapo_edge.plain import table
from sapo_edge.room import Room
from sapo_edge.state.consent import agreed_to_share

if TYPE_CHECKING:
    from sapo_edge.care.sensors import OthersLoad
    from sapo_edge.care.stop import Stop
    from sapo_edge.node.controlled import NodeControl
    from sapo_edge.node.rounds import Node
    from sapo_edge.service.notify import ServiceManager
    from sapo_edge.state.checkpoint import Checkpoint
    from sapo_edge.swarm.joining.membership import Membership
    from sapo_edge.swarm.status import SwarmStatus
    from sapo_edge.tasks.source import TaskSource
    from sapo_edge.transport import Transport


_LOGGER = logging.getLogger("sapo_edge.node")


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
        raise ConfigError(
            "--json prints the events of a node in the foreground",
            "leave out one of --json and --detach; `sapo logs --follow --json` prints those of any node",
        )
    workspace = open_workspace(home, flags, settings)
    if detach:
        start_detached(workspace, home, flags, settings or (), agree=agree)
    else:
        raise typer.Exit(run_node(workspace, as_json=json, agree=agree))


def run_node(workspace: Workspace, *, as_json: bool, agree: bool = False) -> ExitCode:
    """Run a node until its rounds are done or it is asked to stop.

    Args:
        agree: record the owner's consent to share.

    Returns:
        DONE after an orderly end, INTERRUPTED if a round was given up.
    """
    import faulthandler

    from sapo_edge.care.garbage import set_libraries_aside
    from sapo_edge.care.pauses import CROWDED, AutoPause, describe_pauses
    from sapo_edge.care.priority import lower_priority
    from sapo_edge.care.sensors import OthersLoad
    from sapo_edge.care.stop import Stop
    from sapo_edge.cli.narrator import Narrator
    from sapo_edge.cli.signals import StopSignals
    from sapo_edge.control.client import explained_lock
    from sapo_edge.node.rounds import Node
    from sapo_edge.service.notify import ServiceManager
    from sapo_edge.state import logs
    from sapo_edge.state.store import Store
    from sapo_edge.tasks.source import TaskSource

    load = OthersLoad()
    _others(load, 0)
    workspace.check_swarm()
    is_first = not workspace.is_alone and not agreed_to_share(workspace.paths.consent)
    workspace, not_agreed = ask_for_consent(workspace, agree=agree)
    if is_first:
        offer_start_at_login(workspace)
    priority = lower_priority(workspace.settings.nice)
    # Prints the stack on stderr when native code crashes.
    faulthandler.enable(file=2)
    workspace = workspace.fetch_manifest()
    settings = workspace.node_settings
    source = TaskSource(workspace.require_manifest())
    # An entry whose generator can't make tasks fails here, before the model is loaded.
    source.held_out("validation", 0)
    # A missing model fails here, before the state directory is created.
    _ = workspace.model
    with explained_lock(workspace.paths):
        opened = Store(workspace.paths, keep_checkpoints=settings.keep_checkpoints)
    with opened as store, ExitStack() as closing:
        logs.configure(file=workspace.paths.log, stderr=False)
        source = _keep_manifest(workspace.membership, source, store.latest)
        if store.latest is None:
            for text in describe_questions(source.manifest, None if workspace.is_alone else workspace.swarm):
                narrate(text)
        seed = store.seed if settings.seed is None else settings.seed
        trainable = settings.role == "trainer"
        _tell("loading the model")
        if (others := _others(load)) >= CROWDED.pause:
            _tell(f"other programs use {others:.0f} % of the processor: loading takes longer, and so do rounds")
        policy, reasons = workspace.open_policy(workspace.paths.runtime, trainable=trainable, seed=seed, say=_tell)
        closing.callback(policy.close)
        narrator = closing.enter_context(Narrator(settings.rounds))
        narrator.known_base(next(iter(store.journal.held_out_course() or ()), None))
        stop = Stop()
        manager = ServiceManager()
        report = partial(_report, manager)
        fanout = EventFanout(store.journal.record, _print_event if as_json else narrator, stop.after_round, report)
        room = Room()
        transport, status = open_transport(workspace, source, store.secret, fanout.record, closing, room)
        reasons = (*reasons, *filter(None, (priority.reason, describe_pauses(settings))), describe_sharing(workspace))
        node = Node(settings, source, store, policy, transport, fanout.deliver, reasons, stop, room)
        node.after_first_round = set_libraries_aside
        _serve_control(workspace, node, status, fanout, closing)
        StopSignals(stop, narrator.say).install()
        was_done = bool(settings.rounds) and store.latest is not None and store.latest.round >= settings.rounds
        for text in filter(None, (not_agreed, *priority.refused)):
            fanout.record(events.Notice(level="warning", text=text))
        stop.alive = partial(_report_life, manager, stop)
        manager.ready()
        with AutoPause(stop, lambda: node.settings, fanout.record) as pauses:
            node.others = lambda: pauses.others
            stopped = node.run()
        manager.stopping()
        course = store.journal.held_out_course()
    if not as_json:
        _print_result(stopped, course, node.comparison, was_done, workspace.paths.home)
    return ExitCode.INTERRUPTED if node.interrupted else ExitCode.DONE


def _tell(text: str) -> None:
    """Print a message about the start, and log it: what loads for minutes shows that in the log, too."""
    narrate(text)
    _LOGGER.info(text)


def _others(load: OthersLoad, seconds: float = 0.5) -> float:
    """Percent of the processor that other programs used since the call before; 0 if unknown.

    Args:
        seconds: how long to look where that call was too long ago: on a busy processor a start takes minutes.
    """
    import psutil

    try:
        percent = load.percent()
        if percent is None and seconds:
            time.sleep(seconds)
            percent = load.percent()
        return percent or 0.0
    except (psutil.Error, OSError):
        # A system without these counters: only a remark depends on them.
        return 0.0


def _keep_manifest(membership: Membership, source: TaskSource, latest: Checkpoint | None) -> TaskSource:
    """Keep what the state directory trains on: its file may change, and other commands need not name it.

    Returns:
        The source; one of the kept questions if the manifest names them by digest.
    """
    from sapo_edge.tasks.source import TaskSource

    manifest, digest = source.manifest, bytes.fromhex(source.manifest.digest)
    if latest is not None and latest.manifest_digest != manifest.digest:
        return source
    kept = membership.manifest(digest)
    if kept is None or not all(data.is_in(kept.store) for data in kept.data):
        kept = membership.keep_manifest(manifest.to_bytes(), digest, manifest.store)
    return source if kept.store == manifest.store or not kept.data else TaskSource(kept)


def open_transport(
    workspace: Workspace,
    source: TaskSource,
    secret: bytes,
    emit: Callable[[events.Event], None],
    closing: ExitStack,
    room: Room,
) -> tuple[Transport, Callable[[], SwarmStatus] | None]:
    """Join the swarm; a node that works alone gets a transport that reaches no peer.

    Args:
        secret: the identity's 32 bytes.
        room: what to accept of others.

    Returns:
        The transport, and a function that returns the swarm's status (None for a node that works alone).
    """
    from sapo_edge.transport import Solo

    swarm = workspace.swarm
    if swarm is None or workspace.is_alone:
        return Solo(), None
    from sapo_edge.swarm.config import SwarmConfig
    from sapo_edge.swarm.joining.identity import Identity
    from sapo_edge.swarm.judging.admission import Admission
    from sapo_edge.swarm.judging.reputation import Reputation
    from sapo_edge.swarm.member.member import Member

    settings = workspace.settings
    config = SwarmConfig(
        Identity(secret),
        source.manifest,
        psk=swarm.key,
        bootstrap=(*settings.addresses, *swarm.bootstrap),
        port=settings.port,
        listen="loopback" if settings.listen == "loopback" else "all",
        mdns=settings.mdns == "on",
        contacts=workspace.contacts,
        map_port=workspace.maps_port,
        carries=settings.relay != "off",
        volunteers=settings.relay == "public",
        upload=settings.upload,
        download=settings.download,
        known_peers=workspace.paths.state / "peers.json",
        dht_nodes=workspace.dht_nodes,
        ports=workspace.paths.state / "ports.json",
        asked=workspace.paths.state / "asked-to-relay",
    )
    admission = Admission(swarm.id, source, Reputation(room=room), own=config.identity.peer_id)
    member = Member(config, admission, emit).start()
    closing.callback(member.close)
    return member, member.status


def describe_sharing(workspace: Workspace) -> str:
    """What a node shares and with whom, in one sentence."""
    if workspace.swarm is None or workspace.is_alone:
        return "alone: nothing is sent to anybody"
    kind = "private swarm" if workspace.swarm.is_private else "open swarm"
    return f"{kind} {workspace.swarm.name}: questions and answers are shared as text, nothing else; --solo works alone"


def _serve_control(
    workspace: Workspace,
    node: Node,
    status: Callable[[], SwarmStatus] | None,
    fanout: EventFanout,
    closing: ExitStack,
) -> None:
    from sapo_edge.control.journal_view import past_events
    from sapo_edge.control.protocol import claim_socket_path
    from sapo_edge.control.server import ControlServer
    from sapo_edge.node.controlled import NodeControl
    from sapo_edge.node.methods import handlers

    control = NodeControl(node, status)
    _serve_metrics(workspace.settings.metrics_port, control, fanout, closing)
    server = ControlServer(
        claim_socket_path(workspace.paths),
        handlers(control),
        partial(past_events, node.store.journal),
    )
    try:
        server.start()
    except StateError as error:
        fanout.deliver(events.Notice(level="warning", text=f"other commands can't reach this node: {error}"))
    else:
        closing.callback(server.stop)
        fanout.publish_on(server.publish)


def _serve_metrics(port: int, control: NodeControl, fanout: EventFanout, closing: ExitStack) -> None:
    """Serve the node's figures if a port is set; a node without them works, too."""
    if not port:
        return
    from sapo_edge.cli.metrics import serve_metrics

    try:
        closing.callback(serve_metrics(port, control.status))
    except StateError as error:
        fanout.deliver(events.Notice(level="warning", text=f"Prometheus gets no figures: {error}"))


def _report(manager: ServiceManager, event: events.Event) -> None:
    from sapo_edge.control.event_words import describe_event

    if isinstance(event, events.RoundFinished):
        manager.describe(describe_event(event), event.seconds_generate + event.seconds_update)
    elif isinstance(event, events.Paused):
        manager.describe(describe_event(event))


def _report_life(manager: ServiceManager, stop: Stop) -> None:
    manager.alive()
    if stop.finish.is_set():
        manager.stopping()


def _print_event(event: events.Event) -> None:
    print(events.to_json(event), flush=True)


def _print_result(
    stopped: events.NodeStopped,
    course: tuple[events.HeldOut, events.HeldOut] | None,
    comparison: events.Comparison | None,
    was_done: bool,
    home: Path | None,
) -> None:
    """Print what was reached, where it is, and how to use it.

    Args:
        course: the first and the last evaluation on the same held-out questions.
        comparison: the last one of base model and adapter.
    """
    from sapo_edge.control.event_words import describe_comparison, describe_moment, describe_place
    from sapo_edge.state.checkpoint import read_record

    narrate(f"stopped: {stopped.reason}" + (" (nothing to do; ask for more with --rounds)" if was_done else ""))
    if stopped.adapter is None:
        return
    directory = Path(stopped.adapter)
    best = read_record(directory)
    if course is not None and best.accuracy is not None:
        first, last = course
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
