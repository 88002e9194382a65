"""What a command works on, with what takes time told to its user."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from sapo_edge.errors import ConfigError
from sapo_edge.library.workspace import Workspace
from sapo_edge.library.workspace import open_workspace as open_silent_workspace


def open_workspace(
    home: Path | None,
    flags: Mapping[str, object] | None = None,
    assignments: Iterable[str] | None = None,
    *,
    needs_manifest: bool = True,
) -> Workspace:
    """Resolve what a command works on, `--set` assignments too: see `sapo_edge.library.workspace.open_workspace`."""
    values = dict(flags or {})
    assigned = {name.replace("-", "_"): value for name, value in parse_assignments(assignments or ()).items()}
    for name in assigned:
        if values.get(name) is not None:
            raise ConfigError(f"{name} is given twice", "leave one of them out")
    return open_silent_workspace(home, values | assigned, narrates=True, needs_manifest=needs_manifest)


def parse_assignments(assignments: Iterable[str], flag: str = "--set") -> dict[str, str]:
    """Names and values of a flag that is repeated; of one name the last value counts."""
    pairs = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise ConfigError(f"{flag} {assignment} has no value", f"write it as {flag} name=value")
        pairs[name.strip()] = value.strip()
    return pairs
