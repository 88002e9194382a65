"""What is heavy loads where it is used: help is quick, and a headless node never loads the terminal app."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.process import python

HEAVY = (
    "torch", "mlx", "llama_cpp", "textual", "libp2p", "trio", "reasoning_gym", "transformers", "peft", "numpy",
    "gguf", "safetensors", "sapo_edge.tui",
)  # fmt: skip
MODULES = (
    "sapo_edge", "sapo_edge.cli.main", "sapo_edge.node", "sapo_edge.sapo", "sapo_edge.state.store",
    "sapo_edge.tasks.manifest", "sapo_edge.tasks.source", "sapo_edge.swarm.memory", "sapo_edge.doctor.machine",
    "sapo_edge.backends.choose.detect", "sapo_edge.node.rounds", "sapo_edge.control.server",
    "sapo_edge.doctor.bench", "sapo_edge.node.methods", "sapo_edge.config.layers", "sapo_edge.state.logs",
)  # fmt: skip
COMMANDS = (["--help"], ["run", "--help"], ["--version"], ["config", "show"], ["paths"])


def test_neither_these_modules_nor_these_commands_load_anything_heavy_nor_a_node_the_app(tmp_path: Path) -> None:
    code = f"""
import contextlib, importlib, io, sys
def check(what, names={HEAVY}):
    found = [name for name in names if name in sys.modules]
    assert not found, (what, found)
for module in {MODULES}:
    importlib.import_module(module)
    check(module)
from sapo_edge.cli.main import main
for arguments in {COMMANDS}:
    sys.argv = ["sapo", *arguments]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main()
    check(arguments)
import sapo_edge.node.controlled, sapo_edge.backends.llama.policy
check("a node", ("textual", "sapo_edge.tui"))
"""
    python("-c", code, directory=tmp_path, SAPO_EDGE_HOME=str(tmp_path)).ok()


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
    assert python("-c", code, directory=tmp_path).ok().out.strip() == "[] ['sapo_edge.cli.config']"


@pytest.mark.parametrize(("arguments", "variables", "is_app"), [
    ([], {}, True), (["paths"], {}, False), ([], {"_SAPO_COMPLETE": "source_bash"}, False),
])  # fmt: skip
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
    done = python("-c", code, directory=tmp_path, SAPO_EDGE_HOME=str(tmp_path / "home"), **variables)
    assert (done.out == "app None False False\n") == is_app and not done.err
