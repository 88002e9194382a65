"""The documents name what exists: code anchors, commands, settings, exit codes, generators, links."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest
import typer.main

from sapo_edge.cli.main import app
from sapo_edge.config.layers import OTHER_VARIABLES
from sapo_edge.config.settings import reference
from sapo_edge.errors import ExitCode
from sapo_edge.node.methods import handlers
from sapo_edge.swarm.status import Direction, PeerInfo, State, SwarmStatus
from sapo_edge.tasks.allowed import ALLOWED, EVALUATING, IRREPRODUCIBLE, Choice, Choices, Flag, Integer, Real
from sapo_edge.tasks.manifest import Manifest
from sapo_edge.tasks.verifiers import OWN_VERIFIERS
from sapo_edge.tui import glossary
from sapo_edge.tui.glossary import GLOSSARY
from tests.benchmarks.catalogue import BEGIN, END, table
from tests.cli.inprocess import FakeNode
from tests.defences.defence import test_exists as exists

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
ANCHOR = re.compile(r"`((?:[\w.-]+/)*[\w.-]+\.py):([\w.]+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def read(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def name_of(document: Path) -> str:
    return document.relative_to(ROOT).as_posix()


def anchors(text: str) -> list[tuple[str, str]]:
    return sorted(set(ANCHOR.findall(text)))


def defined(path: Path) -> set[str]:
    """Functions, classes, methods and constants of a file, by their qualified names."""
    names: set[str] = set()

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(prefix + node.name)
                if isinstance(node, ast.ClassDef):
                    visit(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.Assign):
                names.update(prefix + target.id for target in node.targets if isinstance(target, ast.Name))
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names.add(prefix + node.target.id)

    visit(ast.parse(path.read_text("utf-8")).body, "")
    return names


def section(text: str, heading: str) -> str:
    """What stands below a heading of the second level."""
    _, found, rest = text.partition(f"\n## {heading}\n")
    assert found, f"there is no heading {heading!r}"
    return rest.partition("\n## ")[0]


def slug(heading: str) -> str:
    """A heading's anchor, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every command that does something, by what the user types."""
    if hasattr(command, "commands"):
        for name, child in command.commands.items():
            yield from commands(child, f"{path} {name}")
    else:
        yield path, command


COMMANDS = dict(commands(typer.main.get_command(app), "sapo"))


def generator_table() -> str:
    """The allow-list as `docs/manifests.md` shows it."""
    lines = ["| Generator | Settings, with bounds and default | Verifier |", "|---|---|---|"]
    for name, settings in ALLOWED.items():
        shown = [f"`{key}` {describe(bound)}" for key, bound in settings.items()]
        verifier = "own" if name in OWN_VERIFIERS else "library's"
        lines.append(f"| `{name}` | {'<br>'.join(shown) or 'none'} | {verifier} |")
    return "\n".join(lines) + "\n"


def describe(bound: Integer | Real | Flag | Choice | Choices) -> str:
    if isinstance(bound, Integer):
        return f"integer, {bound.low} to {bound.high} ({bound.default})"
    if isinstance(bound, Real):
        return f"number, {bound.low:g} to {bound.high:g} ({bound.default:g})"
    if isinstance(bound, Flag):
        return f"true or false ({str(bound.default).lower()})"
    options = ", ".join(f"`{option}`" for option in bound.options)
    if isinstance(bound, Choice):
        return f"one of {options} (`{bound.default}`)"
    default = "all" if bound.default == bound.options else ", ".join(f"`{option}`" for option in bound.default)
    return f"some of {options} ({default})"


@pytest.mark.parametrize("document", ["docs/algorithm.md", "ARCHITECTURE.md", "SECURITY.md", "docs/manifests.md"])
def test_code_anchors_exist(document: str) -> None:
    found = anchors(read(document))
    missing = [f"{path}:{name}" for path, name in found if name not in defined(ROOT / path)]
    assert not missing
    assert found or document != "docs/algorithm.md"


def test_each_attack_in_the_table_names_tests_that_exist() -> None:
    text = read("SECURITY.md").partition("\n| Asset |")[2].partition("\n\n")[0]
    rows = [row.strip("|").split(" | ") for row in text.splitlines()[2:]]
    assert len(rows) > 30 and {len(row) for row in rows} == {6}
    tests = [re.findall(r"`(tests/[^`]+)`", row[4]) for row in rows]
    assert all(tests), "a row names no test"
    assert not [test for row in tests for test in row if not exists(ROOT, test)]


def test_the_algorithm_names_every_function_of_the_round() -> None:
    named = {name for path, name in anchors(read("docs/algorithm.md")) if path == "sapo_edge/sapo.py"}
    tree = ast.parse(read("sapo_edge/sapo.py"))
    assert {node.name for node in tree.body if isinstance(node, ast.FunctionDef)} <= named


def packages() -> list[Path]:
    """Every folder of the product that holds code."""
    tops = [ROOT / "backends", ROOT / "sapo_edge", ROOT / "tui"]
    return [file.parent for top in tops for file in top.glob("**/__init__.py")]


