"""`packaging/release.py`, the lists beside it, and the workflows of `.github/`, which call what is here."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.packaging.script import ROOT, load_script

PINNED = re.compile(r"^([\w.-]+)==([^\s;]+)", re.MULTILINE)
CHANGES = "# Changes\n\n## [Unreleased]\n\n### Added\n\n- A thing.\n\n## [0.0.9] - 2026-01-01\n\n- Older.\n"


@pytest.fixture(scope="module")
def release() -> Any:
    return load_script("release")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository of one commit, and a CHANGELOG alone."""
    directory = tmp_path / "tree"
    directory.mkdir()
    (directory / "CHANGELOG.md").write_text(CHANGES)
    for words in (
        ("init", "--quiet"), ("config", "user.name", "somebody"), ("config", "user.email", "some@body"),
        ("add", "--all"), ("commit", "--quiet", "--message", "Begin"),
    ):  # fmt: skip
        git(directory, *words)
    return directory


def git(tree: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=tree, check=True, capture_output=True, text=True).stdout.strip()


def test_a_tag_has_the_notes_of_the_changelog(release: Any, tree: Path) -> None:
    release.mark(tree, "0.2.0")
    changes = (tree / "CHANGELOG.md").read_text()
    assert re.search(r"## \[Unreleased\]\n\n## \[0\.2\.0\] - \d{4}-\d\d-\d\d\n\n### Added", changes)
    assert changes.endswith("- A thing.\n\n## [0.0.9] - 2026-01-01\n\n- Older.\n")
    assert git(tree, "status", "--porcelain") == ""
    assert git(tree, "tag", "--points-at", "HEAD", "--format=%(contents)") == "### Added\n\n- A thing."
    with pytest.raises(SystemExit, match="nothing under Unreleased"):
        release.mark(tree, "0.3.0")
    with pytest.raises(SystemExit, match=r"0\.2\.0 is not above 0\.2\.0"):
        release.mark(tree, "0.2.0")


def test_nothing_changes_where_the_tree_has_changes_or_the_version_does_not_fit(release: Any, tree: Path) -> None:
    for version in ("2", "0.2.0rc1", "v0.2.0", "0.0.0"):
        with pytest.raises(SystemExit):
            release.mark(tree, version)
    (tree / "CHANGELOG.md").write_text(f"{CHANGES}more\n")
    with pytest.raises(SystemExit, match="commit them first"):
        release.mark(tree, "0.2.0")
    assert git(tree, "tag") == "" and git(tree, "rev-list", "--count", "HEAD") == "1"


def test_files_are_of_a_tag_and_join_none_of_an_earlier_attempt(release: Any, tree: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no release is checked out"):
        release.make(tree, tmp_path / "dist")
    release.mark(tree, "0.2.0")
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist/old.whl").touch()
    with pytest.raises(SystemExit, match="is not empty"):
        release.make(tree, tmp_path / "dist")


def test_the_changelog_of_this_tree_can_be_released(release: Any) -> None:
    notes, changes = release.prepared("99.0.0", [], read("CHANGELOG.md"))
    assert len(notes) > 1000 and "## [99.0.0]" in changes


def test_licences_and_hashes_name_what_is_required() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = ("swarm", "tui", "train", "tasks", "models", "llama", "starter", "web")
    lines = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    names = {canonicalize_name(Requirement(line).name) for line in lines} - {"sapo-edge"}
    table = {canonicalize_name(name) for name in re.findall(r"^\| (\S+) \|", read("THIRD_PARTY.md"), re.MULTILINE)}
    assert names - table == set(), "run packaging/third_party.py"
    locked, constraints = (
        [(canonicalize_name(name), version) for name, version in re.findall(PINNED, read(file))]
        for file in ("packaging/requirements.lock", "constraints.txt")
    )
    known = dict(constraints)
    assert names - dict(locked).keys() == {"torch"}, "run packaging/lock.sh"
    for name, version in locked:
        assert known.get(name, version) == version, f"{name}: run packaging/lock.sh"


def read(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def commands(workflow: Path) -> list[str]:
    jobs: dict[str, Any] = yaml.safe_load(workflow.read_text("utf-8"))["jobs"]
    return [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_each_step_calls_what_is_there(workflow: Path) -> None:
    found = commands(workflow)
    assert found
    for command in found:
        words = shlex.split(command)
        if words[0] in ("gh", "git"):
            # Of the release, and there alone.
            assert workflow.name == "release.yml"
        elif "make" in words:
            assert f"\n{words[words.index('make') + 1]}:" in read("Makefile"), command
        elif "-m" in words:
            assert (ROOT / words[words.index("-m") + 1].replace(".", "/") / "__main__.py").exists(), command
        else:
            assert any((ROOT / word).is_file() for word in words), command


def test_what_publishes_waits_for_the_owners_word() -> None:
    jobs: dict[str, Any] = yaml.safe_load(read(".github/workflows/release.yml"))["jobs"]
    publishing = {name: job for name, job in jobs.items() if "write" in job.get("permissions", {}).values()}
    assert set(publishing) == {"containers", "publish"}
    assert {job.get("environment") for job in publishing.values()} == {"release"}


def test_containers_get_names_without_capitals_whatever_the_repositorys_name() -> None:
    steps = yaml.safe_load(read(".github/workflows/release.yml"))["jobs"]["containers"]["steps"]
    naming = [step for step in steps if "github.repository " in str(step)]
    # It lowers them; Docker refuses them.
    assert [step["uses"] for step in naming] == ["docker/metadata-action@v5"]
    (pushing,) = (step["with"] for step in steps if step["uses"].startswith("docker/build-push-action@"))
    assert pushing["tags"] == f"${{{{ steps.{naming[0]['id']}.outputs.tags }}}}"


@pytest.mark.skipif(shutil.which("actionlint") is None, reason="actionlint is not installed")
def test_actionlint_finds_nothing() -> None:
    done = subprocess.run(["actionlint", *WORKFLOWS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
