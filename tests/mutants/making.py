"""Makes mutants of a file with the operators of mutmut, and puts them into modules that are already loaded."""

from __future__ import annotations

import difflib
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

PLAIN = (bool, int, float, str, bytes, tuple, list, dict, set, frozenset, type(None))
TEXT = (cst.BaseString, cst.FormattedString)
LEFT_OUT = (cst.Annotation, cst.Decorator, cst.Import, cst.ImportFrom, cst.Assert)


def _negated(statement: cst.If | cst.While) -> Iterator[cst.CSTNode]:
    inside = statement.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    yield statement.with_changes(test=cst.UnaryOperation(cst.Not(), inside))


def _dropped(statement: cst.Expr) -> Iterator[cst.CSTNode]:
    yield statement.with_changes(value=cst.Ellipsis())


OPERATORS: tuple[tuple[Any, Callable[[Any], Iterable[cst.CSTNode]]], ...] = (
    *mutation_operators, ((cst.If, cst.While), _negated), (cst.Expr, _dropped),
)  # fmt: skip
"""mutmut's, a condition turned round, and a call left out."""


@dataclass(eq=False)
class Mutant:
    """One change of one file, whose path is from the root; of its lines one runs if the changed code runs.

    It is inside the body of a function, or else runs at import.
    """

    file: Path
    module: cst.Module
    node: cst.CSTNode
    becomes: cst.CSTNode
    inside: bool
    lines: range

    @cached_property
    def text(self) -> str:
        changed = self.module.deep_replace(self.node, self.becomes)
        assert isinstance(changed, cst.Module)
        return str(changed.code)

    @cached_property
    def key(self) -> tuple[str, str, str]:
        """The file, its lines that change, and what they become: what it is known by when the file's lines move."""
        lines = [*difflib.ndiff(self.module.code.splitlines(), self.text.splitlines())]
        old, new = (" ".join(line[2:].strip() for line in lines if line[0] == sign) for sign in "-+")
        return str(self.file), old, new

    def apply(self, functions: list[FunctionType]) -> bool:
        """Change the loaded module, given all functions that exist; False if it can't be changed after its import."""
        code = compile(self.text, str(self.file.resolve()), "exec", dont_inherit=True)
        if not self.inside:
            return _apply_values(code)
        changed = dict(_codes(code))
        for function in functions:
            place = (function.__code__.co_qualname, function.__code__.co_firstlineno)
            if function.__code__.co_filename == code.co_filename and place in changed:
                function.__code__ = changed[place]
        return True


def mutants(file: Path, share: float) -> Iterator[Mutant]:
    """A random share of the mutants of a file, the same each time."""
    wrapper = MetadataWrapper(cst.parse_module(file.read_text("utf-8")))
    positions = wrapper.resolve(PositionProvider)

    def visit(node: cst.CSTNode, inside: bool, raising: bool, line: int) -> Iterator[Mutant]:
        if isinstance(node, LEFT_OUT) or (raising and isinstance(node, TEXT)) or _is_prose(node):
            return
        if isinstance(node, cst.BaseSmallStatement | cst.BaseCompoundStatement | cst.ExceptHandler):
            line = positions[node].start.line
        place = node.test if isinstance(node, cst.If | cst.While) else node
        lines = range(line, max(line, positions[place].start.line if place in positions else line) + 1)
        for kind, operator in OPERATORS:
            if isinstance(node, kind):
                for becomes in operator(node):
                    yield Mutant(file, wrapper.module, node, becomes, inside, lines)
        for child in node.children:
            body = inside or (isinstance(node, cst.FunctionDef) and child is node.body)
            yield from visit(child, body, raising or isinstance(node, cst.Raise), line)

    seen: Counter[str] = Counter()
    for mutant in visit(wrapper.module, False, False, 1):
        change = " -> ".join(wrapper.module.code_for_node(node) for node in (mutant.node, mutant.becomes))
        seen[change] += 1
        if random.Random(f"{file} {seen[change]} {change}").random() < share:
            yield mutant


def _is_prose(node: cst.CSTNode) -> bool:
    is_docstring = isinstance(node, cst.Expr) and isinstance(node.value, cst.BaseString)
    return is_docstring or (isinstance(node, cst.SimpleString) and " " in node.value)


def _codes(code: CodeType) -> Iterator[tuple[tuple[str, int], CodeType]]:
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield (inner.co_qualname, inner.co_firstlineno), inner
            yield from _codes(inner)


def _apply_values(code: CodeType) -> bool:
    """Run a module again beside itself, and take over the plain values that differ, wherever they were imported."""
    loaded = next(module for module in [*sys.modules.values()] if getattr(module, "__file__", "") == code.co_filename)
    old = vars(loaded)
    new = {"__name__": loaded.__name__, "__package__": loaded.__package__, "__file__": code.co_filename}
    exec(code, new)
    changed = {
        name: value
        for name, value in new.items()
        if isinstance(value, PLAIN) and name in old and not name.startswith("__") and repr(value) != repr(old[name])
    }
    for module in [*sys.modules.values()]:
        for name in changed.keys() & vars(module).keys():
            if vars(module)[name] is old[name] and module is not loaded:
                setattr(module, name, changed[name])
    old.update(changed)
    return bool(changed)
