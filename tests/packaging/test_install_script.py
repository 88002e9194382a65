"""`packaging/install.sh` with a program in pip's place: progress, and an install without a compiler."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = """#!/bin/sh
echo "$@" >> {calls}
case "$*" in
*llama*) echo "ERROR: Failed building wheel for llama-cpp-python"; exit 1 ;;
*broken*) echo "ERROR: No matching distribution found"; exit 1 ;;
esac
"""


def install(tmp_path: Path, extras: str, **environment: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    python, calls = tmp_path / "python", tmp_path / "calls"
    python.write_text(PYTHON.format(calls=calls))
    python.chmod(0o755)
    ended = subprocess.run(
        ["sh", "packaging/install.sh", python, extras], cwd=ROOT, env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    return ended, calls.read_text().splitlines()


def test_what_can_be_compiled_is_installed_at_once(tmp_path: Path) -> None:
    ended, calls = install(tmp_path, "starter,serve")
    assert ended.returncode == 0 and ended.stderr == ""
    assert len(calls) == 1 and calls[0].endswith("-c constraints.txt --editable .[starter,serve]")


@pytest.mark.parametrize("environment", [{}, {"COMPILE": "no"}])
def test_without_a_compiler_slim_wheels_replace_what_is_compiled(tmp_path: Path, environment: dict[str, str]) -> None:
    ended, calls = install(tmp_path, "starter,llama,serve", **environment)
    assert ended.returncode == 0
    assert ("torch samples" in ended.stderr) == (environment == {})
    assert calls[-2:][0] == "packaging/wheels.py slim"
    assert calls[-1].endswith("--find-links dist --editable .[starter,serve]")
    assert len(calls) == (2 if environment else 3)


def test_another_failure_is_shown_and_final(tmp_path: Path) -> None:
    ended, calls = install(tmp_path, "broken,starter")
    assert ended.returncode == 1 and "No matching distribution" in ended.stderr and len(calls) == 1
