"""What is heavy loads where it is used: help is quick, and a headless node never loads the terminal app."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = (
    "torch", "mlx", "llama_cpp", "textual", "libp2p", "trio", "reasoning_gym", "transformers", "peft", "numpy",
    "gguf", "safetensors", "sapo_edge.tui",
)  # fmt: skip
LOADED = "print(*(name for name in {names} if name in sys.modules))"


def loaded(code: str, directory: Path, names: tuple[str, ...] = HEAVY) -> str:
    """Names that are loaded once the code has run."""
    text = f"import sys\n{code}\n{LOADED.format(names=names)}"
    ended = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, cwd=directory, timeout=60, check=True
    )
    return ended.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    "module",
    [
        "sapo_edge", "sapo_edge.cli.main", "sapo_edge.node", "sapo_edge.sapo", "sapo_edge.state.store",
        "sapo_edge.tasks.manifest", "sapo_edge.tasks.source", "sapo_edge.swarm.memory", "sapo_edge.doctor.machine",
        "sapo_edge.backends.choose.detect", "sapo_edge.node.rounds", "sapo_edge.control.server",
        "sapo_edge.doctor.bench", "sapo_edge.node.methods",
    ],
)  # fmt: skip
def test_importing_loads_nothing_heavy(module: str, tmp_path: Path) -> None:
    assert loaded(f"import {module}", tmp_path) == ""


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["--version"], ["config", "show"], ["paths"]])
def test_these_commands_load_nothing_heavy(arguments: list[str], tmp_path: Path) -> None:
    command = ["sapo", *arguments, *(["--home", str(tmp_path)] if arguments[0] in ("config", "paths") else [])]
    code = f"""
import io, contextlib
sys.argv = {command!r}
from sapo_edge.cli.main import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main()
"""
    assert loaded(code, tmp_path) == ""


def test_a_command_loads_no_other_command(tmp_path: Path) -> None:
    code = f"""
import contextlib, io, sys, typer.main
sys.argv = ["sapo", "paths", "--home", {str(tmp_path)!r}]
from sapo_edge.cli.commands import PLACES
from sapo_edge.cli.main import app, main
typer.main.get_command(app)
modules = {{"sapo_edge.cli." + place.rpartition(".")[0] for place in PLACES.values()}}
early = modules & set(sys.modules)
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main()
print(sorted(early), sorted(modules & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.strip() == "[] ['sapo_edge.cli.config']"


def test_a_node_loads_no_terminal_app(tmp_path: Path) -> None:
    code = "import sapo_edge.cli.main, sapo_edge.node.controlled, sapo_edge.backends.llama.policy"
    assert loaded(code, tmp_path, ("textual", "sapo_edge.tui")) == ""


@pytest.mark.parametrize(
    ("arguments", "variables", "is_app"),
    [([], {}, True), (["paths"], {}, False), ([], {"_SAPO_COMPLETE": "source_bash"}, False)],
)
def test_only_the_app_without_arguments_needs_no_parser(
    arguments: list[str], variables: dict[str, str], is_app: bool, tmp_path: Path
) -> None:
    code = f"""
import sys
from sapo_edge.cli import entry
from sapo_edge.cli.terminal import app
sys.argv = ["sapo", *{arguments}]
entry.has_terminal = lambda: True
app.run_app = lambda home: print("app", home, "typer" in sys.modules, "pydantic" in sys.modules)
entry.main()
"""
    environment = {**os.environ, **variables, "SAPO_EDGE_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment, check=False
    )
    assert (done.stdout == "app None False False\n") == is_app and not done.stderr
