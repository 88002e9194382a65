"""Judges of answers that are single-turn environments of the package `verifiers`, each in a process of its own.

A manifest names one as `verifiers:NAME`, with the arguments of its taskset behind a "?". Its code is on this machine
because its owner installed it; whether it may run, the owner is asked once.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode

import msgpack

import sapo_edge
from sapo_edge.children import python_command, start_piped
from sapo_edge.errors import ConfigError, DataError, StateError
from sapo_edge.installing import how_to_install_extra
from sapo_edge.plain import printable
from sapo_edge.state.durable import read_bounded, replace_file
from sapo_edge.tasks.source import Function

if TYPE_CHECKING:
    from sapo_edge.tasks.manifest import Manifest

ENVIRONMENT = "env:"
"""Prefix of an environment's name where something is imported."""
CODE = "verifiers:"
"""Prefix of an environment's name in a manifest."""
START_SECONDS = 120.0
"""How long an environment may take to load, which may download what it needs."""
ANSWER_SECONDS = 10.0
"""How long it may judge one answer."""
MAX_IN_ROW = 3
"""Answers in a row on which it may hang or end."""
_MAX_REPLY = 4 * 1024 * 1024
_MAX_BYTES = 64 * 1024


def code_of(name: str, arguments: Mapping[str, str]) -> str:
    """How a manifest names an environment."""
    return f"{CODE}{name}" + (f"?{urlencode(sorted(arguments.items()))}" if arguments else "")


class Environment:
    """A loaded environment. Thread-safe.

    Args:
        say: is told of answers that count as wrong because the environment hung or ended on them; `lost` counts them.

    Raises:
        ConfigError: if the package is missing, or one answer can't be judged by itself.
        DataError: if the environment can't be loaded.
    """

    def __init__(self, code: str, say: Callable[[str], None]) -> None:
        self.name, _, arguments = code.removeprefix(CODE).partition("?")
        self.lost = 0
        self._arguments = {key: _value(text) for key, text in parse_qsl(arguments, keep_blank_values=True)}
        self._say = say
        self._in_row = 0
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        if find_spec("verifiers") is None:
            remedy = how_to_install_extra("environments")
            raise ConfigError(f"the environment {self.name} needs the package verifiers", remedy)
        self._start()

    def rows(self) -> Iterator[object]:
        """Its tasks, as rows of a data set; not while it judges. A DataError if it hangs or ends before the last."""
        try:
            self._send("rows")
            yield from iter(lambda: self._receive(START_SECONDS), None)
        except (OSError, EOFError) as error:
            remedy = "try it by itself: vf-eval, or import it"
            raise DataError(f"the environment {self.name} ended, or hung, before its last task", remedy) from error

    def __call__(self, question: str, expected: str, text: str) -> float:
        """The score of an answer: 0 if the environment hangs or ends on it, which is said and counted.

        A DataError if it fails, or hangs or ends `MAX_IN_ROW` times in a row.
        """
        with self._lock:
            if self._process is None:
                self._start()
            try:
                self._send([question, text])
                reply = self._receive(ANSWER_SECONDS)
            except (OSError, EOFError) as error:
                self._kill()
                return self._lose(error)
            self._in_row = 0
        if "failed" in reply:
            remedy = "mend it, or install the version with which the manifest was made"
            raise DataError(f"the environment {self.name} failed on an answer: {printable(reply['failed'])}", remedy)
        return float(reply["score"])

    def close(self) -> None:
        with self._lock:
            self._kill()

    def _lose(self, error: Exception) -> float:
        self.lost, self._in_row = self.lost + 1, self._in_row + 1
        is_late = isinstance(error, TimeoutError)
        what = f"took more than {ANSWER_SECONDS:.0f} s" if is_late else "ended, or took too much memory,"
        if self._in_row >= MAX_IN_ROW:
            remedy = "try its rewards by themselves"
            raise DataError(f"the environment {self.name} {what} on {self._in_row} answers in a row", remedy)
        self._say(f"the environment {self.name} {what} on an answer, which counts as wrong ({self.lost} so far)")
        return 0.0

    def _start(self) -> None:
        arguments = json.dumps(self._arguments)
        command = python_command("-m", "sapo_edge.library.environment_process", self.name, arguments)
        self._process = start_piped(command, subprocess.DEVNULL)
        self._unpacker = msgpack.Unpacker(max_buffer_size=_MAX_REPLY)
        try:
            loaded = self._receive(START_SECONDS)
        except (OSError, EOFError) as error:
            self._kill()
            what = f"took more than {START_SECONDS:.0f} s to load" if isinstance(error, TimeoutError) else "ended"
            raise DataError(f"the environment {self.name} {what}", "try it by itself: vf-eval, or import it") from error
        if "refused" in loaded or "failed" in loaded:
            self._kill()
        if "refused" in loaded:
            remedy = "only environments with one turn and rewards of their own can be used"
            raise ConfigError(f"the environment {self.name} {printable(loaded['refused'])}", remedy)
        if "failed" in loaded:
            remedy = "check its name and arguments, and whether it is installed here"
            raise DataError(f"the environment {self.name} can't be loaded: {printable(loaded['failed'])}", remedy)

    def _send(self, request: object) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(msgpack.packb(request))
        self._process.stdin.flush()

    def _receive(self, seconds: float) -> Any:
        """The next reply; a TimeoutError after some seconds, an EOFError if the process has ended."""
        assert self._process is not None and self._process.stdout is not None
        output, limit = self._process.stdout, time.monotonic() + seconds
        while True:
            try:
                for reply in self._unpacker:
                    return reply
                if not select.select([output], [], [], max(0.0, limit - time.monotonic()))[0]:
                    raise TimeoutError
                if not (block := os.read(output.fileno(), 64 * 1024)):
                    raise EOFError
                self._unpacker.feed(block)
            except (ValueError, msgpack.UnpackException) as error:
                # Too much, or no reply of the process: as if it had ended.
                raise EOFError from error

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        # Its own session: what it has started goes with it.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, 9)
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()


