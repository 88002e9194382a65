"""The Python interface: `train`, `open_run`, and what they give. Importing it loads no backend.

A call does what the commands do, by the same code, in the same directories: `sapo status` shows a node that `train`
runs, `sapo chat` talks to what it learned, and `open_run` opens what `sapo run` trained.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from sapo_edge import events
from sapo_edge.care.stop import Stop
from sapo_edge.errors import ConfigError, ManifestError
from sapo_edge.library.session import Around, run_session
from sapo_edge.library.workspace import Workspace, find_manifest, open_workspace
from sapo_edge.state.paths import Paths

if TYPE_CHECKING:
    from sapo_edge.control.report import Report
    from sapo_edge.evaluate import Gain
    from sapo_edge.library.conversation import Conversation, Piece
    from sapo_edge.library.fanout import Receiver
    from sapo_edge.state.checkpoint import Checkpoint
    from sapo_edge.state.store import Store
    from sapo_edge.tasks.manifest import Manifest
    from sapo_edge.tasks.source import Function

Tasks: TypeAlias = "str | os.PathLike[str] | Iterable[Mapping[str, object]] | Manifest"
"""A shipped manifest by its name, a manifest's file, a file of questions, rows like its lines, or a `Manifest`."""

ROUNDS = 40
"""Rounds of a call that names no number, as `make run` has them."""
OPEN = "open"
"""In place of an invite: the open swarm of the manifest."""


@dataclass(frozen=True, slots=True)
class Results:
    """The adapter compared with its base model, on questions that neither was trained on; of content, in any form.

    Attributes:
        base, adapter: share of right answers, 0 to 1.
        gain: the rise, with its 95 % interval from `low` to `high`.
        became_right, became_wrong: questions that only the adapter, and only the base model, answered right.
        split: "test" for questions by which no checkpoint was chosen, or "validation".
    """

    base: float
    adapter: float
    gain: float
    low: float
    high: float
    became_right: int
    became_wrong: int
    questions: int
    split: str

    @classmethod
    def of(cls, base: int, adapter: int, gain: Gain, questions: int, split: str) -> Results:
        """From counts of right answers."""
        shares = (base / questions, adapter / questions)
        return cls(*shares, gain.value, gain.low, gain.high, gain.gained, gain.lost, questions, split)

    def __str__(self) -> str:
        interval = f"95 % {self.low:+z.2f} to {self.high:+z.2f}"
        changed = f"{self.became_right} became right, {self.became_wrong} became wrong"
        shares = f"{self.base:.2f} -> {self.adapter:.2f}, gain {self.gain:+z.2f} ({interval})"
        return f"{self.questions} {self.split} questions: {shares}; {changed}"


