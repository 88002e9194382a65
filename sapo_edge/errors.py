"""Errors that users see, each with its exit code.

An error says what happened (`message`) and what to do next (`remedy`). The command line prints both on one line and
exits with `exit_code`. `cli/ending.py` and `cli/main.py` decide all other exit codes, `cli/run.py` that of a node that
was stopped.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """Exit codes of every command, as documented in `docs/commands.md`."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NO_NODE = 3
    INTERRUPTED = 130


class SapoError(Exception):
    """Base of all errors that users see without a traceback.

    Args:
        message: what happened; one sentence without a full stop.
        remedy: what to do next; one sentence without a full stop.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.FAILED

    def __init__(self, message: str, remedy: str) -> None:
        # Both, so that another process can unpickle it.
        super().__init__(message, remedy)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}"


class ConfigError(SapoError):
    """A setting, a flag or a configuration file is wrong."""

    exit_code = ExitCode.USAGE


class ConfigFileError(ConfigError):
    """The operating system can't read or write the configuration file."""

    exit_code = ExitCode.FAILED


class ManifestError(SapoError):
    """A manifest can't be read, or has a value outside its bounds."""

    exit_code = ExitCode.USAGE


class UnknownTaskError(SapoError):
    """A task reference from which this manifest can't generate a task."""


class ModelError(SapoError):
    """A model file is missing, truncated, of another format, or not supported."""


class DataError(SapoError):
    """A data set can't be found, downloaded or read, or says nothing that can be asked."""


class BackendError(SapoError):
    """A backend is not installed or can't run on this computer."""


class StateError(SapoError):
    """The state directory, or a file in it, can't be read or written or is damaged."""


class StateLockedError(StateError):
    """Another node, the process `holder` if it is known, uses this state directory."""

    def __init__(self, message: str, remedy: str, holder: int | None = None) -> None:
        super().__init__(message, remedy)
        self.holder = holder


class CheckpointError(StateError):
    """A checkpoint is incomplete, damaged, or belongs to another model."""


class NoNodeError(SapoError):
    """A command needs a running node, but none runs."""

    exit_code = ExitCode.NO_NODE


class Cancelled(SapoError):  # noqa: N818 -- named as in trio and asyncio
    """The user cancelled the work; raised between decode steps and between groups."""

    exit_code = ExitCode.INTERRUPTED

    def __init__(self) -> None:
        super().__init__(
            "stopped before the round was finished", "run the same command again to resume from the last checkpoint"
        )
