#!/usr/bin/env python3
"""Writes the manual page, from the same source as `--help`: `.venv/bin/python packaging/manual.py > sapo.1`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import typer

import sapo_edge
from sapo_edge.cli.main import app
from sapo_edge.errors import ExitCode

_CODES: Mapping[ExitCode, str] = {
    ExitCode.DONE: "done",
    ExitCode.FAILED: "the command failed",
    ExitCode.USAGE: "a flag, a setting or a file of settings is wrong",
    ExitCode.NO_NODE: "the command needs a running node, and none answers",
    ExitCode.INTERRUPTED: "stopped immediately",
}


def page(program: Any) -> str:
    """The manual page of a program in roff, with every command and option."""
    lines = [
        f'.TH SAPO 1 "" "sapo-edge {sapo_edge.__version__}" "User Commands"',
        ".SH NAME",
        "sapo \\- post\\-train a small language model, alone or in a swarm that shares rollouts",
        ".SH SYNOPSIS",
        ".B sapo",
        "[\\fIcommand\\fR] [\\fIoption\\fR ...]",
        ".SH DESCRIPTION",
        *_paragraphs(program.help or ""),
        *_options(program),
        ".SH COMMANDS",
    ]
    for path, command in _commands(program, "sapo"):
        arguments = [_name(parameter) for parameter in _of_kind(command, "argument")]
        lines += [f".SS {_escaped(' '.join([path, *arguments]))}", *_paragraphs(command.help or ""), *_options(command)]
    lines.append(".SH EXIT STATUS")
    for code, meaning in _CODES.items():
        lines += [".TP", f".B {code.value}", _escaped(meaning)]
    return "\n".join(lines)


def _commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every command that does something, by what the user types."""
    for name, child in getattr(command, "commands", {}).items():
        if hasattr(child, "commands"):
            yield from _commands(child, f"{path} {name}")
        elif not child.hidden:
            yield f"{path} {name}", child


def _of_kind(command: Any, kind: str) -> list[Any]:
    return [parameter for parameter in command.params if parameter.param_type_name == kind]


def _name(parameter: Any) -> str:
    text = str(parameter.name).upper()
    return text if parameter.required else f"[{text}]"


def _options(command: Any) -> list[str]:
    lines: list[str] = []
    for option in _of_kind(command, "option"):
        names = ", ".join(f"\\fB{_escaped(name)}\\fR" for name in (*option.opts, *option.secondary_opts))
        value = "" if option.is_flag else f" \\fI{_escaped(option.metavar or option.name.upper())}\\fR"
        lines += [".TP", names + value, *(_paragraphs(option.help or "") or [""])]
    return lines


def _paragraphs(text: str) -> list[str]:
    parts = [" ".join(part.split()) for part in text.split("\n\n")]
    return [line for part in parts if part for line in (".PP", _escaped(part))][1:]


def _escaped(text: str) -> str:
    """Text that roff prints as it is."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    # A line that begins with a full stop or an apostrophe would be a request.
    return re.sub(r"^(?=[.'])", r"\\&", escaped)


if __name__ == "__main__":
    print(page(typer.main.get_command(app)))
