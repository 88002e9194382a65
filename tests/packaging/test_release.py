"""`packaging/release.py` and the lists beside it."""

from __future__ import annotations

import re
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.packaging.script import ROOT, load_script

CODE = 'x = 1\n__version__ = "0.1.0"\n'
CHANGES = "# Changes\n\n## [Unreleased]\n\n### Added\n\n- A thing.\n\n## [0.0.9] - 2026-01-01\n\n- Older.\n"


@pytest.fixture(scope="module")
def release() -> Any:
    return load_script("release")


def test_a_release_takes_its_notes_from_the_changelog(release: Any) -> None:
    code, notes, changes = release.prepared("0.2.0", CODE, CHANGES)
    assert code == 'x = 1\n__version__ = "0.2.0"\n'
    assert notes == "### Added\n\n- A thing.\n"
    assert re.search(r"## \[Unreleased\]\n\n## \[0\.2\.0\] - \d{4}-\d\d-\d\d\n\n### Added", changes)
    assert changes.endswith("- A thing.\n\n## [0.0.9] - 2026-01-01\n\n- Older.\n")
    with pytest.raises(SystemExit, match="nothing under Unreleased"):
        release.prepared("0.3.0", code, changes)
    with pytest.raises(SystemExit, match=r"0\.2\.0 is not above 0\.2\.0"):
        release.prepared("0.2.0", code, changes.replace("## [Unreleased]\n", "## [Unreleased]\n\n- More.\n"))


def test_what_an_earlier_attempt_left_is_named_before_anything_changes(
    release: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"VERSION": CODE, "CHANGELOG": CHANGES}
    for name, content in files.items():
        (tmp_path / name).write_text(content)
        monkeypatch.setattr(release, name, tmp_path / name)
    monkeypatch.setattr(sys, "argv", ["release.py", "0.2.0", "--to", str(tmp_path / "dist")])
    (tmp_path / "dist" / "0.2.0").mkdir(parents=True)
    for tags in ("", "v0.2.0"):
        monkeypatch.setattr(release, "git", lambda *words, tags=tags: tags if words[0] == "tag" else "")
        with pytest.raises(SystemExit, match="earlier attempt"):
            release.main()
        assert {name: (tmp_path / name).read_text() for name in files} == files
        shutil.rmtree(tmp_path / "dist", ignore_errors=True)


@pytest.mark.parametrize("version", ["0.0.9", "2", "0.2.0rc1", "v0.2.0"])
def test_a_version_that_does_not_fit_is_refused(release: Any, version: str) -> None:
    with pytest.raises(SystemExit):
        release.prepared(version, CODE, CHANGES)


def test_the_first_release_may_have_the_version_of_the_tree(release: Any) -> None:
    assert release.prepared("0.1.0", CODE, CHANGES)[0] == CODE


def test_the_changelog_of_this_tree_can_be_released(release: Any) -> None:
    read = [(ROOT / name).read_text("utf-8") for name in ("sapo_edge/__init__.py", "CHANGELOG.md")]
    _, notes, changes = release.prepared("99.0.0", *read)
    assert len(notes) > 1000 and "## [99.0.0]" in changes


def test_licences_and_hashes_name_what_is_required() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = ("swarm", "tui", "train", "tasks", "models", "llama", "starter", "serve")
    lines = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    names = {canonicalize_name(Requirement(line).name) for line in lines} - {"sapo-edge"}
    table = {canonicalize_name(name) for name in re.findall(r"^\| (\S+) \|", read("THIRD_PARTY.md"), re.MULTILINE)}
    assert names - table == set(), "run packaging/third_party.py"
    lock = {
        canonicalize_name(name)
        for name in re.findall(r"^([\w.-]+)==", read("packaging/requirements.lock"), re.MULTILINE)
    }
    assert names - lock == {"torch"}, "run packaging/lock.sh"
    constraints = {line for line in read("constraints.txt").lower().splitlines() if "==" in line}
    locked = re.findall(r"^[\w.-]+==[^\s;]+", read("packaging/requirements.lock"), re.MULTILINE)
    known = {canonicalize_name(line.partition("==")[0]): line.partition("==")[2] for line in constraints}
    for line in locked:
        name, _, version = line.partition("==")
        assert known.get(canonicalize_name(name), version) == version, "run packaging/lock.sh"


def read(name: str) -> str:
    return (ROOT / name).read_text("utf-8")
