"""Commands in processes of their own, forked from one that has loaded the heavy libraries already.

Each is a real process with a pid, signals and an exit code, and runs `sapo_edge.cli.entry.main` as the installed script
does; it only starts in a tenth of a second. What is about the start itself runs `python -m sapo_edge`, by `start`.
"""

from __future__ import annotations

import gc
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sapo_edge.care.signals import AGAIN_SECONDS
from sapo_edge.control.client import connect
from sapo_edge.errors import NoNodeError
from sapo_edge.state.paths import Paths
from tests.forked import Forked, server

TIMEOUT = 90
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
"""Environment of a node that leaves the other cores to other tests."""


@dataclass(frozen=True, slots=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def events(self) -> list[dict[str, Any]]:
        """The JSON objects on stdout, one a line."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def record(self) -> dict[str, Any]:
        """The one JSON object on stdout."""
        record: dict[str, Any] = json.loads(self.out)
        return record

    def ok(self) -> Result:
        """The same, of a command that succeeded."""
        assert self.code == 0, self.err
        return self

    def named(self, *names: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] in names]


def assert_refused(result: Result, code: int, *parts: str) -> None:
    """Check that a command ended with this code, an error with these parts in its last line, and nothing on stdout."""
    assert result.code == code, result.err
    assert "Traceback" not in result.err and result.out == ""
    lines = result.err.splitlines()
    assert [line.startswith("sapo: ") for line in lines] == [False] * (len(lines) - 1) + [True], result.err
    assert "; " in lines[-1], result.err
    for part in parts:
        assert part in lines[-1]


def start(*arguments: str | Path, directory: Path) -> subprocess.Popen[str]:
    """Start `python -m sapo_edge` with one thread and pipes for its streams."""
    command, environment = [sys.executable, "-m", "sapo_edge", *map(str, arguments)], {**os.environ, **ONE_THREAD}
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, text=True, env=environment, cwd=directory, preexec_fn=_take_signals, **pipes)


def python(*arguments: str | Path, directory: Path, typed: str = "", **environment: str) -> Result:
    """Run this Python with these arguments in a directory, with more in its environment, and wait for its end."""
    command, variables = [sys.executable, *map(str, arguments)], {**os.environ, **environment}
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": TIMEOUT, "check": False}
    ended = subprocess.run(command, input=typed, cwd=directory, env=variables, **options)
    return Result(ended.returncode, ended.stdout, ended.stderr)


def fork(*arguments: str | Path, directory: Path, before: str = "") -> Forked:
    """Start `sapo` in a process that is forked, after some code."""
    code = f"{before}\nfrom sapo_edge.cli.entry import main\nmain()"
    return Forked("-c", code, *map(str, arguments), directory=directory, environment={**os.environ, **ONE_THREAD})


def kill_node(home: Path) -> None:
    try:
        with connect(Paths.default(home)) as client:
            os.kill(client.hello["pid"], signal.SIGKILL)
    except NoNodeError:
        pass


def run(
    arguments: Sequence[str | Path], directory: Path, *, fault: str = "", rewarded: bool = False,
    environment: dict[str, str] | None = None,
) -> Result:  # fmt: skip
    """Run `sapo` with these arguments and wait for its end.

    Args:
        directory: for what it prints, and where it runs.
        fault: what befalls it, as "kill generate 3": see `Fault`.
        rewarded: score answers by their length: a random model earns unequal rewards.
        environment: added to this process's own.
    """
    passed = ([str(argument) for argument in arguments], str(directory), fault, rewarded, environment or {})
    process = server().Process(target=_command, args=passed)
    process.start()
    process.join(TIMEOUT)
    if process.exitcode is None:
        process.kill()
        process.join()
    assert process.exitcode is not None
    return Result(process.exitcode, (directory / "stdout").read_text(), (directory / "stderr").read_text())


def _command(arguments: list[str], directory: str, fault: str, rewarded: bool, environment: dict[str, str]) -> None:
    gc.freeze()
    os.chdir(directory)
    _take_signals()
    # Alone, unless a test says otherwise: nodes of tests that run at the same time would find each other.
    os.environ.update({"SAPO_EDGE_NETWORK": "solo", **ONE_THREAD, **environment})
    for number, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, number)
        os.close(file)
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), write_through=True)
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), write_through=True)
    sys.argv = ["sapo", *arguments]
    if rewarded:
        reward_by_length()
    if fault:
        Fault(*fault.split()).install()

    from sapo_edge.cli.entry import main

    main()


def _take_signals() -> None:
    """Take signals as in a terminal: under `nohup` and in the background, tests inherit that some are ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def reward_by_length() -> None:
    from sapo_edge.tasks.source import TaskSource
    from tests.fakes import length_score

    TaskSource.score = lambda self, task, text: length_score(task, text)  # type: ignore[method-assign]


def rest_between_answers(seconds: float) -> None:
    """Let this process rest before it samples short answers: its rounds would take the processor from other tests."""
    from sapo_edge.backends.llama.policy import LlamaCppPolicy

    policy: Any = LlamaCppPolicy
    generate = policy.generate

    def rest_and_generate(self: Any, prompts: Any, answers: int, tokens: int, *more: Any, **options: Any) -> Any:
        time.sleep(seconds)
        return generate(self, prompts, answers, min(tokens, 16), *more, **options)

    policy.generate = rest_and_generate


class Fault:
    """A signal that a process gets at an exact place.

    Args:
        name: "kill", "hup-term" for two in a row, or "int-later-int" for two with a pause between.
        step: "generate", "update", "trained" (between update and checkpoint), "checkpoint" (half-written) or
            "evaluate".
        number: at which time.
    """

    def __init__(self, name: str, step: str, number: str) -> None:
        self.signals = [None if part == "later" else getattr(signal, f"SIG{part.upper()}") for part in name.split("-")]
        self.step = step
        self.left = int(number)

    def strike(self) -> None:
        self.left -= 1
        if self.left == 0:
            for number in self.signals:
                if number is None:
                    time.sleep(AGAIN_SECONDS)
                else:
                    os.kill(os.getpid(), number)

    def install(self) -> None:
        from sapo_edge.backends.llama.policy import LlamaCppPolicy
        from sapo_edge.backends.pytorch.learner import TorchLearner

        owner, name, is_before = {
            "generate": (LlamaCppPolicy, "generate", True), "evaluate": (LlamaCppPolicy, "generate", True),
            "update": (TorchLearner, "update", True), "trained": (LlamaCppPolicy, "update", False),
            "checkpoint": (LlamaCppPolicy, "save", False),
        }[self.step]  # fmt: skip
        original = getattr(owner, name)

        def patched(*arguments: Any, **options: Any) -> Any:
            # Evaluations are greedy.
            if is_before and (name != "generate" or (arguments[4] > 0) == (self.step == "generate")):
                self.strike()
            result = original(*arguments, **options)
            if not is_before:
                self.strike()
            return result

        setattr(owner, name, patched)
