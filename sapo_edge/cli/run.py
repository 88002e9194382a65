"""`sapo run`: a node in the foreground, headless."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import FrameType

from sapo_edge import events
from sapo_edge.care.pauses import AutoPause, describe_pauses
from sapo_edge.care.priority import lower_priority
from sapo_edge.care.stop import Stop
from sapo_edge.cli.narrator import Narrator
from sapo_edge.cli.output import discard_output, narrate
from sapo_edge.cli.workspace import Workspace
from sapo_edge.control.journal_view import past_events
from sapo_edge.control.protocol import claim_socket_path
from sapo_edge.control.server import ControlServer
from sapo_edge.errors import ExitCode, StateError
from sapo_edge.node.controlled import NodeControl
from sapo_edge.node.methods import handlers
from sapo_edge.node.person import OutboxSharer
from sapo_edge.node.rounds import Node
from sapo_edge.person import Outbox
from sapo_edge.state import logs
from sapo_edge.state.checkpoint import read_record
from sapo_edge.state.store import Store
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.status import SwarmStatus
from sapo_edge.tasks.source import TaskSource
from sapo_edge.transport import Solo, Transport


def run(workspace: Workspace, *, as_json: bool) -> ExitCode:
    """Run a node until its rounds are done or it is asked to stop.

    Returns:
        DONE after an orderly end, INTERRUPTED if a round was given up.
    """
    workspace.check_swarm()
    settings = workspace.node_settings
    priority = lower_priority(settings.nice)
    # What native code was doing when it crashed, for whoever reads this process's stderr.
    faulthandler.enable(file=2)
    workspace = workspace.fetch_manifest()
    settings = workspace.node_settings
    source = TaskSource(workspace.require_manifest())
    source.held_out(0)
    with Store(workspace.paths, keep_checkpoints=settings.keep_checkpoints) as store, ExitStack() as closing:
        logs.configure(file=workspace.paths.log, stderr=False)
        seed = store.seed if settings.seed is None else settings.seed
        trainable = settings.role == "trainer"
        policy, reasons = workspace.open_policy(workspace.paths.runtime, trainable=trainable, seed=seed)
        closing.callback(policy.close)
        narrator = closing.enter_context(Narrator(settings.rounds))
        base = store.journal.held_out(1, after=-1)
        narrator.known_base(base[0] if base else None)
        stop = Stop()
        tell = _lasting(_print_event if as_json else narrator, stop.after_round)
        emit = _Emitter(tell)
        transport, status = open_transport(workspace, source, store.secret, emit.notice, closing)
        chosen = (*reasons, *filter(None, (priority.reason, describe_pauses(settings))), describe_sharing(workspace))
        node = Node(settings, source, store, policy, transport, emit, chosen, stop)
        emit.journal = node.emit
        control = ControlServer(
            claim_socket_path(workspace.paths),
            handlers(NodeControl(node, status)),
            partial(past_events, store.journal),
        )
        try:
            control.start()
        except StateError as error:
            emit(events.Notice(level="warning", text=f"other commands can't reach this node: {error}"))
        else:
            closing.callback(control.stop)
            emit.follow = control.publish
        _handle_signals(stop, narrator.say)
        already = _rounds_done(store, settings.rounds)
        if status is not None:
            node.between_rounds = OutboxSharer(
                node, Outbox(workspace.paths.state / "outbox.json"), lambda: bool(status().peers)
            )
        for text in priority.refused:
            node.emit(events.Notice(level="warning", text=text))
        with AutoPause(stop, lambda: node.settings, node.emit):
            stopped = node.run()
        evaluations = store.journal.held_out(1, after=-1) + store.journal.held_out(1)
    if not as_json:
        _tell_result(stopped, evaluations, already)
    return ExitCode.INTERRUPTED if node.interrupted else ExitCode.DONE


class _Emitter:
    """Hands a node's events to those who listen.

    Args:
        tell: the user's terminal or pipe.
    """

    def __init__(self, tell: Callable[[events.Event], None]) -> None:
        self._tell = tell
        self._lock = threading.RLock()
        self.follow: Callable[[events.Event], None] = lambda event: None
        self.journal: Callable[[events.Event], None] | None = None

    def __call__(self, event: events.Event) -> None:
        """Hand on an event of the node; it comes from any thread."""
        with self._lock:
            self._tell(event)
        self.follow(event)

    def notice(self, event: events.Event) -> None:
        """Hand on an event of the swarm, which the journal has to keep as well."""
        (self.journal or self)(event)


def open_transport(
    workspace: Workspace, source: TaskSource, secret: bytes, emit: Callable[[events.Event], None], closing: ExitStack
) -> tuple[Transport, Callable[[], SwarmStatus] | None]:
    """Join the swarm; a node that works alone gets a transport that reaches nobody.

    Args:
        workspace: with its manifest.
        source: of the manifest's tasks, to check those of others.
        secret: the identity's 32 bytes.
        emit: receives the swarm's events.
        closing: closes what was opened.

    Returns:
        The transport, and a function that gives the swarm's status; None for a node that works alone.
    """
    swarm = workspace.swarm
    if swarm is None or workspace.is_alone:
        return Solo(), None
    from sapo_edge.swarm.judging.admission import Admission
    from sapo_edge.swarm.judging.reputation import Reputation
    from sapo_edge.swarm.member.config import SwarmConfig
    from sapo_edge.swarm.member.libp2p import Libp2pTransport

    settings = workspace.settings
    config = SwarmConfig(
        Identity.from_secret(secret),
        source.manifest,
        psk=swarm.key,
        bootstrap=(*settings.addresses, *swarm.bootstrap),
        port=settings.port,
        listen="loopback" if settings.listen == "loopback" else "all",
        mdns=settings.mdns == "on",
        upload=settings.upload,
        download=settings.download,
        known_peers=workspace.paths.state / "peers.json",
    )
    admission = Admission(swarm.id, source, Reputation(), own=config.identity.peer_id)
    closing.callback(admission.close)
    transport = Libp2pTransport(config, admission, emit)
    closing.callback(transport.close)
    return transport, transport.status


def describe_sharing(workspace: Workspace) -> str:
    """What a node shares and with whom, in one sentence."""
    if workspace.swarm is None or workspace.is_alone:
        return "alone: nothing is sent to anybody"
    kind = "private swarm" if workspace.swarm.private else "open swarm"
    return f"{kind} {workspace.swarm.name}: questions and answers are shared as text, nothing else; --solo works alone"


def _rounds_done(store: Store, rounds: int) -> bool:
    return bool(rounds) and store.latest is not None and store.latest.round >= rounds


def _print_event(event: events.Event) -> None:
    """An event as a line of JSON on stdout."""
    print(events.to_json(event), flush=True)


def _lasting(tell: Callable[[events.Event], None], stop: Callable[[], None]) -> Callable[[events.Event], None]:
    """`tell`, for a reader or a terminal that may go away: the node then ends in order, and tells nobody."""
    gone = False

    def emit(event: events.Event) -> None:
        nonlocal gone
        if not isinstance(event, events.Progress):
            logging.getLogger("sapo_edge.node").info(events.to_json(event))
        if gone:
            return
        try:
            tell(event)
        except OSError:
            gone = True
            discard_output()
            stop()

    return emit


def _handle_signals(stop: Stop, say: Callable[[str], None]) -> None:
    """First Ctrl-C or SIGTERM: finish the round and save. Second: stop at once."""

    def handle(_signal: int, _frame: FrameType | None) -> None:
        if not stop.finish.is_set():
            stop.after_round()
            # The signal may come while a line is being written, or because the terminal is gone.
            with contextlib.suppress(OSError, RuntimeError):
                say("finishing this round and saving it; once more to stop at once and lose it")
        else:
            stop.immediately()

    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), handle)


def _tell_result(stopped: events.NodeStopped, evaluations: list[events.HeldOut], already: bool) -> None:
    """What was reached, where it is, and how to use it.

    Args:
        evaluations: the first and the last, if there are any.
    """
    narrate(f"stopped: {stopped.reason}" + (" (nothing to do; ask for more with --rounds)" if already else ""))
    if stopped.adapter is None:
        return
    directory = Path(stopped.adapter)
    best = read_record(directory)
    if evaluations and best.accuracy is not None:
        first, last = evaluations[0], evaluations[-1]
        narrate(
            f"held-out accuracy: {first.accuracy:.2f} before training, {last.accuracy:.2f} after round {last.round}, "
            f"{best.accuracy:.2f} at its best, after round {best.round}"
        )
    narrate(f"adapter: {directory}")
    started = sys.argv[0] if os.path.basename(sys.argv[0]) in ("sapo", "sapo-edge") else "sapo"
    # As it can be typed again: a virtual environment's command need not be on the path.
    command = "sapo" if shutil.which("sapo") == os.path.abspath(started) else started
    narrate("use it:")
    narrate(f"  {command} eval                          compare base and adapter on the held-out questions")
    narrate(f"  {command} export --to gguf DIRECTORY    for llama.cpp, Ollama, LM Studio")
    narrate(f"  {command} export --to peft DIRECTORY    for transformers and PEFT")