class Run:
    """One run of a home: what was trained, asked and exported from Python or by commands.

    Close it, or use it as a context manager, to free the model that `ask` keeps.
    """

    def __init__(self, name: str | None = None, home: Path | None = None, check: Function | None = None) -> None:
        self._paths = Paths.default(home)
        self.name = name or self._paths.run_name
        self._functions = {} if check is None else {_name_of(check): check}
        # Called when the program ends, too: native memory is freed before the interpreter is taken apart.
        self._free: weakref.finalize[..., Run] | None = None
        self._conversation: Conversation | None = None
        self._asked: Checkpoint | None = None
        # A model is asked by one thread at a time, and not freed meanwhile.
        self._lock = threading.RLock()

    @property
    def directory(self) -> Path:
        """Its directory, with the journal and the checkpoints."""
        return self._paths.run_of(self.name).directory

    @property
    def adapter(self) -> Path | None:
        """Directory of the best checkpoint, in PEFT's format; None before the first."""
        best = self._best()
        return None if best is None else best.directory

    @property
    def results(self) -> Results | None:
        """What it has learned so far, by its journal; None if nothing can be compared yet."""
        from sapo_edge.control.run_report import read_run_report

        learned: Report | None = read_run_report(self._paths, self.name).learned
        if learned is None:
            return None
        return Results.of(learned.before, learned.now, learned.gain, learned.questions, learned.split or "validation")

    @property
    def rounds(self) -> tuple[events.RoundFinished, ...]:
        """All rounds so far, oldest first."""
        from sapo_edge.control.journal_view import JournalReader

        journal = self._paths.run_of(self.name).journal
        return tuple(event for event, _ in JournalReader(journal).rounds()) if journal.exists() else ()

    def train(self, rounds: int = ROUNDS, **options: Any) -> Run:
        """Make so many more rounds; see `train` for the options, except `tasks`, `name`, `home` and `check`."""
        self.close()
        done = self.rounds
        _train(self, None, rounds=rounds, done=done[-1].round if done else 0, **options)
        return self

    def ask(self, question: str, *, base: bool = False, plain: bool = False, temperature: float = 0.0) -> str:
        """The answer to a question, which stands alone. The first call loads the model, which stays until `close`.

        Args:
            base: ask the base model instead of the adapter.
            plain: without the prompt of the training.
            temperature: 0 takes the most likely token.

        Raises:
            CheckpointError: if nothing is trained yet.
        """
        from sapo_edge.library.adapters import find_adapter, open_conversation

        pieces: list[Piece] = []
        with self._lock:
            # It may have learned since the last question, also in another process.
            best = self._best(self._asked)
            if self._conversation is None or best is None or not best.is_same(self._asked):
                self.close()
                workspace, opened = self._workspace(), ExitStack()
                adapter = find_adapter(workspace, None if best is None else best.directory)
                conversation = open_conversation(workspace, adapter, workspace.say)
                self._conversation, _ = opened.enter_context(conversation)
                self._asked = best
                self._free = weakref.finalize(self, opened.close)
            self._conversation.speakers = (not base,)
            self._conversation.ask(question, task=not plain, temperature=temperature, show=pieces.append)
        return pieces[-1].text

    def evaluate(self, questions: int | None = None) -> Results:
        """Compare base model and adapter on so many test questions, None: as the settings say, as `sapo eval` does."""
        from sapo_edge.evaluate import paired_gain
        from sapo_edge.library.adapters import evaluate_both, find_adapter

        self.close()
        workspace = self._workspace({"held_out": questions})
        with _judging(self, workspace) as functions:
            found, _ = evaluate_both(workspace, find_adapter(workspace, self.adapter), functions=functions)
        base, adapter = found["base"], found["adapter"]
        return Results.of(base.right, adapter.right, paired_gain(base.marks, adapter.marks), base.questions, "test")

    def export(self, to: str, directory: str | os.PathLike[str], *, quantisation: str | None = None) -> Path:
        """Write the best adapter for other programs; returns the file or directory to give them.

        Args:
            to: "merged", "peft", "gguf" or "mlx", as `sapo export` says.
            quantisation: number format of a merged GGUF file.
        """
        from sapo_edge.library.adapters import export_adapter

        return export_adapter(self._workspace(), self.adapter, to, Path(directory).expanduser(), quantisation)

    def close(self) -> None:
        """Free the model that `ask` loaded, if any."""
        with self._lock:
            free, self._free, self._conversation = self._free, None, None
            if free is not None:
                free()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<run {self.name} of {self._paths.home or 'this user'}: {self.results or 'nothing is compared yet'}>"

    def _best(self, verified: Checkpoint | None = None) -> Checkpoint | None:
        from sapo_edge.state.checkpoints import Checkpoints

        return Checkpoints(self._paths.run_of(self.name).checkpoints).to_use(verified)

    def _workspace(self, flags: Mapping[str, object] | None = None, *, narrates: bool = False) -> Workspace:
        return open_workspace(self._paths.home, flags, self.name, narrates=narrates)


def open_run(
    name: str | None = None, *, home: str | os.PathLike[str] | None = None, check: Function | None = None
) -> Run:
    """A run that was begun before, by `train` or by `sapo run`.

    Args:
        name: of `sapo runs list`; None for the current one.
        home: as of `train`.
        check: the function that judges its answers, if it was trained with one.
    """
    from sapo_edge.state.runs import check_run_exists

    run = Run(name, None if home is None else Path(home), check)
    check_run_exists(run._paths, run.name)
    return run


