"""What the sdist and its wheel hold: one top level, all packages, the files beside the code; and that it works."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import urllib.request
import venv
import zipfile
from pathlib import Path

import pytest

from tests.packaging.script import ROOT, load_script

SOURCES = {"sapo_edge": ROOT / "sapo_edge", "sapo_edge.backends": ROOT / "backends", "sapo_edge.tui": ROOT / "tui"}
LINKS = {"backends", "tui"}
VERSION = "1.2.3"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree at a tag: a build leaves files behind."""
    copy = tmp_path_factory.mktemp("tree") / "copy"
    for name in ("sapo_edge", "backends", "tui"):
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    git = ("git", "-c", "user.name=somebody", "-c", "user.email=some@body")
    for words in (("init", "-q"), ("add", "--all"), ("commit", "-qm", "All"), ("tag", "-am", "", f"v{VERSION}")):
        subprocess.run([*git, *words], cwd=copy, check=True)
    return copy


@pytest.fixture(scope="module")
def sdist(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(load_script("wheels").build_sdist(tmp_path_factory.mktemp("sdist"), tree))


def build(source: Path, directory: Path) -> Path:
    """The wheel of a tree, by the build backend alone: pip's own part takes as long again."""
    code = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    command = [sys.executable, "-c", code, str(directory)]
    built = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=200, check=False)
    assert built.returncode == 0, built.stderr
    (file,) = directory.iterdir()
    return file


@pytest.fixture(scope="module")
def wheel_file(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of the sources: what they lack, it lacks, too."""
    shutil.unpack_archive(sdist, sdist.parent, filter="data")
    return build(sdist.parent / sdist.name.removesuffix(".tar.gz"), tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Commands of a virtual environment with the wheel, which sees the packages that this Python has."""
    directory = tmp_path_factory.mktemp("installed")
    venv.create(directory, with_pip=False)
    python = directory / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", str(python)]
    subprocess.run([*pip, "install", "--no-deps", "--no-index", str(wheel_file)], check=True, timeout=200)
    (packages,) = directory.glob("lib/python*/site-packages")
    # Python does not read the .pth files of these folders: an editable sapo-edge there stays unseen.
    (packages / "others.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")))
    return directory / "bin"


def run_installed(installed: Path, directory: Path, *command: str) -> str:
    """What a command of the virtual environment prints, in a directory outside the repository."""
    command = (str(installed / command[0]), *command[1:])
    result = subprocess.run(command, cwd=directory, env=outside(directory), capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stderr
    return result.stdout


def outside(directory: Path) -> dict[str, str]:
    """The environment without what leads Python to the repository."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SAPO"))}
    return {**kept, "SAPO_EDGE_HOME": str(directory / "home")}


LOAD = """
import asyncio, pathlib
import sapo_edge
from sapo_edge.cli.terminal.launcher import ProgramLauncher
from sapo_edge.tasks.manifest import load_manifest, shipped_manifests
from sapo_edge.tui.app import SapoApp

async def stylesheets():
    app = SapoApp(ProgramLauncher())
    async with app.run_test():
        return [str(path) for path in app.css_path]

for place in (sapo_edge.__file__, *asyncio.run(stylesheets())):
    print(pathlib.Path(place).resolve())
print(*(load_manifest(name).name for name in shipped_manifests()))
"""


def test_it_holds_every_module_of_the_tree_once_and_the_files_beside_them(wheel_file: Path) -> None:
    wheel = zipfile.ZipFile(wheel_file).namelist()
    (record,) = {name.split("/")[0] for name in wheel} - {"sapo_edge"}
    assert record.startswith("sapo_edge-") and record.endswith(".dist-info"), "its only top level is ours"
    files = [(name, path.relative_to(top)) for name, top in SOURCES.items() for path in top.rglob("*.py")]
    expected = {
        "/".join((*name.split("."), *path.parts))
        for name, path in files
        if name != "sapo_edge" or path.parts[0] not in LINKS
    }
    modules = [name for name in wheel if name.endswith(".py")]
    assert set(modules) == expected and len(modules) == len(expected)
    beside = ("py.typed", "cli/web/page.html", "swarm/codes/words.txt", "service/templates/sapo-edge.service")
    manifests = [f"tasks/manifests/{path.name}" for path in (ROOT / "sapo_edge/tasks/manifests").glob("*.toml")]
    assert len(manifests) >= 2 and {f"sapo_edge/{name}" for name in (*beside, *manifests)} <= set(wheel)
    assert {"LICENSE", "entry_points.txt"} <= {name.rpartition("/")[2] for name in wheel}
    assert not [name for name in wheel if "tests" in name or "__pycache__" in name or name.endswith((".pyc", ".gguf"))]


def test_a_wheel_of_a_clone_is_that_of_the_sdist(tree: Path, wheel_file: Path, tmp_path: Path) -> None:
    cloned = build(tree, tmp_path)
    assert cloned.name == wheel_file.name
    assert set(zipfile.ZipFile(cloned).namelist()) == set(zipfile.ZipFile(wheel_file).namelist())


def test_the_installed_commands_find_manifests_and_stylesheet(installed: Path, tmp_path: Path) -> None:
    assert run_installed(installed, tmp_path, "sapo", "--version").split()[-1] == VERSION
    assert str(tmp_path / "home") in run_installed(installed, tmp_path, "sapo-edge", "paths")

    package, stylesheet, manifests = run_installed(installed, tmp_path, "python", "-c", LOAD).splitlines()
    place = installed.parent.resolve()
    assert Path(package).is_relative_to(place) and Path(stylesheet).is_relative_to(place)
    names = {"arithmetic", "extract", "home", "reasoning-gym-nine", "starter", "tools"}
    assert stylesheet.endswith(".tcss") and set(manifests.split()) == names


def test_the_installed_app_is_served_as_a_page(installed: Path, tmp_path: Path) -> None:
    pytest.importorskip("textual_serve")
    command = [str(installed / "sapo"), "web", "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, env=outside(tmp_path), stdout=subprocess.PIPE, text=True) as serving:
        try:
            assert serving.stdout is not None
            with urllib.request.urlopen(serving.stdout.readline().strip(), timeout=20) as page:
                assert b"<title>sapo</title>" in page.read()
            serving.send_signal(signal.SIGTERM)
            assert serving.wait(20) == 0
        finally:
            serving.kill()


@pytest.mark.parametrize("name", sorted(LINKS))
def test_the_packages_at_the_top_resolve_inside_ours(name: str) -> None:
    link = ROOT / "sapo_edge" / name
    assert link.is_symlink() and os.readlink(link) == f"../{name}"
    assert (link / "__init__.py").is_file()
