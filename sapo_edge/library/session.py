"""One run of a node in this process, from its workspace to its last event."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sapo_edge import events
from sapo_edge.care.stop import Stop
from sapo_edge.config.curves import describe_curves, goes_to
from sapo_edge.errors import StateError
from sapo_edge.library.fanout import EventFanout, Receiver
from sapo_edge.library.workspace import Workspace
from sapo_edge.room import Room
from sapo_edge.state import logs
from sapo_edge.state.durable import make_private_directory

if TYPE_CHECKING:
    from sapo_edge.care.sensors import OthersLoad
    from sapo_edge.node.controlled import NodeControl
    from sapo_edge.node.rounds import Node
    from sapo_edge.state.checkpoint import Checkpoint
    from sapo_edge.state.store import Store
    from sapo_edge.swarm.joining.membership import Membership
    from sapo_edge.swarm.status import SwarmStatus
    from sapo_edge.tasks.source import Function, TaskSource
    from sapo_edge.transport import Transport

_LOGGER = logging.getLogger("sapo_edge.node")


def _do_nothing(*_: object) -> None:
    pass


@dataclass(frozen=True)
class Around:
    """What surrounds a run.

    Attributes:
        watch: opens what shows the events, once the model is loaded, with what was recorded before.
        report: also receives each event; must not raise.
        log: a context in which the log is written to a file.
        on_closed: called once when what shows the events raises an OSError.
        after_first_round: called once, when all is loaded that rounds need.
        functions: of this machine's owner, which judge answers, by their names.
        reasons: of choices made before, in words, for the first event.
        describe: tells of the questions of a new run.
    """

    watch: Callable[[Store], AbstractContextManager[Receiver]]
    report: Receiver
    log: Callable[[Path], AbstractContextManager[object]] = logs.written
    on_closed: Callable[[], None] = _do_nothing
    after_first_round: Callable[[], None] = _do_nothing
    functions: Mapping[str, Function] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    describe: Callable[[TaskSource], None] = _do_nothing


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        course: the first and the last evaluation on the same held-out questions; None without any.
        comparison: the last one of base model and adapter; None without any.
        was_done: whether there was nothing to do.
        interrupted: whether a round was given up.
    """

    stopped: events.NodeStopped
    course: tuple[events.HeldOut, events.HeldOut] | None
    comparison: events.Comparison | None
    was_done: bool
    interrupted: bool


def run_session(workspace: Workspace, stop: Stop, around: Around) -> Outcome:
    """Run a node until its rounds are done or it is asked to stop."""
    from sapo_edge.care.pauses import CROWDED, AutoPause, describe_pauses
    from sapo_edge.care.sensors import OthersLoad
    from sapo_edge.control.client import explained_lock
    from sapo_edge.node.rounds import Node
    from sapo_edge.state.store import Store
    from sapo_edge.tasks.source import TaskSource

    def say(text: str) -> None:
        # What loads for minutes shows that in the log, too.
        workspace.say(text)
        _LOGGER.info(text)

    load = OthersLoad()
    _others(load, 0)
    workspace = workspace.fetch_manifest()
    settings = workspace.node_settings
    source = TaskSource(workspace.require_manifest(), around.functions)
    # An entry whose generator can't make tasks fails here, before the model is loaded.
    source.held_out("validation", 0)
    # A missing model fails here, before the state directory is created.
    _ = workspace.model
    with explained_lock(workspace.paths):
        opened = Store(workspace.paths, keep_checkpoints=settings.keep_checkpoints)
    with opened as store, ExitStack() as closing:
        closing.enter_context(around.log(workspace.paths.log))
        source = _keep_manifest(workspace.membership, source, store.latest, around.functions)
        if store.latest is None:
            around.describe(source)
        seed = store.seed if settings.seed is None else settings.seed
        trainable = settings.role == "trainer"
        say("loading the model")
        if (others := _others(load)) >= CROWDED.pause:
            say(f"other programs use {others:.0f} % of the processor: loading takes longer, and so do rounds")
        policy, reasons = workspace.open_policy(workspace.paths.runtime, trainable=trainable, seed=seed, say=say)
        closing.callback(policy.close)
        show = closing.enter_context(around.watch(store))
        fanout = EventFanout(store.journal.record, show, around.on_closed, around.report)
        fanout.draw = _open_curves(workspace, store, source, fanout, closing)
        room = Room()
        transport, status = open_transport(workspace, source, store.secret, fanout.record, closing, room)
        reasons = (*reasons, *around.reasons, describe_pauses(settings), describe_sharing(workspace))
        reasons += tuple(filter(None, [describe_curves(settings.curves)]))
        node = Node(settings, source, store, policy, transport, fanout.deliver, reasons, stop, room)
        node.after_first_round = around.after_first_round
        _serve_control(workspace, node, status, fanout, closing)
        for text in around.warnings:
            fanout.record(events.Notice(level="warning", text=text))
        with AutoPause(stop, lambda: node.settings, fanout.record) as pauses:
            node.others = lambda: pauses.others
            stopped = node.run()
        was_done = stopped.done and not stopped.rounds
        return Outcome(stopped, store.journal.held_out_course(), node.comparison, was_done, node.interrupted)


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