class Environments(Mapping[str, Environment]):
    """The environments that a manifest names, each loaded when it is first needed.

    Args:
        agreed: whether the owner lets an environment of this name, with these arguments, run.
    """

    def __init__(self, names: frozenset[str], agreed: Callable[[str], bool], say: Callable[[str], None]) -> None:
        self._names = frozenset(name for name in names if name.startswith(CODE))
        self._agreed, self._say = agreed, say
        self._loaded: dict[str, Environment] = {}

    def __getitem__(self, code: str) -> Environment:
        if not code.startswith(CODE):
            raise KeyError(code)
        if code not in self._loaded:
            # With its arguments: a manifest of somebody else must not choose what the environment is told, either.
            named = code.removeprefix(CODE)
            if not self._agreed(named):
                remedy = "agree on a terminal, or once with `sapo tasks import env:NAME DIRECTORY --agree-code`"
                raise ConfigError(f"{printable(named)} is code that would run on this machine to judge answers", remedy)
            self._loaded[code] = Environment(code, self._say)
        return self._loaded[code]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def close(self) -> None:
        for environment in self._loaded.values():
            environment.close()


@contextmanager
def judging(
    manifest: Manifest | None, agreed: Callable[[str], bool], say: Callable[[str], None]
) -> Iterator[Mapping[str, Function]]:
    """The environments that a manifest names, loaded; they end with the block.

    None stands for no manifest, and for that of a swarm: what others send names no code.
    """
    if manifest is None:
        yield {}
        return
    with closing(Environments(manifest.functions, agreed, say)) as environments:
        for code in environments:
            # One that can't be used fails here, before a model is loaded.
            environments[code]
        yield environments


def agreed_code(file: Path) -> frozenset[str]:
    """Names of the environments that the owner has agreed to run, with their arguments."""
    return frozenset(_read(file))


def record_code(file: Path, name: str, how: str) -> None:
    """Record that an environment may run; `file` is in a directory that exists."""
    agreed = _read(file) | {name: {"time": time.time(), "how": how, "program": sapo_edge.__version__}}
    replace_file(file, json.dumps({"v": 1, "agreed": agreed}, indent=1).encode("ascii"))


def _read(file: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(read_bounded(file, _MAX_BYTES))["agreed"])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise StateError(f"{file} can't be read", "remove it; you are asked again") from error


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
