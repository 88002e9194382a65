"""No verifier can reach code that evaluates text: a scan follows the source of everything it calls.

The scan resolves names as Python does, in the module of each function, and follows functions, classes and modules of
ReasoningGYM and of this project. Anything else must not be on the lists of forbidden names.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from types import FunctionType, ModuleType
from typing import Any

import pytest

import sapo_edge.tasks.verifiers as verifiers
from sapo_edge.tasks.allowed import ALLOWED
from sapo_edge.tasks.library import generate, make_dataset
from sapo_edge.tasks.readings import extract_answer

FOLLOWED = ("sapo_edge", "reasoning_gym")
FORBIDDEN_BUILTINS = {
    "__import__", "breakpoint", "compile", "delattr", "eval", "exec", "globals", "input", "locals", "open", "setattr",
    "vars",
}  # fmt: skip
FORBIDDEN_MODULES = {
    "ast", "builtins", "code", "codeop", "ctypes", "dill", "importlib", "inspect", "io", "marshal", "multiprocessing",
    "numexpr", "os", "pathlib", "pickle", "pty", "runpy", "shelve", "shutil", "socket", "subprocess", "sympy", "sys",
    "threading", "types", "yaml",
}  # fmt: skip
FORBIDDEN_ATTRIBUTES = {
    "__builtins__", "__code__", "__dict__", "__getattribute__", "__globals__", "__import__", "__reduce__",
    "__subclasses__", "eval", "exec", "exec_module", "import_module", "literal_eval", "parse_expr", "popen", "sympify",
    "system",
}  # fmt: skip
MISSING = object()


class Scan:
    """All code that a function can reach; `findings` lists what is forbidden."""

    def __init__(self) -> None:
        self.findings: list[str] = []
        self.reached: set[str] = set()
        self._seen: set[tuple[object, object]] = set()

    def follow(self, target: object, owner: type | None = None) -> None:
        """Scan a function and all it can reach; `owner` is the class of its `self`."""
        if isinstance(target, Mapping):
            for value in target.values():
                self.follow(value)
            return
        target = inspect.unwrap(target) if callable(target) else target
        module = getattr(target, "__module__", None)
        module = module if isinstance(module, str) else ""
        if module != "builtins" and module.split(".")[0] in FORBIDDEN_MODULES:
            self.findings.append(f"{module} by {getattr(target, '__qualname__', target)}")
        if not module.startswith(FOLLOWED) or (id(target), owner) in self._seen:
            return
        self._seen.add((id(target), owner))
        if isinstance(target, type):
            for base in target.__mro__:
                if base.__module__.startswith(FOLLOWED):
                    for member in vars(base).values():
                        self.follow(getattr(member, "__func__", getattr(member, "fget", member)), target)
        elif isinstance(target, FunctionType):
            if is_dataclass(owner) and target.__code__.co_filename == "<string>":
                return  # written by dataclasses, from the names of the fields
            self.reached.add(f"{module}.{target.__qualname__}")
            self._scan(target, owner)

    def _scan(self, function: FunctionType, owner: type | None) -> None:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        name = f"{function.__module__}.{function.__qualname__}"
        captured = inspect.getclosurevars(function).nonlocals
        # `self.name` reaches one member; a bare `self` may be handed on, and reaches all.
        qualifiers = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                self.findings.append(f"import inside of {name}")
            elif isinstance(node, ast.Name):
                found = _resolve(node, function, captured, owner)
                if found is not owner or id(node) not in qualifiers:
                    self._meet(found, node.id, name)
            elif isinstance(node, ast.Attribute):
                if node.attr in FORBIDDEN_ATTRIBUTES:
                    self.findings.append(f"{node.attr} in {name}")
                found = _resolve(node, function, captured, owner)
                if isinstance(found, ModuleType):
                    self._meet(found, node.attr, name)
                elif found is not MISSING:
                    self.follow(getattr(found, "__func__", getattr(found, "fget", found)), owner)
            elif _is_computed_getattr(node):
                self.findings.append(f"getattr of a computed name in {name}")

    def _meet(self, found: object, called: str, where: str) -> None:
        if isinstance(found, ModuleType):
            if found.__name__.split(".")[0] in FORBIDDEN_MODULES:
                self.findings.append(f"module {found.__name__} in {where}")
        elif getattr(builtins, called, MISSING) is found and called in FORBIDDEN_BUILTINS:
            self.findings.append(f"{called} in {where}")
        elif found is not MISSING:
            self.follow(found)


def _is_computed_getattr(node: ast.AST) -> bool:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr"):
        return False
    return len(node.args) < 2 or not isinstance(node.args[1], ast.Constant)


def _resolve(node: ast.expr, function: FunctionType, captured: Mapping[str, Any], owner: type | None) -> object:
    """The object of a dotted name, as far as it can be resolved without running code."""
    if isinstance(node, ast.Name):
        if node.id in ("self", "cls") and owner is not None:
            return owner
        for scope in (captured, function.__globals__, vars(builtins)):
            if node.id in scope:
                return scope[node.id]
    if isinstance(node, ast.Attribute):
        parent = _resolve(node.value, function, captured, owner)
        if isinstance(parent, type | ModuleType):
            return inspect.getattr_static(parent, node.attr, MISSING)
    return MISSING


def library_class(generator: str) -> type:
    make_dataset("gcd", {})
    found: type = importlib.import_module("reasoning_gym.factory").DATASETS[generator][0]
    return found


def scan_library(generator: str) -> Scan:
    scan = Scan()
    owner = library_class(generator)
    scan.follow(vars(next(base for base in owner.__mro__ if "score_answer" in vars(base)))["score_answer"], owner)
    return scan


@pytest.mark.parametrize("generator", sorted(ALLOWED.keys() - verifiers.OWN_VERIFIERS))
def test_no_used_library_verifier_reaches_evaluation(generator: str) -> None:
    scan = scan_library(generator)
    assert scan.findings == [] and any(name.endswith("score_answer") for name in scan.reached)


def test_finding_an_answer_and_own_verifiers_reach_no_evaluation() -> None:
    scan = Scan()
    scan.follow(extract_answer)
    scan.follow(verifiers.verify)
    assert scan.findings == []
    assert {f"sapo_edge.tasks.verifiers.{one.__name__}" for one in verifiers.OWN_VERIFIERS.values()} <= scan.reached


def test_the_scan_follows_methods_modules_and_base_classes() -> None:
    assert "reasoning_gym.utils.compute_decimal_reward" in scan_library("chain_sum").reached
    assert "reasoning_gym.dataset.ProceduralDataset.score_answer" in scan_library("gcd").reached
    assert any(name.endswith("._normalize_answer") for name in scan_library("prime_factorization").reached)


@pytest.mark.parametrize(("generator", "reason"), [
    ("binary_matrix", "eval in"), ("bitwise_arithmetic", "eval in"), ("countdown", "sympy"),
    ("intermediate_integration", "sympy"), ("n_queens", "eval in"), ("number_sorting", "eval in"),
    ("polynomial_multiplication", "sympy"), ("puzzle24", "sympy"), ("simple_integration", "sympy"),
    ("spiral_matrix", "eval in"), ("string_insertion", "eval in"),
])  # fmt: skip
def test_the_scan_finds_the_evaluation_in_unused_verifiers(generator: str, reason: str) -> None:
    assert any(reason in finding for finding in scan_library(generator).findings)


def hidden(text: str) -> Iterator[object]:
    yield (lambda inner: eval(inner))(text)


def by_name(text: str) -> object:
    return getattr(builtins, text)


def late(text: str) -> object:
    import pickle

    return pickle


@pytest.mark.parametrize("function", [hidden, by_name, late, generate])
def test_the_scan_finds_hidden_evaluation(function: FunctionType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "FOLLOWED", (*FOLLOWED, __name__))
    scan = Scan()
    scan.follow(library_class("bitwise_arithmetic") if function is generate else function)
    assert scan.findings
