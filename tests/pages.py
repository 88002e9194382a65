"""The parts of the documents that the program itself says: `python -m tests.pages` renews them.

Each stands in a page between `<!-- NAME: begin -->` and `<!-- NAME: end -->`; `tests/unit/test_docs.py` compares.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import typer.main

from sapo_edge.cli.main import app
from sapo_edge.cli.options import Adapter, Backend, Home, Json, JsonEvents, ManifestName, Model, Set, Threads
from sapo_edge.config.settings import SETTINGS
from sapo_edge.tasks.allowed import ALLOWED, EVALUATING, IRREPRODUCIBLE, Choice, Choices, Flag, Integer, Real
from sapo_edge.tasks.verifiers import OWN_VERIFIERS
from sapo_edge.tui.glossary import GLOSSARY
from tests.benchmarks import catalogue

DOCS = Path(__file__).resolve().parents[1] / "docs"
SHARED: tuple[Any, ...] = (Home, Json, JsonEvents, Model, ManifestName, Backend, Threads, Adapter, Set)
"""Options of many commands: explained once."""
USUAL: tuple[Any, ...] = (Home, Json)
"""Options of nearly all commands: named once, with the commands that lack them."""
WORDS = {int: "N", float: "X", Path: "PATH", str: "TEXT"}
"""What stands for a value of a type."""


def commands(command: Any = None, path: str = "sapo") -> Iterator[tuple[str, Any]]:
    """Every command that does something, by what the user types."""
    command = command or typer.main.get_command(app)
    if hasattr(command, "commands"):
        for name, child in command.commands.items():
            yield from commands(child, f"{path} {name}")
    else:
        yield path, command


def command_list() -> str:
    shared, usual = (
        {option.__metadata__[0].help: option.__metadata__[0].default for option in options}
        for options in (SHARED, USUAL)
    )
    program: Any = typer.main.get_command(app)
    lines, panel = [], ""
    for path, command in commands():
        heading = program.commands[path.split()[1]].rich_help_panel
        if heading != panel:
            lines += [f"## {heading}", ""]
        panel = heading
        lines += [f"### `{path}`", "", " ".join((command.help or "").split()), ""]
        options = [_parameter(item) for item in command.params if item.help not in shared and item.name != "help"]
        common = [f"`{shared[item.help]}`" for item in command.params if item.help in shared.keys() - usual.keys()]
        lines += [*options, *([f"- {', '.join(common)}"] if common else []), *([""] if options or common else [])]
    return "\n".join(lines).rstrip()


def shared_options() -> str:
    lines = []
    for option in SHARED:
        name, text = option.__metadata__[0].default, option.__metadata__[0].help
        if option in USUAL:
            lacking = [path for path, command in commands() if text not in {item.help for item in command.params}]
            text = f"{text} All but {', '.join(f'`{path}`' for path in lacking)}."
        lines.append(f"- `{name}`: {text}")
    return "\n".join(lines)


def _parameter(item: Any) -> str:
    kind = item.type_descriptor.annotation
    if item.param_type_name == "argument":
        name = item.metavar or item.name.upper()
        name = name if item.required else f"[{name}]"
    elif item.is_flag:
        name = "`, `".join([*item.opts, *item.secondary_opts])
    else:
        is_enum = isinstance(kind, type) and issubclass(kind, enum.Enum)
        value = "|".join(str(choice.value) for choice in kind) if is_enum else WORDS.get(kind, "TEXT")
        name = f"{item.opts[0]} {item.metavar or value}"
    notes = [f"{item.min} to {item.max}"] if item.min is not None and item.max is not None else []
    if item.default not in (None, "", ()) and not isinstance(item.default, bool):
        notes.append(f"default {getattr(item.default, 'value', item.default)}")
    text = " ".join((item.help or "").split())
    if notes:
        text = f"{text.removesuffix('.')} ({'; '.join(notes)})."
    return f"- `{name}`: {text}" if text else f"- `{name}`"


def setting_list() -> str:
    lines = []
    for item in SETTINGS.values():
        default = "" if item.default is None else str(item.default) or "empty"
        allowed = re.sub(r"^(an integer|a number|one of) (from )?", "", item.allowed)
        allowed = "" if allowed == "text" else f"{allowed} {item.unit}".rstrip()
        notes = "; ".join(filter(None, (allowed, "live" if item.live else "")))
        shown = f" ({default})" if default else ""
        lines.append(f"- `{item.name}`{shown}: {item.explanation}{f' *{notes}*' if notes else ''}")
    return "\n".join(lines)


def glossary() -> str:
    return "\n".join(f"- **{name}**: {term.meaning}" for name, term in GLOSSARY.items())


def generator_table() -> str:
    """The allow-list; pairs of a least and a most value with the same bounds are one entry."""
    lines = ["| Generator | Settings, with bounds and default |", "|---|---|"]
    for name, settings in ALLOWED.items():
        shown: dict[str, str] = {}
        for key, bound in settings.items():
            pair = key.replace("max_", "min_", 1)
            before = settings.get(pair)
            if key != pair and isinstance(bound, Integer | Real) and _same_range(before, bound):
                shown[pair] = f"`{pair}`, `{key}` {_range(bound)} ({_number(before)}, {_number(bound)})"
            else:
                shown[key] = f"`{key}` {_describe(bound)}"
        lines.append(f"| `{name}`{' (own)' if name in OWN_VERIFIERS else ''} | {'; '.join(shown.values()) or 'none'} |")
    return "\n".join(lines)


def _same_range(one: Any, other: Integer | Real) -> bool:
    return type(one) is type(other) and (one.low, one.high) == (other.low, other.high)


def _range(bound: Integer | Real) -> str:
    return f"{bound.low} to {bound.high}" if isinstance(bound, Integer) else f"real, {bound.low:g} to {bound.high:g}"


def _number(bound: Any) -> str:
    return str(bound.default) if isinstance(bound, Integer) else f"{bound.default:g}"


def _describe(bound: Integer | Real | Flag | Choice | Choices) -> str:
    if isinstance(bound, Integer | Real):
        return f"{_range(bound)} ({_number(bound)})"
    if isinstance(bound, Flag):
        return f"true or false ({str(bound.default).lower()})"
    options = ", ".join(f"`{option}`" for option in bound.options)
    if isinstance(bound, Choice):
        return f"{options} (`{bound.default}`)"
    default = "all" if bound.default == bound.options else ", ".join(f"`{option}`" for option in bound.default)
    return f"some of {options} ({default})"


def refused_list() -> str:
    """Generators that are refused by name, by the reason."""
    evaluates = "evaluates text as code, in its verifier or while it makes a task"
    reasons: dict[str, list[str]] = {evaluates: sorted(EVALUATING)}
    for name, reason in IRREPRODUCIBLE.items():
        reasons.setdefault(reason, []).append(name)
    return "\n".join(f"- {', '.join(f'`{name}`' for name in names)}: {reason}" for reason, names in reasons.items())


PARTS: Mapping[str, tuple[str, Callable[[], str]]] = {
    "commands": ("commands.md", command_list),
    "shared options": ("commands.md", shared_options),
    "settings": ("settings.md", setting_list),
    "words": ("glossary.md", glossary),
    "generators": ("tasks.md", generator_table),
    "refused": ("tasks.md", refused_list),
    "models": ("models.md", catalogue.table),
}
"""The page of each part, and what it says."""


def with_part(text: str, name: str, part: str) -> str:
    """A page with a part as the program says it now."""
    begin, end = f"<!-- {name}: begin -->\n\n", f"\n<!-- {name}: end -->"
    head, _, rest = text.partition(begin)
    _, ended, tail = rest.partition(end)
    if not ended:
        raise ValueError(f"a page lacks {begin.strip()} and {end}")
    return f"{head}{begin}{part}\n{end}{tail}"


def main() -> None:
    for name, (page, make) in PARTS.items():
        path = DOCS / page
        path.write_text(with_part(path.read_text("utf-8"), name, make()), "utf-8")


if __name__ == "__main__":
    main()
