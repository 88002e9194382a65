"""What a defence is: a piece of code, and the tests that fail without it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).parents[2]
Test = TypeVar("Test")


def fails_without(file: str, snippet: str, without: str | None = None) -> Callable[[Test], Test]:
    """Say of a test that it fails without a defence: a bound, a rate, a refusal or a check.

    Args:
        file: a file of `sapo_edge/`, or `backends/...` or `tui/...`.
        snippet: code that stands exactly once in the file; without it the defence is gone.
        without: what the snippet becomes; None: nothing, and a condition (`if ...:`, `while ...:`) is never true.
    """
    return lambda test: test


@dataclass(frozen=True, slots=True)
class Defence:
    """What `fails_without` says, with the path from the root, and ids of all tests that say the same: no parameters."""

    file: str
    snippet: str
    without: str
    tests: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.file}: {self.snippet.strip().splitlines()[0]}"

    def removed(self, root: Path) -> str:
        """The file's text without the defence; a ValueError if the snippet does not stand exactly once in it."""
        path = root / self.file
        text = path.read_text() if path.is_file() else ""
        if (count := text.count(self.snippet)) != 1:
            raise ValueError(f"it stands {count} times in {self.file}, not once")
        return text.replace(self.snippet, self.without)

    def problem(self, root: Path) -> str:
        """What is wrong with this defence, without running anything; empty if nothing is."""
        try:
            compile(self.removed(root), self.file, "exec")
        except SyntaxError as error:
            return f"{self} ({', '.join(self.tests)}): the file does not compile without it: {error}"
        except ValueError as error:
            return f"{self} ({', '.join(self.tests)}): {error}"
        return ""


def defences(root: Path = ROOT) -> list[Defence]:
    """All defences that the tests below a directory name; the tests are read, not imported."""
    tests: dict[tuple[str, str, str], list[str]] = {}
    marked = (path for path in (root / "tests").rglob("test_*.py") if f"@{fails_without.__name__}(" in path.read_text())
    for path in sorted(marked):
        for name, marks in _functions(path).items():
            for mark in marks:
                tests.setdefault(mark, []).append(f"{path.relative_to(root)}::{name}")
    return [Defence(*mark, tuple(ids)) for mark, ids in tests.items()]


def test_exists(root: Path, test: str) -> bool:
    """Whether a pytest id without parameters, `FILE::NAME`, is a function of that file."""
    file, _, name = test.partition("::")
    return name in _functions(root / file)


@cache
def _functions(path: Path) -> dict[str, list[tuple[str, str, str]]]:
    """The functions of a file, and what each fails without."""
    nodes = ast.parse(path.read_text()).body if path.is_file() else []
    return {node.name: list(_marks(node)) for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def _marks(test: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[str, str, str]]:
    for mark in test.decorator_list:
        if isinstance(mark, ast.Call) and isinstance(mark.func, ast.Name) and mark.func.id == fails_without.__name__:
            file, snippet, *rest = (ast.literal_eval(argument) for argument in mark.args)
            word = snippet.split()[0]
            default = f"{word} False:" if word in {"if", "elif", "while"} and snippet.endswith(":") else ""
            yield file if file.startswith(("backends/", "tui/")) else f"sapo_edge/{file}", snippet, *(rest or [default])
