"""The terminal app, as a whole process on a pseudo-terminal: first paint, key to reaction, idle load, memory."""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from sapo_edge.control.client import connect, node_runs
from sapo_edge.state.paths import HOME_VARIABLE, Paths
from tests.debian.terminal import Terminal
from tests.tui.fake_node import ScriptedNode

ROOT = Path(__file__).parents[2]
IDLE_SECONDS = 30.0
PATIENCE = 900.0
"""Most seconds of one app."""
HISTORY = 10_000


class App(Terminal):
    """The app on a terminal, which answers what it is asked and shows nothing."""

    def __init__(self, home: Path) -> None:
        variables = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8", "PYTHONPATH": str(ROOT)}
        settings = [f"{name}={value}" for name, value in {**variables, HOME_VARIABLE: str(home)}.items()]
        super().__init__(["env", *settings, sys.executable, "-P", "-m", "sapo_edge"], PATIENCE)
        self.process = psutil.Process(self._process)

    def drawn(self, text: str) -> float:
        """Seconds from now until the app draws a text."""
        begin = time.perf_counter()
        self.wait_until(lambda: text in self.text, text, pause=0.001)
        return time.perf_counter() - begin

    def press(self, keys: str, text: str) -> float:
        self.type(keys)
        return self.drawn(text)

    @property
    def used(self) -> float:
        """Seconds of processor time that the app has used, all threads together."""
        if sys.platform == "linux":
            # The clock of another process, exact to the nanosecond; what psutil reads has steps of 10 ms.
            return time.clock_gettime((~self.process.pid << 3) | 2)
        times = self.process.cpu_times()
        return times.user + times.system

    def drain(self, seconds: float) -> None:
        self._read(seconds)
        self.text = ""

    def cpu(self, seconds: float) -> float:
        """Cores that the app uses."""
        before = self.used
        self.drain(seconds)
        return (self.used - before) / seconds

    def close(self) -> None:
        """Hang up, as a terminal that is closed does."""
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            os.kill(self.process.pid, signal.SIGKILL)
            os.waitpid(self.process.pid, 0)
        os.close(self._master)


@contextlib.contextmanager
def training_node(home: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A node that trains the embedded model at full load, with its usual low priority."""
    environment = {key: value for key, value in os.environ.items() if key != "SAPO_EDGE_NICE"}
    command = [sys.executable, "-m", "sapo_edge", "run", "--solo", "--json", "--home", str(home), "--set", "held_out=0"]
    null = subprocess.DEVNULL
    with subprocess.Popen(command, stdin=null, stdout=null, stderr=null, env=environment) as process:
        try:
            while not node_runs(Paths.default(home)):
                time.sleep(0.5)
            with connect(Paths.default(home)) as node:
                while not node.request("status", timeout=60)["round"]:
                    time.sleep(0.5)
            yield process
        finally:
            process.kill()


def run(repeats: int) -> None:
    print("\n### Terminal app, 80x24\n\n| what | median | max | asked |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        with training_node(home):
            paints, keys, helps = [], [], []
            for _ in range(repeats):
                app = App(home)
                paints.append(app.drawn("Dashboard"))
                app.drawn("Is it working?")
                app.drain(3.0)
                for _ in range(5):
                    helps.append(app.press("\x1bOP", "Esc closes"))
                    app.press("q", "Is it working?")
                    keys.append(app.press("7", "Sharing"))
                    keys.append(app.press("1", "Is it working?"))
                    app.drain(0.3)
                load = app.cpu(10.0)
                app.close()
            _row("first paint, a node trains beside it (s)", paints, "1")
            _row("key to another screen, a node trains beside it (ms)", [1000 * value for value in keys], "50")
            _row("F1 to the help (ms)", [1000 * value for value in helps], "50")
            print(f"| the app's own load while a node trains (% of a core) | {100 * load:.1f} | | |")
    _idle_and_memory()


def _idle_and_memory() -> None:
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        node = ScriptedNode(Paths.default(home), rounds=HISTORY, alone=True)
        node.start()
        app = App(home)
        app.drawn("Is it working?")
        app.drain(5.0)
        _row("idle, a node is paused (% of a core)", [100 * app.cpu(IDLE_SECONDS)], "3")
        sizes = []
        for number in range(HISTORY + 1, 2 * HISTORY + 1):
            if number % (HISTORY // 4) == 1:
                app.drain(2.0)
                sizes.append(app.process.memory_info().rss)
            node.emit(node.finished(number))
            if number % 100 == 0:
                app.drain(0.2)
        app.drain(2.0)
        sizes.append(app.process.memory_info().rss)
        shown = ", ".join(f"{size / 1e6:.0f}" for size in sizes)
        print(f"| memory with {HISTORY} rounds, and each {HISTORY // 4} rounds later (MB) | {shown} | | flat |")
        app.close()
        node.stop()


def _row(what: str, values: list[float], asked: str) -> None:
    print(f"| {what} | {statistics.median(values):.2f} | {max(values):.2f} | {asked} |", flush=True)
