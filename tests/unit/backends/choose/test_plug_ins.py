"""Backends that other packages add: the example of the documentation, and packages that are broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
Run = Callable[[str], str]


def example() -> str:
    """The module to which `docs/backends.md` links."""
    return (ROOT / "docs" / "examples" / "echo_backend.py").read_text("utf-8")


def install(directory: Path, package: str, module: str, code: str, entries: dict[str, str]) -> None:
    """Install a package with entry points as pip does."""
    (directory / f"{module}.py").write_text(code)
    info = directory / f"{package.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [f"{name} = {target}" for name, target in entries.items()]
    (info / "entry_points.txt").write_text("\n".join(["[sapo_edge.backends]", *lines, ""]))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs Python where packages in `tmp_path` are installed; returns what it prints."""

    def python(code: str) -> str:
        environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
        ended = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.strip()

    return python


FIND = """
from sapo_edge.backends.choose.detect import detect, survey
from sapo_edge.errors import BackendError
try:
    print(detect({name!r}))
except BackendError as error:
    print("refused:", error)
print([(backend.name, support.usable, support.reason) for backend, support in survey()])
print(detect().name)
"""


def test_the_documented_example_is_found_opened_and_answers(tmp_path: Path, run: Run) -> None:
    install(tmp_path, "sapo-echo", "sapo_echo", example(), {"echo": "sapo_echo:BACKEND"})
    output = run("""
import json
from pathlib import Path
from sapo_edge.backends.choose.detect import detect, open_policy
from sapo_edge.policy import LoraSettings, Message
from sapo_edge.config.settings import SETTINGS
SETTINGS["backend"].check("echo", "flag")
choice = detect("echo")
policy, reasons = open_policy(
    choice, Path("model.gguf"), cache=Path("."), workspace=Path("."), lora=LoraSettings(), threads=1, trainable=False,
    narrate=print,
)
((sample,),) = policy.generate([(Message("user", "hello"),)], 1, 8, 1.0, 0)
print(json.dumps([choice.name, choice.automatic, policy.backend, sample.text, list(reasons)]))
""")
    name, automatic, backend, text, reasons = json.loads(output)
    assert (name, automatic, backend, text) == ("echo", False, "echo", "hello")
    assert "as set" in reasons[0]


def test_another_packages_backend_is_chosen_only_if_set(tmp_path: Path, run: Run) -> None:
    eager = example().replace("Support(True, 0,", "Support(True, 1000,")
    assert eager != example()
    install(tmp_path, "sapo-echo", "sapo_echo", eager, {"echo": "sapo_echo:BACKEND"})
    assert run(FIND.format(name="echo")).splitlines()[-1] == "llama_cpp"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise RuntimeError('half installed')", "half installed"),
        ("import no_such_library", "no_such_library"),
        ("BACKEND = 7", "is no backend"),
        ("", "can't be loaded"),
        ("import ctypes\nctypes.CDLL('libnothing.so.7')", "libnothing"),
    ],
)
def test_a_broken_package_affects_nothing_else(tmp_path: Path, run: Run, code: str, message: str) -> None:
    install(tmp_path, "sapo-broken", "sapo_broken", code, {"broken": "sapo_broken:BACKEND"})
    refused, survey, chosen = run(FIND.format(name="broken")).splitlines()
    assert refused.startswith("refused:") and message in refused and "sapo-broken" in refused
    assert "('llama_cpp', True" in survey and "('broken', False" in survey
    assert chosen == "llama_cpp"


def test_a_backend_that_fails_to_look_is_not_used(tmp_path: Path, run: Run) -> None:
    code = example().replace("return Support(", "1 / 0\n    return Support(")
    install(tmp_path, "sapo-echo", "sapo_echo", code, {"echo": "sapo_echo:BACKEND"})
    refused, survey, _ = run(FIND.format(name="echo")).splitlines()
    assert "ZeroDivisionError" in refused and "('echo', False" in survey


def test_a_built_in_name_cannot_be_replaced(tmp_path: Path, run: Run) -> None:
    install(tmp_path, "sapo-thief", "sapo_thief", "raise RuntimeError", {"torch": "sapo_thief:BACKEND", "A b": "x:y"})
    choice, survey, _ = run(FIND.format(name="torch")).splitlines()
    assert "as set" in choice and survey.count("'torch'") == 1 and "A b" not in survey


@pytest.mark.parametrize(("broken", "left"), [("torch", "llama_cpp"), ("llama_cpp", "mlx"), ("mlx", "llama_cpp")])
def test_a_broken_library_of_one_backend_leaves_the_others_alone(
    tmp_path: Path, run: Run, broken: str, left: str
) -> None:
    """Detection imports none, so only probing shows that one is broken."""
    (tmp_path / broken).mkdir()
    (tmp_path / broken / "__init__.py").write_text("raise ImportError('libsomething.so.1: cannot open')")
    code = f"""
import json
from sapo_edge.backends.choose.detect import detect, probe
from sapo_edge.backends.choose.registry import find_backend
failed = probe([find_backend({broken!r}), find_backend({left!r})])
print(json.dumps([detect().name, failed]))
"""
    chosen, failed = json.loads(run(code))
    assert chosen == "llama_cpp"
    assert "libsomething" in failed[broken] and "libsomething" not in failed.get(left, "")
