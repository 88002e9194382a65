"""Sends the figures of a run to a library that draws curves: the setting `curves`.

A further receiver of events, in a thread of its own: a library that is slow or fails costs figures, never a round.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextvars import copy_context
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sapo_edge import events
from sapo_edge.config.curves import goes_to
from sapo_edge.errors import StateError
from sapo_edge.installing import how_to_install

PROJECT = "sapo-edge"
"""What the libraries call a project or an experiment."""
WAITING = 256
"""Most events that wait for a library; others are left out, and that is told."""
END_SECONDS = 20.0
"""Longest time that the end of a run waits for a library."""

Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Target:
    """What takes figures after a round, and writes what is left: neither call is made from two threads at once."""

    log: Callable[[Figures, int], object]
    close: Callable[[], object]


def figures_of(event: events.Event) -> tuple[Figures, int]:
    """The figures of an event, and the round after which they are; none for most kinds.

    Those of a head start, which is before the first round, are counted by its updates.
    """
    if isinstance(event, events.RoundFinished):
        seconds = event.seconds_generate
        figures = {
            "reward/own": event.reward_own,
            "groups/teaching": event.informative,
            "groups/teaching_share": event.informative / event.groups if event.groups else 0.0,
            "groups/own": event.own,
            "groups/external": event.external,
            "speed/tokens_per_second": event.tokens / seconds if seconds else 0.0,
            "speed/seconds_generate": seconds,
            "speed/seconds_update": event.seconds_update,
            "swarm/shared": event.shared,
            "swarm/received": event.received,
            **{f"update/{name}": value for name, value in event.statistics.items()},
        }
        if event.reward_external is not None:
            figures["reward/external"] = event.reward_external
        return figures, event.round
    if isinstance(event, events.HeldOut):
        name = f"held_out/{event.split or 'validation'}"
        return {name: event.accuracy, f"{name}_low": event.low, f"{name}_high": event.high}, event.round
    if isinstance(event, events.Comparison):
        return {
            "gain/points": event.gain, "gain/low": event.low, "gain/high": event.high,
            "gain/base": event.base / event.questions, "gain/adapter": event.adapter / event.questions,
        }, event.round  # fmt: skip
    if isinstance(event, events.HeadStart) and event.is_validation and event.questions:
        return {"head_start/validation": event.accuracy, "head_start/learned": event.learned}, event.updates
    return {}, 0


class Curves:
    """Receives events and passes their figures on, in a thread; one warning tells if a library fails or is too slow."""

    def __init__(self, target: Target, warn: Callable[[str], None]) -> None:
        self._target, self._warn = target, warn
        self._waiting: queue.SimpleQueue[events.Event | None] = queue.SimpleQueue()
        self._failed = threading.Event()
        run = copy_context().run
        self._thread = threading.Thread(target=run, args=(self._work,), name="sapo-curves", daemon=True)
        self._thread.start()

    def __call__(self, event: events.Event) -> None:
        """Take an event from any thread; never waits."""
        if self._failed.is_set() or not figures_of(event)[0]:
            return
        if self._waiting.qsize() < WAITING:
            self._waiting.put(event)
        else:
            self._fail("it is too slow")

    def close(self) -> None:
        """Wait until all figures are written, at most `END_SECONDS`."""
        self._waiting.put(None)
        self._thread.join(END_SECONDS)
        if self._thread.is_alive():
            self._fail(f"it did not take the last figures in {END_SECONDS:.0f} s")

    def _work(self) -> None:
        try:
            for event in iter(self._waiting.get, None):
                if not self._failed.is_set():
                    self._target.log(*figures_of(event))
            # Some libraries print a farewell on stdout, which is for data; nothing else prints there meanwhile.
            with contextlib.redirect_stdout(sys.stderr):
                self._target.close()
        except Exception as error:  # noqa: BLE001 - whatever the library raises; it ends the curves, and is told
            self._fail(_in_a_line(error))

    def _fail(self, reason: str) -> None:
        if not self._failed.is_set():
            self._failed.set()
            self._warn(f"no more curves: {reason}")


def open_curves(library: str, directory: Path, name: str, warn: Callable[[str], None]) -> Curves:
    """Open the library of the setting `curves`, and begin to pass figures on; a StateError if that can't be.

    Args:
        directory: for the files of libraries without a place of their own.
        name: of the run; one that is continued is continued there.
    """
    module, _ = _OPENERS[library]
    if find_spec(module) is None:
        raise StateError(f"{library} needs {module}, which is not installed", how_to_install(module))
    place = directory / library
    try:
        place.mkdir(parents=True, exist_ok=True)
        # Some libraries print a greeting on stdout, which is for data.
        with contextlib.redirect_stdout(sys.stderr):
            # In a context of its own: what a library remembers there as open, it would close once more at the exit.
            return copy_context().run(lambda: Curves(_open(library, place, name), warn))
    except StateError:
        raise
    except Exception as error:
        # Whatever the library raises, a run without curves goes on.
        remedy = 'correct its settings, or set curves = ""'
        raise StateError(f"{library} can't be opened: {_in_a_line(error)}", remedy) from error


def _in_a_line(error: Exception) -> str:
    """The first line of a library's words, of addresses without what may be a password or a token."""
    return re.sub(r"(?<=//)[^/\s@]*@|\?\S+", "", str(error).partition("\n")[0]) or type(error).__name__