def test_the_architecture_names_every_folder() -> None:
    text = read("ARCHITECTURE.md")
    screens = ROOT / "tui" / "screens"
    assert not sorted(
        name_of(folder) for folder in packages() if folder.parent != screens and f"{folder.name}/" not in text
    )


def test_every_module_says_what_it_is() -> None:
    files = [file for folder in packages() for file in folder.glob("*.py")]
    silent = [name_of(file) for file in files if not ast.get_docstring(ast.parse(file.read_text("utf-8")))]
    # A package without code of its own has nothing to add to its folder's name.
    assert [name for name in silent if not name.endswith("__init__.py")] == []


@pytest.mark.parametrize("path", COMMANDS)
def test_commands_are_documented_with_every_option_and_no_other(path: str) -> None:
    text = section(read("docs/commands.md"), f"`{path}`")
    options: set[str] = set()
    arguments: set[str] = set()
    for parameter in COMMANDS[path].params:
        (arguments if parameter.param_type_name == "argument" else options).update(parameter.opts)
    assert set(re.findall(r"^\| `(--[\w-]+)", text, re.MULTILINE)) == options - {"--help", "-h"}
    assert set(re.findall(r"^\| `([A-Z]+)`", text, re.MULTILINE)) == {name.upper() for name in arguments}


def test_only_commands_that_exist_are_documented() -> None:
    assert set(re.findall(r"^## `(sapo[^`]*)`$", read("docs/commands.md"), re.MULTILINE)) == set(COMMANDS)


def test_the_index_names_every_page() -> None:
    index = read("docs/README.md")
    pages = [page.name for page in (ROOT / "docs").glob("*.md") if page.name != "README.md"]
    assert not sorted(page for page in pages if f"({page})" not in index)


def test_the_readme_stays_short() -> None:
    # One screen and a half of a large terminal: what does not fit has a page in docs/.
    assert len(read("README.md").splitlines()) <= 120


def test_the_methods_and_fields_of_the_control_socket_are_documented() -> None:
    text = read("docs/control.md")
    methods = set(re.findall(r"^\| `(\w+)` \|", section(text, "Methods"), re.MULTILINE))
    assert methods == {*handlers(FakeNode()), "subscribe"}
    named = set(re.findall(r"`(\w+)`", section(text, "Status")))
    assert {item.name for kind in (SwarmStatus, PeerInfo) for item in fields(kind)} <= named
    assert set(get_args(State)) | set(get_args(Direction)) <= named


def test_exit_codes_are_documented() -> None:
    rows = re.findall(r"^\| (\d+) \| `([A-Z_]+)` \|", read("docs/commands.md"), re.MULTILINE)
    assert {name: int(number) for number, name in rows} == {code.name: code.value for code in ExitCode}


def test_the_table_of_settings_is_that_of_the_code() -> None:
    # To renew it, paste what `sapo_edge.config.settings.reference()` returns.
    assert reference() in read("docs/configuration.md")


def test_the_glossary_is_that_of_the_terminal_app() -> None:
    # To renew it, paste what `sapo_edge.tui.glossary.reference()` returns.
    assert glossary.reference() in read("docs/glossary.md") and list(GLOSSARY) == sorted(GLOSSARY)


def test_variables_that_are_no_settings_are_documented() -> None:
    assert not [name for name in OTHER_VARIABLES if f"`{name}`" not in read("docs/configuration.md")]


def test_the_table_of_generators_is_that_of_the_code() -> None:
    # To renew it, paste what `generator_table()` returns.
    assert generator_table() in read("docs/manifests.md")


def test_the_table_of_models_is_that_of_the_estimates() -> None:
    # To renew it: python -m tests.benchmarks catalogue
    assert f"{BEGIN}\n{table()}\n{END}" in read("docs/models.md")


def test_refused_generators_are_documented_with_their_reason() -> None:
    text = section(read("docs/manifests.md"), "Generators that are refused")
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == EVALUATING | set(IRREPRODUCIBLE)
    assert not [name for name, reason in IRREPRODUCIBLE.items() if f"| `{name}` | {reason} |" not in text]


def test_examples_of_manifests_are_valid(tmp_path: Path) -> None:
    fences = FENCE.findall(read("docs/manifests.md"))
    (questions,) = [text for kind, text in fences if kind == "json"]
    (tmp_path / "tasks.jsonl").write_text(questions, "utf-8")
    examples = [text for kind, text in fences if kind == "toml" and "[[tasks]]" in text]
    assert examples
    for example in examples:
        assert Manifest.from_toml(example, directory=tmp_path).tasks


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_relative_links_resolve(document: Path) -> None:
    broken = []
    for link in LINK.findall(FENCE.sub("", document.read_text("utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, fragment = link.partition("#")
        target = document.parent / file if file else document
        if not target.exists():
            broken.append(link)
        elif fragment:
            headings = re.findall(r"^#+ (.+)$", target.read_text("utf-8"), re.MULTILINE)
            if fragment not in {slug(heading) for heading in headings}:
                broken.append(link)
    assert not broken


def test_the_readme_tells_which_sapo_this_is() -> None:
    first = "\n".join(read("README.md").splitlines()[:6])
    assert "Soft Adaptive Policy Optimization" in first
    assert "Swarm sAmpling Policy Optimization" in first
    assert "2509.08721" in first
