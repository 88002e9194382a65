"""How a command ends: its exit code, and what is said if it fails."""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

from sapo_edge.cli.output import discard_output
from sapo_edge.errors import ExitCode, SapoError
from sapo_edge.plain import narrate, printable
from sapo_edge.state.durable import state_error
from sapo_edge.state.logs import priority

_OF_A_PATH = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EIO,
)  # fmt: skip
"""What a path of the user's or the disk has, and no bug."""


def run_to_end(action: Callable[[], object]) -> int | str | None:
    """Run an action, which may return an exit code; print why it failed if it did, and return the documented code."""
    logging.lastResort = _LastResort(logging.WARNING)
    try:
        try:
            code = action() or ExitCode.DONE
        except BaseExceptionGroup as group:
            # Of trio's nurseries, in which Ctrl-C, a full disk or a reader that left may be met.
            from sapo_edge.swarm.tally import innermost

            raise innermost(group) from None
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except SystemExit as end:
        return end.code
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except SapoError as error:
        # It may name what strangers wrote: a model's file or template.
        print(f"{priority('error')}sapo: {printable(error, lines=True)}", file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package == "sapo_edge":
            raise
        print(f"sapo: the Python package {package!r} is not installed; {_remedy(package)}", file=sys.stderr)
        return ExitCode.FAILED
    except OSError as error:
        if error.errno in _OF_A_PATH and isinstance(error.filename, str | bytes):
            problem = state_error(error, "use", Path(os.fsdecode(error.filename)))
            print(f"{priority('error')}sapo: {printable(problem, lines=True)}", file=sys.stderr)
            return ExitCode.FAILED
        if error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        # After EPIPE nobody reads, so there is no message.
        if error.errno == errno.ENOSPC:
            print("sapo: the output can't be written, the disk is full; free some space on it", file=sys.stderr)
        discard_output()
        return ExitCode.FAILED
    return code if isinstance(code, int) else str(code)


class _LastResort(logging.Handler):
    """Narrates the warnings of a command that keeps no log; Python's own prints them as they are."""

    def emit(self, record: logging.LogRecord) -> None:
        narrate(self.format(record))


def _remedy(package: str) -> str:
    """All that the missing package's extra brings: who lacks one lacks the others."""
    # Reads what is installed, which takes a good part of a command's start.
    from sapo_edge.installing import extra_of, how_to_install, how_to_install_extra

    extra = extra_of(package)
    return how_to_install(package) if extra is None else f"{how_to_install_extra(extra)} (the extra `{extra}`)"
