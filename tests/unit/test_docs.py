"""The documents name what exists: code anchors, commands, settings, exit codes, generators, links."""

from __future__ import annotations

import ast
import csv
import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

from sapo_edge.config.layers import OTHER_VARIABLES
from sapo_edge.errors import ExitCode
from sapo_edge.node.methods import handlers
from sapo_edge.swarm.status import Direction, PeerInfo, State, SwarmStatus
from sapo_edge.tasks.manifest import Manifest
from sapo_edge.tui.glossary import GLOSSARY
from tests import pages
from tests.cli.inprocess import FakeNode
from tests.defences.defence import test_exists as exists

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
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


COMMANDS = dict(pages.commands())


def test_pages_that_the_code_names_exist() -> None:
    named = re.compile(r"(?<![\w/])(docs/[\w-]+\.md)(?:#([\w-]+))?")
    rooms = ("sapo_edge", "backends", "tui", "packaging", "tests")
    missing = []
    for file in (file for room in rooms for file in (ROOT / room).rglob("*.py")):
        for page, heading in named.findall(file.read_text("utf-8")):
            there = (ROOT / page).exists()
            headings = re.findall(r"^#+ (.*)", read(page), re.MULTILINE) if there else ()
            if not there or (heading and heading not in map(slug, headings)):
                missing.append(f"{file.relative_to(ROOT)}: {page} {heading}")
    assert not missing


@pytest.mark.parametrize("document", ["docs/algorithm.md", "ARCHITECTURE.md", "SECURITY.md", "docs/tasks.md"])
def test_code_anchors_exist(document: str) -> None:
    found = anchors(read(document))
    assert not [f"{path}:{name}" for path, name in found if name not in defined(ROOT / path)]
    assert found or document != "docs/algorithm.md"


def test_each_attack_in_the_table_names_tests_that_exist() -> None:
    text = read("SECURITY.md").partition("\n| Who does what |")[2].partition("\n\n")[0]
    rows = [row.strip("|").split(" | ") for row in text.splitlines()[2:]]
    assert len(rows) > 30 and {len(row) for row in rows} == {4}
    tests = [re.findall(r"`(tests/[^`]+)`", row[2]) for row in rows]
    assert all(tests), "a row names no test"
    assert not [test for row in tests for test in row if not exists(ROOT, test)]


def packages() -> list[Path]:
    """Every folder of the product that holds code."""
    tops = [ROOT / "backends", ROOT / "sapo_edge", ROOT / "tui"]
    return [file.parent for top in tops for file in top.glob("**/__init__.py")]


def test_the_architecture_names_every_folder_the_algorithm_every_function_and_every_module_says_what_it_is() -> None:
    text = read("ARCHITECTURE.md")
    screens = ROOT / "tui" / "screens"
    assert not [name_of(folder) for folder in packages() if folder.parent != screens and f"{folder.name}/" not in text]
    named = {name for path, name in anchors(read("docs/algorithm.md")) if path == "sapo_edge/sapo.py"}
    tree = ast.parse(read("sapo_edge/sapo.py"))
    assert {node.name for node in tree.body if isinstance(node, ast.FunctionDef)} <= named
    files = [file for folder in packages() for file in folder.glob("*.py")]
    silent = [name_of(file) for file in files if not ast.get_docstring(ast.parse(file.read_text("utf-8")))]
    # A package without code of its own has nothing to add to its folder's name.
    assert [name for name in silent if not name.endswith("__init__.py")] == []


@pytest.mark.parametrize("name", pages.PARTS)
def test_what_the_program_says_of_itself_is_what_the_page_says(name: str) -> None:
    # To renew it: python -m tests.pages
    page, make = pages.PARTS[name]
    text = read(f"docs/{page}")
    assert pages.with_part(text, name, make()) == text


def test_the_fields_of_every_object_that_a_command_prints_are_documented() -> None:
    rows = re.findall(r"^- (`sapo[^:]*):", section(read("docs/interface.md"), "What commands print"), re.MULTILINE)
    documented = {"sapo run", "sapo chat"}  # events, and lines of their own
    for row in rows:
        first, *others = re.findall(r"`([^`]+)`", row)
        prefix = first.rpartition(" ")[0]
        documented |= {first, *(other if other.startswith("sapo ") else f"{prefix} {other}" for other in others)}
    printing = {path for path, command in COMMANDS.items() if any("--json" in item.opts for item in command.params)}
    assert documented == printing


def test_every_record_is_a_table_and_says_what_made_it() -> None:
    listed = re.findall(r"\(([\w-]+\.csv)\)", read("docs/records/README.md"))
    files = {path.name: path for path in (ROOT / "docs" / "records").glob("*.csv")}
    assert sorted(listed) == sorted(files)
    for path in files.values():
        with path.open(encoding="utf-8", newline="") as lines:
            head, *rows = csv.reader(lines)
        assert rows and {len(row) for row in rows} == {len(head)}, path.name


def test_the_index_names_every_page_and_the_glossary_is_sorted() -> None:
    index = read("docs/README.md")
    pages = [page.name for page in (ROOT / "docs").glob("*.md") if page.name != "README.md"]
    assert not sorted(page for page in pages if f"({page})" not in index)
    assert list(GLOSSARY) == sorted(GLOSSARY)


def test_the_readme_stays_short_and_tells_which_sapo_this_is() -> None:
    # One screen and a half of a large terminal: what does not fit has a page in docs/.
    assert len(read("README.md").splitlines()) <= 120
    first = "\n".join(read("README.md").splitlines()[:6])
    assert "Soft Adaptive Policy Optimization" in first
    assert "Swarm sAmpling Policy Optimization" in first
    assert "2509.08721" in first


def test_the_methods_and_fields_of_the_control_socket_are_documented() -> None:
    text = section(read("docs/interface.md"), "The control socket").replace("\n### ", "\n## ")
    methods = set(re.findall(r"^\| `(\w+)` \|", section(text, "Methods"), re.MULTILINE))
    assert methods == {*handlers(FakeNode()), "subscribe"}
    named = set(re.findall(r"`(\w+)`", section(text, "Status")))
    assert {item.name for kind in (SwarmStatus, PeerInfo) for item in fields(kind)} <= named
    assert set(get_args(State)) | set(get_args(Direction)) <= named


def test_exit_codes_and_variables_that_are_no_settings_are_documented() -> None:
    rows = re.findall(r"^\| (\d+) \| `([A-Z_]+)` \|", read("docs/commands.md"), re.MULTILINE)
    assert {name: int(number) for number, name in rows} == {code.name: code.value for code in ExitCode}
    assert not [name for name in OTHER_VARIABLES if f"`{name}`" not in read("docs/settings.md")]


def test_examples_of_manifests_are_valid(tmp_path: Path) -> None:
    fences = FENCE.findall(read("docs/tasks.md"))
    (questions,) = [text for kind, text in fences if kind == "json"]
    (tmp_path / "tasks.jsonl").write_text(questions, "utf-8")
    examples = [text for kind, text in fences if kind == "toml" and "[[tasks]]" in text]
    assert examples
    for example in examples:
        (tmp_path / "manifest.toml").write_text(example, "utf-8")
        assert Manifest.read(tmp_path / "manifest.toml").tasks


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
