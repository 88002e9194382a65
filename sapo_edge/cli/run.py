"""`sapo run`: a node in the foreground, headless."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from sapo_edge import events, logs
from sapo_edge.cli.narrator import Narrator
from sapo_edge.cli.output import discard_output
from sapo_edge.cli.session import Session, narrate, open_policy
from sapo_edge.errors import ExitCode
from sapo_edge.manifest import load_manifest
from sapo_edge.node import Node
from sapo_edge.stop import Stop
from sapo_edge.store import Store
from sapo_edge.swarm.transport import Solo
from sapo_edge.tasks.source import TaskSource


def run(session: Session, *, as_json: bool) -> ExitCode:
    """Run a node until its rounds are done or it is asked to stop.

    Returns:
        DONE after an orderly end, INTERRUPTED if a round was given up.
    """
    settings = session.settings
    source = TaskSource(load_manifest(settings.manifest))
    source.held_out(0)
    with Store(session.paths, keep_checkpoints=settings.keep_checkpoints) as store:
        logs.configure(file=session.paths.log, stderr=False)
        seed = store.seed if settings.seed is None else settings.seed
        policy, reasons = open_policy(session, session.paths.runtime, trainable=True, seed=seed)
        try:
            with Narrator(settings.rounds) as narrator:
                base = store.journal.held_out(1, after=-1)
                narrator.known_base(base[0] if base else None)
                stop = Stop()
                emit = _lasting(_print_event if as_json else narrator, stop.after_round)
                node = Node(settings, source, store, policy, Solo(), emit, reasons, stop)
                _handle_signals(stop, narrator.say)
                already = _rounds_done(store, settings.rounds)
                stopped = node.run()
                evaluations = store.journal.held_out(1, after=-1) + store.journal.held_out(1)
        finally:
            policy.close()
    if not as_json:
        _tell_result(stopped, evaluations, already)
    return ExitCode.INTERRUPTED if "at once" in stopped.reason else ExitCode.DONE


def _rounds_done(store: Store, rounds: int) -> bool:
    latest = store.checkpoints.latest()
    return bool(rounds) and latest is not None and latest.round >= rounds


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
            stop.at_once()

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
    best = json.loads((directory / "checkpoint.json").read_text())
    if evaluations and best.get("accuracy") is not None:
        first, last = evaluations[0], evaluations[-1]
        narrate(
            f"held-out accuracy: {first.accuracy:.2f} before training, {last.accuracy:.2f} after round {last.round}, "
            f"{best['accuracy']:.2f} at its best, after round {best['round']}"
        )
    narrate(f"adapter: {directory}")
    started = sys.argv[0] if os.path.basename(sys.argv[0]) in ("sapo", "sapo-edge") else "sapo"
    # As it can be typed again: a virtual environment's command need not be on the path.
    command = "sapo" if shutil.which("sapo") == os.path.abspath(started) else started
    narrate("use it:")
    narrate(f"  {command} eval                          compare base and adapter on the held-out questions")
    narrate(f"  {command} export --to gguf DIRECTORY    for llama.cpp, Ollama, LM Studio")
    narrate(f"  {command} export --to peft DIRECTORY    for transformers and PEFT")
