"""Settings in words: groups, values, sources, and what of them a running node does not have yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sapo_edge.plain import printable
from sapo_edge.tui.node.launcher import SettingRow

GROUPS: Mapping[str, tuple[str, ...]] = {
    "What is trained": ("manifest", "model", "backend", "role", "seed"),
    "The round": (
        "own", "external", "questions", "answers", "strategy", "rounds", "temperature", "max_tokens", "evaluate_every",
        "held_out", "keep_checkpoints",
    ),
    "Learning": (
        "learning_rate", "warmup", "decay_after", "epochs", "kl", "clip_low", "clip_high", "importance_cap",
        "max_gradient_norm", "rank", "alpha",
    ),
    "Care for the machine": ("threads", "nice", "on_battery", "max_temperature", "busy", "quiet_hours"),
    "Network": ("network", "port", "listen", "mdns", "bootstrap", "share", "upload", "download"),
    "This app": ("on_quit", "theme"),
}  # fmt: skip
"""Settings by subject; one that stands in none of them is shown behind them."""
OTHER = "Others"
"""The group of those."""
APP = frozenset(GROUPS["This app"])
"""Settings that no node uses."""
RUN = frozenset(("manifest", "model", "seed", "rank", "alpha"))
"""Settings that belong to the state: a node that goes on refuses another value."""

Value = int | float | str | None


def grouped(rows: Iterable[SettingRow], search: str = "") -> list[tuple[str, list[SettingRow]]]:
    """The settings by subject, those alone that a search finds."""
    left = {row.name: row for row in rows if matches(row, search)}
    groups = [
        (title, [left.pop(name) for name in names if name in left])
        for title, names in GROUPS.items()
    ]  # fmt: skip
    return [(title, found) for title, found in [*groups, (OTHER, list(left.values()))] if found]


def matches(row: SettingRow, search: str) -> bool:
    """Whether every word of a search occurs in a setting's name, value, source or explanation."""
    told = f"{row.name} {row.value} {row.source} {row.explanation}".casefold()
    return all(word in told for word in search.casefold().replace("-", "_").split()) or search.casefold() in told


def shown(value: Value, unit: str = "") -> str:
    """A value for people."""
    match value:
        case None:
            return "none"
        case "":
            return "empty"
        case int() | float():
            return f"{value} {unit}".rstrip()
    return printable(value)


def origin(row: SettingRow) -> str:
    """In a word where a value comes from."""
    kind = row.source.partition(" ")[0]
    return "config.toml" if kind == "file" else printable(kind)


def stronger(row: SettingRow) -> str:
    """What goes before the file for this setting; "" if nothing does."""
    return printable(row.source) if origin(row) in ("environment", "flag") else ""


def waiting(row: SettingRow, running: Mapping[str, Any]) -> tuple[str, str] | None:
    """What the running node has and what it would have after a restart; None if that is the same or unknown."""
    if row.name in APP or row.name not in running or running[row.name] == row.value:
        return None
    return shown(running[row.name], row.unit), shown(row.value, row.unit)


def applies(row: SettingRow) -> str:
    """When a new value counts."""
    if row.name in APP:
        return "at once, in this app"
    if row.live:
        return "a running node takes it from its next round on"
    if row.name in RUN:
        return "belongs to the run: a node that goes on refuses another value"
    return "at the next start of the node"
