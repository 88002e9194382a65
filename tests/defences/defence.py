"""What a defence is: a piece of code, and the tests that fail without it."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Defence:
    """A bound, rate, refusal or check, and how to remove it.

    Attributes:
        name: in plain words; unique.
        file: path from the root of the repository.
        snippet: code that stands exactly once in the file; without it the defence is gone.
        without: what the snippet becomes.
        tests: pytest ids, without parameters, of tests that fail then.
    """

    name: str
    file: str
    snippet: str
    without: str
    tests: tuple[str, ...]

    def removed(self, root: Path) -> str:
        """The file's text without the defence.

        Raises:
            ValueError: if the snippet does not stand exactly once in the file.
        """
        path = root / self.file
        text = path.read_text() if path.is_file() else ""
        if (count := text.count(self.snippet)) != 1:
            raise ValueError(f"its snippet stands {count} times in {self.file}, not once: {self.snippet.strip()!r}")
        return text.replace(self.snippet, self.without)

    def problems(self, root: Path) -> list[str]:
        """What is wrong with this entry, without running anything."""
        problems = [] if self.tests else ["it names no test"]
        try:
            compile(self.removed(root), self.file, "exec")
        except SyntaxError as error:
            problems.append(f"{self.file} does not compile without it: {error}")
        except ValueError as error:
            problems.append(str(error))
        problems += [f"there is no test {test}" for test in self.tests if not test_exists(root, test)]
        return [f"{self.name}: {problem}" for problem in problems]


@dataclass(frozen=True, slots=True)
class Defences:
    """What makes the entries of one file.

    Attributes:
        tests: the file of those tests that name none.
    """

    file: str
    tests: str

    def __call__(self, name: str, snippet: str, without: str, *tests: str) -> Defence:
        ids = tuple(test if "::" in test else f"{self.tests}::{test}" for test in tests)
        return Defence(name, self.file, snippet, without, ids)

    def condition(self, name: str, snippet: str, *tests: str) -> Defence:
        """A line `if ...:`, `elif ...:` or `while ...:` whose condition is never true without the defence."""
        return self(name, snippet, f"{snippet.split()[0]} False:", *tests)


def test_exists(root: Path, test: str) -> bool:
    """Whether a pytest id without parameters, `FILE::NAME`, is a function of that file."""
    file, _, name = test.partition("::")
    return name in _functions(root / file)


@cache
def _functions(path: Path) -> frozenset[str]:
    if not path.is_file():
        return frozenset()
    nodes = ast.parse(path.read_text()).body
    return frozenset(node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