def train(
    tasks: Tasks,
    *,
    rounds: int = ROUNDS,
    name: str | None = None,
    home: str | os.PathLike[str] | None = None,
    check: Function | None = None,
    **options: Any,
) -> Run:
    """Train, and return the run. A run on the same tasks goes on; other tasks begin another run beside it.

    Ctrl-C finishes the step in progress, saves it, and raises KeyboardInterrupt; a second one loses the step. From
    another thread, use `stop`.

    Args:
        tasks: what to learn; see `Tasks`.
        rounds: after which it ends, counted from the run's first start.
        name: of the run; None for the current one, if it is empty or on the same tasks, or one named after the tasks.
        home: one directory for everything; None for that of the commands.
        check: judges answers in place of the tasks' own checks: (question, expected answer, completion) -> 0 to 1. Such
            a run works alone, because nobody else has the function.
        options: `on_event` and `on_round`, called with each event and each finished round in this thread; `show`, False
            for a call that prints nothing; `stop`, a `Stop` by which another thread pauses or ends it; `swarm`, an
            invite, the name of a known swarm, or "open" for that of the manifest, and `agree`, True to share with it;
            and any setting by its name, such as model, own, answers, head_start, seed, threads or memory.

    Raises:
        SapoError: with what is wrong and what to do. What was learned until then is saved.
        KeyboardInterrupt: after Ctrl-C, and once all is saved.
    """
    directory = None if home is None else Path(home)
    paths = Paths.default(directory)
    manifest = _read_tasks(paths, tasks, check)
    run = Run(name or _run_for(paths, manifest), directory, check)
    _train(run, manifest, rounds=rounds, **options)
    return run


def _train(
    run: Run,
    manifest: tuple[str, Manifest] | None,
    *,
    rounds: int,
    done: int = 0,
    on_event: Callable[[events.Event], None] | None = None,
    on_round: Callable[[events.RoundFinished], None] | None = None,
    show: bool = True,
    stop: Stop | None = None,
    swarm: str | None = None,
    agree: bool = False,
    **settings: object,
) -> None:
    from sapo_edge.library.narrator import Narrator

    if rounds < 1:
        raise ConfigError(f"{rounds} rounds are none", "give 1 or more")
    if "network" in settings:
        raise ConfigError("network is no argument", 'swarm="open" shares, and without swarm nothing is sent')
    if run._functions and swarm is not None:
        raise ConfigError("check is a function of this machine, so others can't judge by it", "leave out swarm")
    stop = stop or Stop()
    flags = {name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in settings.items()}
    flags |= {"rounds": done + rounds, "network": "solo" if swarm is None else "swarm"}
    if manifest is not None:
        flags["manifest"] = manifest[0]
    # A wrong setting is told before anything is joined or begun.
    workspace = run._workspace(flags, narrates=show)
    if swarm is not None:
        _join(workspace, swarm, None if manifest is None else manifest[1], agree=agree)
        workspace = run._workspace(flags, narrates=show)
        workspace.check_swarm()
    _choose(run._paths, run.name)
    thread, waiting = threading.get_ident(), deque[events.Event]()
    failed: list[BaseException] = []
    interrupts: list[int] = []

    def tell() -> None:
        """Call back in this thread, also about events of other threads, which must not wait for it."""
        while threading.get_ident() == thread and waiting and not failed:
            event = waiting.popleft()
            try:
                if on_event is not None:
                    on_event(event)
                if on_round is not None and isinstance(event, events.RoundFinished):
                    on_round(event)
            except BaseException as error:  # noqa: BLE001 - raised again, when the run has ended in order
                failed.append(error)
                stop.after_round()

    def receive(event: events.Event) -> None:
        waiting.append(event)
        tell()

    @contextmanager
    def watch(store: Store) -> Iterator[Receiver]:
        # Not before the model is loaded: there Ctrl-C just ends the call, as elsewhere in Python.
        with _interruptible(stop, workspace, interrupts):
            if not show:
                yield lambda event: None
                return
            with Narrator(done + rounds, store.journal.held_out_course()) as narrator:
                yield narrator

    # Called while the node pauses, too, when this thread has no events of its own.
    stop.alive = tell
    try:
        with _judging(run, workspace) as functions:
            outcome = run_session(workspace, stop, Around(watch, receive, functions=functions))
    finally:
        # The caller may still have it, and pause what has ended.
        stop.alive, stop.changed = lambda: None, lambda reasons: None
    tell()
    if failed:
        raise failed[0]
    if interrupts:
        raise KeyboardInterrupt
    if outcome.was_done:
        workspace.say(f"nothing to do: {run.name} has its {done + rounds} rounds; run.train(10) makes 10 more")


