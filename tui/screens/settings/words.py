"""Settings in words: groups, values, sources, and which of them need a restart of the node."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from sapo_edge.errors import ConfigError
from sapo_edge.plain import printable, size
from sapo_edge.tui.node.launcher import SettingRow

FIRST: Mapping[str, tuple[str, ...]] = {
    "Sharing": ("network", "consent", "upload", "download"),
    "Power and hours": ("on_battery", "quiet_hours", "busy", "max_temperature", "threads", "memory"),
    "The run": ("rounds", "manifest", "model"),
    "This app": ("on_quit", "desktop_notice", "theme"),
}
"""Names of the settings that owners change first, by subject."""
ADVANCED: Mapping[str, tuple[str, ...]] = {
    "The model": ("backend", "sampler", "quantise", "precision", "thinking", "role", "seed", "nice"),
    "The round": (
        "own", "external", "protect", "answers", "strategy", "temperature", "max_tokens",
        "evaluate_every", "held_out", "keep_checkpoints", "save_every", "curves",
    ),
    "Learning": (
        "head_start", "corrections", "learning_rate", "warmup", "decay_after", "external_negatives", "rank", "alpha",
    ),
    "Connections": (
        "port", "listen", "mdns", "rendezvous", "port_mapping", "relay", "bootstrap", "share", "metrics_port",
    ),
}  # fmt: skip
"""Names of the others by subject; settings without a subject follow."""
OTHER = "Others"
"""The title of settings without a subject."""
APP = frozenset(FIRST["This app"])
"""Settings of the app alone."""
RUN = frozenset(("manifest", "model", "seed", "rank", "alpha"))
"""Settings of a run: a node refuses to continue it with another value."""
_SPECIAL = re.compile(r"(?:^|[.;] )(0|Empty): ([^.;]+)")
"""What 0 or an empty text means, in the words of a setting's explanation."""

NOTHING = ("never", "unlimited", "no limit", "none", "off", "until stopped")
"""Words for a special value that switches something off."""
AUTOMATIC = ("automatic", "auto")
"""Words for one that leaves the choice to the program."""
_SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*(k|m|g)b?(?:/s)?", re.IGNORECASE | re.ASCII)
_FACTORS = {"k": 10**3, "m": 10**6, "g": 10**9}

Value = int | float | str | None


def grouped(
    rows: Iterable[SettingRow], search: str = "", *, advanced: bool = True
) -> list[tuple[str, list[SettingRow]]]:
    """The settings by subject; advanced ones that have their default only if `advanced`, or if a search finds them."""
    remaining = {row.name: row for row in rows if matches(row, search)}
    first = [(title, [remaining.pop(name) for name in names if name in remaining]) for title, names in FIRST.items()]
    if not (advanced or search):
        remaining = {name: row for name, row in remaining.items() if row.source != "default"}
    rest = [(title, [remaining.pop(name) for name in names if name in remaining]) for title, names in ADVANCED.items()]
    return [(title, members) for title, members in [*first, *rest, (OTHER, list(remaining.values()))] if members]


def matches(row: SettingRow, search: str) -> bool:
    """Whether name, value, source or explanation of a setting contain every word of a search; "changed" finds those."""
    mark = "" if row.source == "default" else "changed"
    values = f"{row.value} {value_text(row, row.value)}"
    text = f"{row.name} {values} {row.source} {mark} {row.setting.explanation}".casefold()
    return all(word in text for word in search.casefold().replace("-", "_").split()) or search.casefold() in text


def format_value(value: Value, unit: str = "") -> str:
    match value:
        case None:
            return "none"
        case "":
            return "empty"
        case int() | float() if unit == "bytes/s":
            return f"{size(value)}/s"
        case int() | float():
            return f"{value} {unit}".rstrip()
    return printable(value)


def value_text(row: SettingRow, value: Value) -> str:
    """A value of a setting as text; a special one in the words of the explanation: "no limit" for 0."""
    special = specials(row)
    return special[value] if value in ("", 0) and value in special else format_value(value, row.setting.unit)


def specials(row: SettingRow) -> dict[Value, str]:
    """What 0 or an empty text means for a setting, in words; empty if they mean nothing special."""
    return {"" if name == "Empty" else 0: words for name, words in _SPECIAL.findall(row.setting.explanation)}


def typed_value(row: SettingRow, text: str) -> str:
    """What the user means by a typed text, as on a command line.

    The words of a special value mean that value, also common ones; "2 MB/s" means 2000000 bytes/s.
    """
    text = text.strip()
    for value, words in specials(row).items():
        synonyms = NOTHING if words.startswith(("never", "no ", "none", "run until")) else AUTOMATIC
        if text.casefold() in (words.casefold(), *synonyms):
            return str(value)
    if row.setting.unit == "bytes/s" and (match := _SIZE.fullmatch(text)):
        return str(round(float(match[1]) * _FACTORS[match[2].casefold()]))
    return text


def allowed(row: SettingRow) -> str:
    unit = f", in {row.setting.unit}" if row.setting.unit and not row.setting.choices else ""
    return f"{row.setting.allowed}{unit}{', or as 2 MB/s' if row.setting.unit == 'bytes/s' else ''}"


def problem(row: SettingRow, text: str) -> str:
    """What is wrong with a typed value, regardless of the other settings; "" if nothing."""
    if not text.strip():
        return ""
    try:
        row.setting.check(typed_value(row, text), "typed here")
    except ConfigError as error:
        return error.remedy
    return ""


def is_text(row: SettingRow) -> bool:
    """Whether an empty text is a value; else it restores the default."""
    return isinstance(row.setting.default, str)


def origin(row: SettingRow) -> str:
    kind = row.source.partition(" ")[0]
    return "config.toml" if kind == "file" else printable(kind)


def override(row: SettingRow) -> str:
    """The source that overrides the file for this setting, or ""."""
    return printable(row.source) if origin(row) in ("environment", "flag") else ""


def pending(row: SettingRow, running: Mapping[str, Any]) -> tuple[str, str] | None:
    """The values in the running node and after a restart; None if they are equal or unknown."""
    if row.name in APP or row.name not in running or running[row.name] == row.value:
        return None
    return value_text(row, running[row.name]), value_text(row, row.value)


def applies(row: SettingRow) -> str:
    if row.name in APP:
        return "immediately, in this app"
    if row.setting.live:
        return "from the next round of a running node"
    if row.name in RUN:
        return "only in a new run: a node refuses to continue a run with another value"
    return "at the next start of the node"
