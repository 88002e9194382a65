"""The diffs that CONTRIBUTING shows, applied to a copy of the repository."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from tests.forked import Forked

ROOT = Path(__file__).resolve().parents[2]
DIFFS = re.findall(r"^```diff\n(.*?)^```$", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
ADDED = """
import os, sys
sys.path.insert(0, os.getcwd())
import pytest
from sapo_edge.backends.model.architectures import find_architecture
from sapo_edge.config.settings import SETTINGS
from sapo_edge.tasks.questions import make_check
from tests import pages
from tests.swarm.member.hostile import ATTACKS

assert find_architecture("seed_oss", "config.json").name == "seed_oss"
assert SETTINGS["on_battery_above"].default == 100
assert "empty_frames" in ATTACKS
assert make_check("words", None).score("a b", "B a") == 1.0
pages.main()
assert "`on_battery_above` (100)" in (pages.DOCS / "settings.md").read_text("utf-8")
tests = ("tests/unit/care/test_pauses.py", "tests/unit/tasks/test_own_questions.py")
assert pytest.main(["-q", "-p", "no:cacheprovider", "-k", "charge_enough or words-None", *tests]) == 0
"""


def apply(diff: str, root: Path) -> None:
    """Apply a diff whose hunks name no line: each says enough to be found once."""
    for part in re.split(r"^--- .*\n", diff, flags=re.MULTILINE)[1:]:
        header, *hunks = re.split(r"^@@\n", part, flags=re.MULTILINE)
        path = root / header.strip().removeprefix("+++ b/")
        for hunk in hunks:
            lines = hunk.splitlines(keepends=True)
            before, after = ("".join(line[1:] for line in lines if line[0] in signs) for signs in (" -", " +"))
            text = path.read_text("utf-8")
            assert text.count(before) == 1, f"renew the diff in CONTRIBUTING.md, {path.name}: {before}"
            path.write_text(text.replace(before, after), "utf-8")


def test_the_diffs_add_what_they_say_in_at_most_three_files(tmp_path: Path) -> None:
    assert [len(re.findall(r"^\+\+\+ b/", diff, re.MULTILINE)) for diff in DIFFS] == [3, 3, 3, 2]
    for library in ("libp2p", "torch"):
        pytest.importorskip(library)
    skipped = shutil.ignore_patterns("__pycache__", "__snapshots__", "*.safetensors")
    for name in ("sapo_edge", "backends", "tui", "docs", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=skipped)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for diff in DIFFS:
        apply(diff, tmp_path)
    with Forked("-c", ADDED, directory=tmp_path, environment=os.environ) as process:
        out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, out + errors
