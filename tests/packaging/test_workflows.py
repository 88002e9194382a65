"""The workflows of `.github/` call what is here. Whether they run there is seen there alone."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.packaging.script import ROOT

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
            target = words[words.index("make") + 1]
            assert f"\n{target}:" in (ROOT / "Makefile").read_text(), command
        elif "-m" in words:
            module = ROOT / words[words.index("-m") + 1].replace(".", "/")
            assert (module / "__main__.py").exists(), command
        else:
            assert any((ROOT / word).is_file() for word in words), command


@pytest.mark.skipif(shutil.which("actionlint") is None, reason="actionlint is not installed")
def test_actionlint_finds_nothing() -> None:
    done = subprocess.run(["actionlint", *WORKFLOWS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