@contextmanager
def _judging(run: Run, workspace: Workspace) -> Iterator[Mapping[str, Function]]:
    """The functions that judge a run's answers: the caller's, or environments that the owner has agreed to."""
    from sapo_edge.library.environments import agreed_code, judging

    def agreed(name: str) -> bool:
        return name in agreed_code(workspace.paths.code)

    with judging(workspace.manifest if workspace.is_alone else None, agreed, workspace.say) as environments:
        yield run._functions or environments


@contextmanager
def _interruptible(stop: Stop, workspace: Workspace, interrupts: list[int]) -> Iterator[None]:
    """Let Ctrl-C end the run in order, and keep its signals. Another thread than the main one gets none."""
    from sapo_edge.care.signals import StopSignals, handling

    signals = StopSignals(stop, workspace.say)

    def handle(number: int, frame: Any) -> None:
        interrupts.append(number)
        signals(number, frame)

    is_main = threading.current_thread() is threading.main_thread()
    with handling([signal.SIGINT], handle) if is_main else nullcontext():
        yield


def _read_tasks(paths: Paths, tasks: Tasks, check: Function | None) -> tuple[str, Manifest]:
    """A manifest, and what names it in the settings: what was given, or its digest, by which it is kept."""
    from sapo_edge.swarm.joining.membership import Membership
    from sapo_edge.tasks.manifest import Manifest

    membership = Membership(paths.state)
    if isinstance(tasks, str | os.PathLike):
        name = os.fspath(tasks)
        manifest = find_manifest(paths, membership, name)
        if check is None:
            return name, manifest
    elif isinstance(tasks, Manifest):
        manifest = tasks
    else:
        manifest = _manifest_of_rows(paths, tasks, check)
    if check is not None:
        manifest = _judged_by(manifest, check)
    kept = membership.keep_manifest(manifest.to_bytes(), bytes.fromhex(manifest.digest), manifest.store)
    return kept.digest, kept


def _manifest_of_rows(paths: Paths, rows: Iterable[Mapping[str, object]], check: Function | None) -> Manifest:
    from sapo_edge.tasks.columns import OPTIONS
    from sapo_edge.tasks.manifest import load_manifest
    from sapo_edge.tasks.question_data import MAX_DATA_QUESTIONS

    with tempfile.TemporaryDirectory(prefix="sapo-rows-") as directory:
        file = Path(directory, "mine.jsonl")
        with file.open("w", encoding="utf-8") as lines:
            # One more than there may be is an error; an endless generator must not fill the disk.
            for number, row in enumerate(islice(rows, MAX_DATA_QUESTIONS + 1), start=1):
                if not isinstance(row, Mapping):
                    raise ManifestError(f"row {number} is no dictionary", 'write {"question": "...", "answer": "..."}')
                record = dict(row)
                if check is not None:
                    # It may need no expected answer, and has no other check.
                    record = {key: value for key, value in record.items() if key not in OPTIONS}
                    record = {"answer": ""} | record | {"check": "code", "code": _name_of(check)}
                try:
                    # A table's missing value is NaN, which would be learned as a word.
                    lines.write(json.dumps(record, allow_nan=False) + "\n")
                except (TypeError, ValueError) as error:
                    remedy = "let its values be text, numbers, or lists of them"
                    raise ManifestError(f"row {number} has a value that is no JSON: {error}", remedy) from error
        try:
            return load_manifest(file, paths.questions)
        except ManifestError as error:
            message = error.message.replace(f"{file}, line ", "row ").replace(str(file), "the rows")
            raise ManifestError(message, error.remedy) from error


