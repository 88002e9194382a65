"""What is heavy loads where it is used: help is quick, no headless node loads the app, a relay needs little."""

from __future__ import annotations

import json
import os
import signal
import tomllib
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import psutil
import pytest
import trio
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from sapo_edge.swarm.addresses import parse_address
from sapo_edge.swarm.finding.directory import ask
from sapo_edge.swarm.wire.exchange import ExchangeRequest
from tests.benchmarks.relay import MOST_AT_START
from tests.cli.process import python
from tests.swarm.lines import LineProcess
from tests.swarm.visits.test_relay import OK, Host

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


def test_the_app_without_arguments_needs_no_parser(tmp_path: Path) -> None:
    code = """
import sys
from sapo_edge.cli import entry
from sapo_edge.cli.terminal import app
sys.argv = ["sapo"]
entry.has_terminal = lambda: True
app.run_app = lambda home: print("app", home, "typer" in sys.modules, "pydantic" in sys.modules)
entry.main()
"""
    done = python("-c", code, directory=tmp_path, SAPO_EDGE_HOME=str(tmp_path / "home"))
    assert done.out == "app None False False\n" and not done.err


def test_windows_is_refused_before_anything_is_imported_that_it_lacks(tmp_path: Path) -> None:
    code = """
import os, sys
sys.modules.update(dict.fromkeys(("fcntl", "resource", "termios", "pwd", "grp")))
from sapo_edge.cli import entry
os.name = "nt"
entry.main()
"""
    done = python("-c", code, directory=tmp_path)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("sapo: ") and "`wsl --install`" in done.err and done.err.count("\n") == 1


ROOT = Path(__file__).parents[2]
TRAINING = {
    "accelerate", "gguf", "llama_cpp", "matplotlib", "mlx", "mlx_lm", "numpy", "peft", "reasoning_gym", "safetensors",
    "scipy", "sympy", "textual", "tokenizers", "torch", "transformers",
}  # fmt: skip
SITE = """
import importlib.abc, json, os, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

absent = set(json.loads(os.environ["ABSENT"]))
sys.meta_path.insert(0, Absent())
"""
"""A `sitecustomize` of programs that run as if some modules were not installed."""


@pytest.fixture(scope="module")
def absent() -> set[str]:
    """Modules that are installed here and would not be on a relay.

    There pip installs the wheel that `packaging/wheels.py core` writes, with the extra `swarm`.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines, present = [*project["dependencies"], *project["optional-dependencies"]["swarm"]], {"sapo-edge"}
    while lines:
        requirement = Requirement(lines.pop())
        name = canonicalize_name(requirement.name)
        if name not in present and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            present.add(name)
            lines += requires(name) or ()
    installed = packages_distributions().items()
    modules = {module for module, names in installed if present.isdisjoint(map(canonicalize_name, names))}
    assert modules & TRAINING and "libp2p" not in modules
    return modules | TRAINING


@pytest.fixture
def without(absent: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that are started now lack these modules."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(SITE)
    monkeypatch.setenv("ABSENT", json.dumps(sorted(absent)))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "site"), str(ROOT)]))


@pytest.mark.usefixtures("without")
def test_a_relay_runs_without_what_trains(tmp_path: Path) -> None:
    options = ("--loopback", "--port", "0", "--json", "--home", str(tmp_path))
    process = LineProcess("-m", "sapo_edge", "relay", *options, fork=False)
    try:
        relay = parse_address(process.first(lambda line: "addresses" in line)["addresses"][0])

        async def scenario() -> None:
            async with Host().running() as member:
                await member.join(relay)
                assert await member.reserve() == OK
                answer = await ask(member.host, relay.peer_id, ExchangeRequest(bytes(32), 0, (), False))
                assert answer is not None and answer.seen == "127.0.0.1"

        trio.run(scenario)
        memory = psutil.Process(process.process.pid).memory_info()
        assert memory.rss < MOST_AT_START * 1e6, "an import on the way of a relay has become heavy"
        process.process.send_signal(signal.SIGINT)
        assert process.process.wait(20) == 0
    finally:
        process.kill()


@pytest.mark.parametrize("arguments", [("run", "--solo", "--rounds", "1"), ("bench",), ("chat",)])
@pytest.mark.usefixtures("without")
def test_other_commands_name_what_is_missing(arguments: tuple[str, ...], tmp_path: Path) -> None:
    ended = python("-m", "sapo_edge", *arguments, "--home", tmp_path, directory=ROOT)
    assert ended.code == 1 and ended.err.startswith("sapo: "), ended.err
    assert "install" in ended.err and "Traceback" not in ended.err
