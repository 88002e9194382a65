"""The owner's consent to share with a swarm, kept in the state directory with its date and the version of the terms."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

import sapo_edge
from sapo_edge.fields import check_map
from sapo_edge.state.durable import read_bounded, reported, write_atomically

TERMS = 1
"""Version of what `docs/privacy.md` says is shared. A higher one asks every owner again."""
_VERSION = 1
_MAX_BYTES = 64 * 1024


def agreed_to_share(file: Path) -> bool | None:
    """Whether the owner has agreed to share; False for one who chose to work alone on this machine.

    None without a consent, or with one to other terms than today's.
    """
    try:
        record = check_map("consent", json.loads(read_bounded(file, _MAX_BYTES)))
        is_current = record["v"] == _VERSION and record["terms"] == TERMS
        return check_map("agreed", record.get("agreed", {})).get("network") != "solo" if is_current else None
    except (OSError, ValueError, KeyError, RecursionError):
        return None


def write_consent(file: Path, how: str, choices: Mapping[str, object] | None = None) -> None:
    """Record the consent to today's terms, and what else was chosen then.

    Args:
        file: in a directory that exists.
        how: where it was given: "first screen", "terminal app", "terminal", "--agree", or the source of the setting
            `consent`.
    """
    record = {
        "v": _VERSION, "terms": TERMS, "program": sapo_edge.__version__, "time": time.time(), "how": how,
        "agreed": dict(choices or {}),
    }  # fmt: skip
    with reported("write", file):
        # Root writes it for a service, whose user may have put a link there.
        if file.is_symlink():
            file.unlink()
        write_atomically(file, json.dumps(record, indent=1).encode("ascii"))
