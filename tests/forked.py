"""Python programs in processes of their own that are forked from one that has loaded the heavy libraries already.

Each is a real process with a pid, signals and an exit code; it only starts in a tenth of a second instead of seconds.
None of our own modules is loaded in it. Programs whose start or libraries a test is about are started by `subprocess`.
"""

from __future__ import annotations

import ctypes
import gc
import io
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from multiprocessing import reduction
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

from tests.swarm.namespaces import DIRECTORY

if TYPE_CHECKING:
    # Each process that is forked would import it.
    import pytest

HEAVY = [
    "torch", "transformers", "peft", "tests.loaded", "tests.unflushed", "libp2p",
    "libp2p.pubsub.gossipsub",
    "libp2p.relay.circuit_v2.protocol", "libp2p.stream_muxer.yamux.yamux", "multiaddr", "nacl.bindings", "trio",
    "zeroconf", "sapo_edge.cli.main", "sapo_edge.library.narrator", "sapo_edge.control.server",
    "sapo_edge.node.controlled",
]  # fmt: skip
"""Libraries, and what loads or leaves out some of them; our other modules are for `tests.cli.process.run` alone."""
_CLONE_NEWNET = 0x40000000
"""Of Linux' `sched.h`."""


def server() -> multiprocessing.context.ForkServerContext:
    """The process to fork from."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(HEAVY)
    return context


def fork_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a pool's processes be forked from it too, in place of new ones that load the libraries."""
    context = server()
    monkeypatch.setattr(multiprocessing, "get_context", lambda _how: context)


class _Passed:
    """A file descriptor for a forked process."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return _Passed._received, (reduction.DupFd(self.number),)

    @classmethod
    def _received(cls, descriptor: Any) -> _Passed:
        return cls(descriptor.detach())


class Forked:
    """A running Python program, with what the tests need of `subprocess.Popen`. Its three streams are pipes.

    The arguments are Python's: `-c CODE`, `-m MODULE` or a file, and what follows. File descriptors may take the place
    of two pipes; the namespace, of `ip netns`, is the network that it is in, None for this process's.
    """

    def __init__(
        self, *arguments: str, directory: Path, environment: Mapping[str, str], stdout: int | None = None,
        stderr: int | None = None, namespace: str | None = None,
    ) -> None:  # fmt: skip
        theirs, mine = os.pipe()
        self.stdin: IO[str] = os.fdopen(mine, "w")
        ends = [theirs]
        streams: list[IO[str]] = []
        for number in (stdout, stderr):
            mine, theirs = os.pipe() if number is None else (os.open(os.devnull, os.O_RDONLY), os.dup(number))
            streams.append(os.fdopen(mine))
            ends.append(theirs)
        self.stdout, self.stderr = streams
        self._process = server().Process(
            target=_run, args=(arguments, str(directory), dict(environment), [_Passed(end) for end in ends], namespace)
        )
        self._process.start()
        for end in ends:
            os.close(end)
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, or the negative number of the signal that ended it; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended; subprocess.TimeoutExpired if that takes too long."""
        self._process.join(timeout)
        if (code := self.returncode) is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What is left of its output, once it has ended; raises as `wait` does."""
        texts = ["", ""]

        def read(index: int, stream: IO[str]) -> None:
            texts[index] = stream.read()

        readers = [threading.Thread(target=read, args=item) for item in enumerate((self.stdout, self.stderr))]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join()
        return texts[0], texts[1]

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            stream.close()
        self.wait()


def _enter(namespace: str) -> None:
    # Python has `os.setns` from 3.12 on.
    with (DIRECTORY / namespace).open() as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "can't enter the network namespace", namespace)


def _run(
    arguments: tuple[str, ...], directory: str, environment: dict[str, str], ends: list[_Passed], namespace: str | None
) -> None:
    # Collections would look at all libraries, and so copy their pages.
    gc.freeze()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    if namespace is not None:
        _enter(namespace)
    for number, end in enumerate(ends):
        os.dup2(end.number, number)
        os.close(end.number)
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)))
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), write_through=True)
    # As in a terminal: under `nohup` and in the background, tests inherit that some are ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    for name in [name for name in sys.modules if name.partition(".")[0] in {"tests", "sapo_edge"} and name != __name__]:
        del sys.modules[name]
    first, *more = arguments
    if first == "-c":
        code, *more = more
        sys.argv = ["-c", *more]
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    elif first == "-m":
        module, *more = more
        sys.argv = [module, *more]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        sys.argv = [first, *more]
        runpy.run_path(first, run_name="__main__")
