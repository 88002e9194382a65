"""Every error a user can meet, and the exit code each one ends with.

An error says what happened, what it means, and what to do next: `message` and `remedy`. The command line prints both
on one line and exits with `exit_code`; nothing else in the project decides exit codes.
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
    """Base of all errors that are shown to the user without a traceback.

    Args:
        message: what happened, in one sentence without a final full stop.
        remedy: what to do next, in one sentence without a final full stop.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.FAILED

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}"


class ConfigError(SapoError):
    """A setting, a flag or a configuration file is wrong."""

    exit_code = ExitCode.USAGE


class ManifestError(SapoError):
    """A manifest can't be read, or asks for something outside its bounds."""

    exit_code = ExitCode.USAGE


class UnknownGeneratorError(ManifestError):
    """A manifest names a task generator that is not on the allow-list."""


class UnknownTaskError(SapoError):
    """A task reference points at nothing that this manifest can make."""


class ModelError(SapoError):
    """A model file is missing, truncated, of another format, or not supported."""


class BackendError(SapoError):
    """A backend is not installed or can't run on this host."""


class StateError(SapoError):
    """The state directory can't be read or written, or holds something else."""


class StateLockedError(StateError):
    """Another node uses this state directory."""


class CheckpointError(StateError):
    """A checkpoint is incomplete, damaged, or belongs to another model."""


class NoNodeError(SapoError):
    """A command needs a running node and there is none."""

    exit_code = ExitCode.NO_NODE


class Cancelled(SapoError):  # noqa: N818 -- what happened, as in trio and asyncio
    """The user stopped the work in progress; raised between decode steps and between groups."""

    exit_code = ExitCode.INTERRUPTED

    def __init__(self) -> None:
        super().__init__(
            "stopped before the round was finished", "run the same command again to go on from the last checkpoint"
        )
