"""Python processes that the program starts import nothing from the current directory."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from sapo_edge.backends.choose import detect
from sapo_edge.children import python_command, sapo_command

ROOT = Path(__file__).parents[2]


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current directory with a module of the program's name; it leaves a file if it is imported."""
    monkeypatch.chdir(tmp_path)
    text = "import pathlib\npathlib.Path('imported').touch()\nraise SystemExit\n"
    for name in ("sapo_edge", "trap"):
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path / "imported"


@pytest.mark.parametrize("command", [python_command("-c", "import sapo_edge"), sapo_command("paths", None)])
def test_a_child_does_not_import_from_the_current_directory(trap: Path, command: list[str]) -> None:
    subprocess.run(command, capture_output=True, timeout=60, check=True)
    assert not trap.exists()


def test_the_probe_of_a_backend_does_not_import_from_the_current_directory(trap: Path) -> None:
    backend = replace(detect.BACKENDS[0], name="trapped", probe="import trap")
    assert detect.probe([backend]) == {"trapped": "ModuleNotFoundError: No module named 'trap'"}
    assert not trap.exists()


def test_no_other_module_starts_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [file for folder in ("sapo_edge", "backends", "tui") for file in (ROOT / folder).rglob("*.py")]
    assert len(files) > 100
    # The other one names the program in the command that it shows, and starts nothing.
    assert {file.name for file in files if "sys.executable" in file.read_text()} == {"children.py", "installing.py"}
    assert "subprocess" not in (ROOT / "sapo_edge" / "installing.py").read_text()
    monkeypatch.chdir(tmp_path)
    assert sapo_command("run", Path("home"), "--json")[-4:] == ["run", "--home", str(tmp_path / "home"), "--json"]
