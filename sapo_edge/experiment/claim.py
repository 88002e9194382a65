"""The file by which a directory of results belongs to one experiment: its numbers, and what it was made with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sapo_edge.errors import StateError
from sapo_edge.experiment.files import reported
from sapo_edge.experiment.plan import Plan
from sapo_edge.state.durable import write_atomically

PLAN = "plan.json"
_REMEDY = "give another directory with --to"
_SHARED = ("scale", "manifest", "model", "backend", "threads", "learning")


def check_claim(directory: Path, plan: Plan) -> dict[str, str]:
    """Check that a directory holds no other experiment.

    Returns:
        What its results were made with, by name: digests of the manifest and of the models, the backend.

    Raises:
        StateError: if it does, or its plan can't be read or is damaged.
    """
    path = directory / PLAN
    if not path.is_file():
        return {}
    with reported("read", path):
        data = path.read_bytes()
    try:
        content = json.loads(data)
        digest, earlier, origin = content["digest"], content["plan"], content.get("origin", {})
        if digest != plan.digest:
            names = _differing(earlier, json.loads(json.dumps(asdict(plan))))
            raise StateError(f"{directory} holds an experiment with another {names}", _REMEDY)
        return {str(name): str(value) for name, value in origin.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StateError(f"{path} is damaged", _REMEDY) from error


def claim(directory: Path, plan: Plan, origin: Mapping[str, str] | None = None) -> None:
    """Make the directory that of a plan, or check that it is. Only one process at a time may call it.

    Args:
        directory: of the results; created.
        plan: of the experiment; seeds, settings and arms may differ from those of earlier calls.
        origin: what the results are made with, by name; adds to what is known. The same file name or setting can stand
            for another manifest or model later, whose results must not be mixed with these.

    Raises:
        StateError: if it holds another experiment, was made with something else, or can't be written.
    """
    known = check_claim(directory, plan)
    added = dict(origin or {})
    for name in sorted(known.keys() & added.keys()):
        if known[name] != added[name]:
            raise StateError(f"{directory} was made with another {name}", _REMEDY)
    content = {"digest": plan.digest, "origin": {**known, **added}, "plan": asdict(plan)}
    with reported("write", directory):
        directory.mkdir(parents=True, exist_ok=True)
        write_atomically(directory / PLAN, json.dumps(content, indent=1).encode() + b"\n", mode=0o644)


def _differing(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    return (
        " and ".join(name for name in _SHARED if name in earlier and earlier[name] != now[name])
        or "version of sapo-edge"
    )