def _open(library: str, place: Path, name: str) -> Target:
    if library == "mlflow":
        # It tells its makers what is called, and tries for minutes to reach a server.
        for variable, value in (("DISABLE_TELEMETRY", "true"), ("HTTP_REQUEST_MAX_RETRIES", "2")):
            os.environ.setdefault(f"MLFLOW_{variable}", value)
    module, opener = _OPENERS[library]
    return opener(import_module(module), place, name)


def _open_tensorboard(module: Any, place: Path, name: str) -> Target:
    writer = module.SummaryWriter(logdir=str(place / name), flush_secs=10)

    def log(figures: Figures, round: int) -> None:
        for key, value in figures.items():
            writer.add_scalar(key, value, round)

    return Target(log, writer.close)


def _open_trackio(module: Any, _place: Path, name: str) -> Target:
    # Its own directory, which `trackio show` reads. Without the machine's load, which is nobody's business.
    run = module.init(project=PROJECT, name=name, resume="allow", auto_log_gpu=False, auto_log_cpu=False, embed=False)
    return Target(lambda figures, round: run.log(dict(figures), step=round), module.finish)


def _open_wandb(module: Any, place: Path, name: str) -> Target:
    if goes_to("wandb") and not module.login(prompt=False):
        raise StateError(
            "nobody is logged in", "log in with: wandb login; WANDB_MODE=offline keeps all on this machine"
        )
    # Figures alone: by default it also sends what is printed, the machine's load and name, and where the code is from.
    settings = module.Settings(
        console="off", disable_git=True, disable_code=True, save_code=False, x_disable_stats=True, x_disable_meta=True,
        x_disable_machine_info=True, x_save_requirements=False, host="", silent=True, init_timeout=30,
    )  # fmt: skip
    # Beside a run that this process may have of its own, which a second one would be or end by default.
    run = module.init(
        project=PROJECT, id=name, name=name, resume="allow", dir=str(place), settings=settings, reinit="create_new"
    )
    # By the round instead of its own counter, which never goes back: a node may return to an earlier checkpoint.
    run.define_metric("*", step_metric="round")
    return Target(lambda figures, round: run.log({**figures, "round": round}), run.finish)


def _open_mlflow(module: Any, place: Path, name: str) -> Target:
    # A client of its own, and not the module's functions: those share one address and experiment with whatever else
    # this process does. The default address is in the current directory.
    address = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{place / 'mlflow.db'}"
    client = module.MlflowClient(tracking_uri=address)
    known = client.get_experiment_by_name(PROJECT)
    experiment = client.create_experiment(PROJECT) if known is None else known.experiment_id
    earlier = client.search_runs([experiment], f"attributes.run_name = '{name}'", max_results=1)
    run = (earlier[0] if earlier else client.create_run(experiment, run_name=name)).info.run_id
    client.update_run(run, status="RUNNING")

    def log(figures: Figures, round: int) -> None:
        now = int(1000 * time.time())
        client.log_batch(run, [module.entities.Metric(key, value, now, round) for key, value in figures.items()])

    return Target(log, lambda: client.set_terminated(run))


_OPENERS: Mapping[str, tuple[str, Callable[[Any, Path, str], Target]]] = {
    "tensorboard": ("tensorboardX", _open_tensorboard), "trackio": ("trackio", _open_trackio),
    "wandb": ("wandb", _open_wandb), "mlflow": ("mlflow", _open_mlflow),
}  # fmt: skip
"""By the values of the setting: the module, which is its distribution, too, and what opens it."""
