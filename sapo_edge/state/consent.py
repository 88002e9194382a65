"""The owner's consent to share with a swarm, kept in the state directory with its date and the version of the terms."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import sapo_edge
from sapo_edge.state.durable import read_bounded, reported, write_atomically

TERMS = 1
"""Version of what `docs/privacy.md` says is shared. A higher one asks every owner again."""
_VERSION = 1
_MAX_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Agreement:
    """A recorded consent.

    Attributes:
        terms: version of what was agreed to.
        program: version of the program that asked.
        time: Unix seconds.
        how: where it was given: "first screen", "terminal app", "terminal", "--agree", or the source of the setting
            `consent`.
        sharing: false if who gave it chose to work alone: that agrees to learning on this machine, and to no more.
    """

    terms: int
    program: str
    time: float
    how: str
    sharing: bool


def read_consent(file: Path) -> Agreement | None:
    """The consent in a file; None if there is none, or it was to other terms than today's."""
    try:
        record = json.loads(read_bounded(file, _MAX_BYTES))
        agreement = Agreement(
            int(record["terms"]),
            str(record["program"]),
            float(record["time"]),
            str(record["how"]),
            record.get("agreed", {}).get("network") != "solo",
        )
        return agreement if record["v"] == _VERSION and agreement.terms == TERMS else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def agreed_to_share(file: Path) -> bool:
    """Whether the owner has agreed to share, in words that are today's."""
    agreement = read_consent(file)
    return agreement is not None and agreement.sharing


def write_consent(file: Path, how: str, choices: Mapping[str, object] | None = None) -> None:
    """Record the consent to today's terms, and what else was chosen then; `file` is in a directory that exists."""
    record = {
        "v": _VERSION, "terms": TERMS, "program": sapo_edge.__version__, "time": time.time(), "how": how,
        "agreed": dict(choices or {}),
    }  # fmt: skip
    with reported("write", file):
        # Root writes it for a service, whose user may have put a link there.
        if file.is_symlink():
            file.unlink()
        write_atomically(file, json.dumps(record, indent=1).encode("ascii"))
