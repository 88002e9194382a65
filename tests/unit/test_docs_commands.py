"""Every `sapo ...` in the documents is understood by the program: command, flags, values, number of arguments."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.exceptions import TyperException

from sapo_edge.cli.main import app
from sapo_edge.config.settings import SETTINGS
from sapo_edge.errors import ConfigError
from tests.unit.test_docs import DOCUMENTS, FENCE, ROOT, name_of

ROOT_COMMAND: Any = typer.main.get_command(app)
# What is in CHANGELOG.md was right when it was written.
CURRENT = [document for document in DOCUMENTS if document.name != "CHANGELOG.md"]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
TARGETS = " ".join(re.findall(r"^([a-z][\w -]*):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)).split()
INLINE = re.compile(r"`((?:sudo |\.venv/bin/)?sapo(?:\s[^`]*)?)`")
PLACEHOLDER = re.compile(r"[A-Z]|\.\.\.")
"""Words that stand for others: `FILE`, `S`, `...`."""


def written(text: str) -> Iterator[tuple[str, bool]]:
    """Each line to type in a document's examples, and whether it is whole: in a sentence it may be a part."""
    for kind, fence in FENCE.findall(text):
        if kind in ("sh", "console"):
            lines = fence.replace("\\\n", " ").splitlines()
            yield from ((line.removeprefix("$ "), True) for line in lines if kind == "sh" or line.startswith("$ "))
    yield from ((" ".join(line.split()), False) for line in INLINE.findall(FENCE.sub("", text)))


def typed(line: str) -> Iterator[list[str]]:
    """The words after each `sapo` of a line of shell."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if not set(word) <= set("();<>|&"):
            words.append(word)
            continue
        names = [index for index, name in enumerate(words) if name in ("sapo", ".venv/bin/sapo")]
        if names:
            # The last one: a user or a container may have the same name.
            yield words[names[-1] + 1 :]
        words = []


def problem(words: list[str], *, is_whole: bool) -> str:
    """What the program does not understand, without running anything; "" if it understands all."""
    command: Any = ROOT_COMMAND
    while True:
        context = command.context_class(command)
        try:
            values, words, _ = command.make_parser(context).parse_args(words)
        except TyperException as error:
            return error.format_message()
        parameters = {parameter.name: parameter for parameter in command.params}
        missing = [name for name, item in parameters.items() if item.required and not values.get(name)]
        if is_whole and missing:
            return f"{missing[0]} is missing"
        for name, value in values.items():
            for text in value if isinstance(value, list | tuple) else [value]:
                if isinstance(text, str) and (wrong := wrong_value(parameters[name], text)):
                    return wrong
        children = getattr(command, "commands", None)
        if children is None:
            setting = values.get("name") if context.command is SET else None
            if setting and (wrong := wrong_setting(setting, values["value"])):
                return wrong
            return f"{words} is too much" if words else ""
        if not words or words == ["..."]:
            return ""
        name, *words = words
        if name not in children:
            return f"there is no {name!r}"
        command = children[name]


SET = ROOT_COMMAND.commands["config"].commands["set"]


def wrong_value(parameter: Any, text: str) -> str:
    """Why a parameter can't have a value; "" if it can, or if the value stands for another."""
    annotation = parameter.type_descriptor.annotation
    if parameter.name == "settings":
        return wrong_setting(*text.partition("=")[::2])
    if PLACEHOLDER.search(text) or not isinstance(annotation, type):
        return ""
    try:
        if parameter.name in SETTINGS:
            return wrong_setting(parameter.name, text)
        if annotation not in (str, bool, Path):
            annotation(text)
    except ValueError as error:
        return str(error)
    return ""


def wrong_setting(name: str, value: str | None) -> str:
    if PLACEHOLDER.search(name):
        return ""
    if name.replace("-", "_") not in SETTINGS:
        return f"there is no setting {name!r}"
    try:
        if value and not PLACEHOLDER.search(value):
            SETTINGS[name.replace("-", "_")].check(value, "document")
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("document", CURRENT, ids=name_of)
def test_commands_in_the_documents_are_understood(document: Path) -> None:
    lines = written(document.read_text("utf-8"))
    checked = [(words, problem(words, is_whole=is_whole)) for line, is_whole in lines for words in typed(line)]
    assert not [f"sapo {' '.join(words)}: {wrong}" for words, wrong in checked if wrong]
    assert checked or name_of(document) not in ("README.md", "docs/start.md", "docs/help.md")


@pytest.mark.parametrize("document", CURRENT, ids=name_of)
def test_what_other_commands_name_exists(document: Path) -> None:
    text = document.read_text("utf-8")
    files = [ROOT / name.replace(".", "/") for name in re.findall(r"-m (tests(?:\.\w+)+)", text)]
    assert not [path for path in files if not path.with_suffix(".py").exists() and not (path / "__main__.py").exists()]
    assert not [name for name in re.findall(r"\bpackaging/[\w-]+\.\w+", text) if not (ROOT / name).exists()]
    assert not [name for name in re.findall(r"(?:^|`)make ([a-z][\w-]*)", text, re.MULTILINE) if name not in TARGETS]
    named = ",".join(re.findall(r"(?:'\.|\.whl|sapo-edge|\+core)\[([\w,]+)\]", text)).split(",")
    assert not [name for name in named if name and name not in EXTRAS]


@pytest.mark.parametrize(("line", "wrong"), [
    ("sapo swarm creat", "creat"),
    ("sapo run --solos", "--solos"),
    ("sudo -u sapo sapo --home /data run --rounds many", "many"),
    ("echo 1 | sapo chat --temperature hot", "hot"),
    ("sapo export my-model && true", "to"),
    ("sapo export --to onnx my-model", "onnx"),
    ("sapo run --set own=none", "own"),
    ("sapo config set ports 4001", "ports"),
    ("sapo config set port high", "port"),
    ("sapo status now", "too much"),
])  # fmt: skip
def test_a_command_that_is_not_understood_is_found(line: str, wrong: str) -> None:
    ((_, found),) = [(words, problem(words, is_whole=True)) for words in typed(line)]
    assert wrong in found
