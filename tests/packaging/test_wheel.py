"""What the wheel holds: one top level, all packages, the files beside the code."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = {"sapo_edge": ROOT / "sapo_edge", "sapo_edge.backends": ROOT / "backends", "sapo_edge.tui": ROOT / "tui"}
LINKS = {"backends", "tui"}


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def packages() -> set[str]:
    """Every package in the tree, by the name under which it is installed."""
    found = set()
    for name, top in SOURCES.items():
        for path in top.rglob("__init__.py"):
            parts = path.relative_to(top).parts[:-1]
            if not (name == "sapo_edge" and parts and parts[0] in LINKS):
                found.add(".".join((name, *parts)))
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Names in a wheel of a copy of the tree: a build leaves files behind."""
    directory = tmp_path_factory.mktemp("wheel")
    copy = directory / "copy"
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("sapo_edge", "backends", "tui"):
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    # Offline where the installed setuptools is new enough, else pip fetches one.
    try:
        new = int(importlib.metadata.version("setuptools").split(".")[0]) >= 77
    except importlib.metadata.PackageNotFoundError:
        new = False
    isolation = ["--no-build-isolation"] if new else []
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    command = [*pip, "--no-deps", *isolation, "--wheel-dir", "dist", "./copy"]
    built = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=200, check=False)
    assert built.returncode == 0, built.stderr
    (file,) = (directory / "dist").iterdir()
    with zipfile.ZipFile(file) as archive:
        return archive.namelist()


def test_its_only_top_level_is_ours(wheel: list[str]) -> None:
    tops = {name.split("/")[0] for name in wheel}
    (record,) = tops - {"sapo_edge"}
    assert "sapo_edge" in tops and record.startswith("sapo_edge-") and record.endswith(".dist-info")


def test_it_holds_every_module_of_the_tree_once(wheel: list[str]) -> None:
    expected = set()
    for name, top in SOURCES.items():
        for path in top.rglob("*.py"):
            parts = path.relative_to(top).parts
            if not (name == "sapo_edge" and parts[0] in LINKS):
                expected.add("/".join((*name.split("."), *parts)))
    modules = [name for name in wheel if name.endswith(".py")]
    assert set(modules) == expected and len(modules) == len(expected)


def test_it_holds_the_files_beside_the_code(wheel: list[str]) -> None:
    manifests = {
        f"sapo_edge/tasks/manifests/{path.name}" for path in (ROOT / "sapo_edge" / "tasks" / "manifests").glob("*.toml")
    }
    assert len(manifests) >= 2 and manifests <= set(wheel)
    assert "sapo_edge/py.typed" in wheel
    assert "sapo_edge/cli/web/page.html" in wheel
    assert any(name.endswith("LICENSE") for name in wheel)
    assert any(name.endswith("entry_points.txt") for name in wheel)


def test_nothing_else_slips_in(wheel: list[str]) -> None:
    assert not [name for name in wheel if "tests" in name or "__pycache__" in name or name.endswith((".pyc", ".gguf"))]


def test_the_declared_packages_are_all_that_exist() -> None:
    declared = project()["tool"]["setuptools"]["packages"]
    assert len(declared) == len(set(declared)) and set(declared) == packages()


@pytest.mark.parametrize("name", sorted(LINKS))
def test_the_packages_at_the_top_resolve_inside_ours(name: str) -> None:
    link = ROOT / "sapo_edge" / name
    assert link.is_symlink() and os.readlink(link) == f"../{name}"
    assert (link / "__init__.py").is_file()


def test_the_folder_called_packaging_is_no_package() -> None:
    assert not (ROOT / "packaging" / "__init__.py").exists()


def test_both_commands_are_the_same() -> None:
    scripts = project()["project"]["scripts"]
    assert scripts == {"sapo": "sapo_edge.cli.main:main", "sapo-edge": "sapo_edge.cli.main:main"}