def _keep_manifest(
    membership: Membership, source: TaskSource, latest: Checkpoint | None, functions: Mapping[str, Function]
) -> TaskSource:
    """Keep what the state directory trains on: its file may change, and other commands need not name it.

    Returns the source, or one of the kept questions if the manifest names them by digest.
    """
    from sapo_edge.tasks.source import TaskSource

    manifest, digest = source.manifest, bytes.fromhex(source.manifest.digest)
    if latest is not None and latest.manifest_digest != manifest.digest:
        return source
    kept = membership.manifest(digest)
    if kept is None or not all(data.is_in(kept.store) for data in kept.data):
        kept = membership.keep_manifest(manifest.to_bytes(), digest, manifest.store)
    return source if kept.store == manifest.store or not kept.data else TaskSource(kept, functions)


def open_transport(
    workspace: Workspace,
    source: TaskSource,
    secret: bytes,
    emit: Callable[[events.Event], None],
    closing: ExitStack,
    room: Room,
) -> tuple[Transport, Callable[[], SwarmStatus] | None]:
    """Join the swarm, and return what tells its status; a node that works alone reaches no peer, and has no status."""
    from sapo_edge.transport import Solo

    swarm = workspace.swarm
    if swarm is None or workspace.is_alone:
        return Solo(), None
    from sapo_edge.swarm.addresses import listen_of
    from sapo_edge.swarm.config import SwarmConfig
    from sapo_edge.swarm.joining.identity import Identity
    from sapo_edge.swarm.judging.admission import Admission
    from sapo_edge.swarm.judging.reputation import Reputation
    from sapo_edge.swarm.member.member import Member

    settings = workspace.settings
    known_peers = workspace.membership.known_peers(swarm)
    make_private_directory(known_peers.parent)
    config = SwarmConfig(
        Identity(secret),
        source.manifest,
        psk=swarm.key,
        bootstrap=(*settings.addresses, *swarm.bootstrap),
        port=settings.port,
        listen=listen_of(settings.listen),
        mdns=settings.mdns == "on",
        contacts=workspace.contacts,
        map_port=workspace.maps_port,
        carries=settings.relay != "off",
        volunteers=settings.relay == "public",
        upload=settings.upload,
        download=settings.download,
        known_peers=known_peers,
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
        return "alone: nothing is sent to " + ("other nodes" if goes_to(workspace.settings.curves) else "anybody")
    kind = "private swarm" if workspace.swarm.is_private else "open swarm"
    return f"{kind} {workspace.swarm.name}: questions and answers are shared as text, nothing else; --solo works alone"


def _serve_control(
    workspace: Workspace, node: Node, status: Callable[[], SwarmStatus] | None, fanout: EventFanout, closing: ExitStack
) -> None:
    from sapo_edge.control.journal_view import past_events
    from sapo_edge.control.protocol import claim_socket_path
    from sapo_edge.control.server import ControlServer
    from sapo_edge.node.controlled import NodeControl
    from sapo_edge.node.methods import handlers

    control = NodeControl(node, status)
    _serve_metrics(workspace.settings.metrics_port, control, fanout, closing)
    history = partial(past_events, node.store.journal)
    server = ControlServer(claim_socket_path(workspace.paths), handlers(control), history)
    try:
        server.start()
    except StateError as error:
        fanout.deliver(events.Notice(level="warning", text=f"other commands can't reach this node: {error}"))
    else:
        closing.callback(server.stop)
        fanout.publish = server.publish


def _open_curves(
    workspace: Workspace, store: Store, source: TaskSource, fanout: EventFanout, closing: ExitStack
) -> Receiver:
    """What draws the figures, if the setting names a library; a node without it works, too."""
    library = workspace.settings.curves
    if not library:
        return _do_nothing
    from sapo_edge.library.curves import open_curves

    def warn(text: str) -> None:
        fanout.record(events.Notice(level="warning", text=text))

    # Two homes that draw in one place have runs of the same name.
    name = f"{source.manifest.name}-{store.run.directory.name}-{store.seed % 16**6:06x}"
    try:
        curves = open_curves(library, workspace.paths.state / "curves", name, warn)
    except StateError as error:
        warn(f"no curves: {error}")
        return _do_nothing
    closing.callback(curves.close)
    return curves


def _serve_metrics(port: int, control: NodeControl, fanout: EventFanout, closing: ExitStack) -> None:
    """Serve the node's figures if a port is set; a node without them works, too."""
    if not port:
        return
    from sapo_edge.library.metrics import serve_metrics

    try:
        closing.callback(serve_metrics(port, control.status))
    except StateError as error:
        fanout.deliver(events.Notice(level="warning", text=f"Prometheus gets no figures: {error}"))