def _judged_by(manifest: Manifest, check: Function) -> Manifest:
    """A manifest whose questions are judged by a function."""
    from sapo_edge.tasks.checks import Code
    from sapo_edge.tasks.manifest import MAX_MANIFEST_BYTES
    from sapo_edge.tasks.questions import MAX_QUESTIONS

    code, tasks = Code(_name_of(check)), []
    for entry in manifest.tasks:
        if not isinstance(entry.questions, tuple) or not entry.questions:
            what, remedy = "is made by a generator", f"give check for up to {MAX_QUESTIONS:,} questions of your own"
            if len(entry.questions) > MAX_QUESTIONS:
                what = "has more questions than a function may judge"
            elif entry.questions:
                what = f"does not fit into the {MAX_MANIFEST_BYTES // 1024} KiB that a function may judge"
                remedy = "give check for fewer or shorter rows"
            raise ManifestError(f"task {entry.name} {what}", remedy)
        tasks.append(replace(entry, questions=tuple(replace(question, check=code) for question in entry.questions)))
    return replace(manifest, tasks=tuple(tasks))


def _name_of(check: Function) -> str:
    return getattr(check, "__name__", type(check).__name__)


def _run_for(paths: Paths, manifest: tuple[str, Manifest]) -> str:
    """The run that trains on a manifest: the current one, another one, or a new one named after it."""
    from sapo_edge.state.checkpoints import Checkpoints
    from sapo_edge.state.paths import check_run_name
    from sapo_edge.state.runs import run_names, unused

    current, names = paths.run_name, run_names(paths)
    for name in (current, *names):
        newest = Checkpoints(paths.run_of(name).checkpoints).newest_record()
        if newest.manifest_digest == manifest[1].digest if newest is not None else name == current:
            return name
    like = "".join(letter if letter.isalnum() else "-" for letter in manifest[1].name)[:40].strip("-")
    with suppress(ConfigError):
        if check_run_name(like) not in names:
            return like
    return unused(names)


def _choose(paths: Paths, name: str) -> None:
    """Make a run the one that is worked on; begin it if there is none of that name."""
    from sapo_edge.state.runs import begin_run, run_names, use_run

    if paths.run_name == name:
        return
    paths.create()
    if name in run_names(paths):
        use_run(paths, name)
    else:
        begin_run(paths, name)


def _join(workspace: Workspace, swarm: str, manifest: Manifest | None, *, agree: bool) -> None:
    """Join the swarm that a call names, if its caller has agreed to share."""
    from sapo_edge.library.joining import join
    from sapo_edge.state.consent import agreed_to_share, write_consent

    paths = workspace.paths
    has_agreed = agreed_to_share(paths.consent)
    if not (has_agreed or agree):
        raise ConfigError(
            "members of the swarm would get the questions, your model's answers, your node's key and IP address",
            "read docs/privacy.md, and give agree=True; or leave out swarm",
        )
    if swarm == OPEN and workspace.is_alone:
        if workspace.membership.alone and workspace.manifest and not workspace.manifest.own_questions:
            command = ["sapo", "swarm", "create", workspace.settings.manifest]
            command += [] if paths.home is None else ["--home", str(paths.home)]
            remedy = f"`{shlex.join(command)}` joins it again; or leave out swarm"
            raise ConfigError("this node has left the swarm", remedy)
        raise ConfigError("these tasks have no open swarm", "give an invite as swarm, or leave it out")
    if swarm != OPEN:
        join(paths, workspace.membership, swarm, manifest)
    if not has_agreed:
        paths.create()
        write_consent(paths.consent, "agree=True")
