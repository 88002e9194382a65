#!/usr/bin/env python3
"""Prints how much there is to carry: lines of product and tests, words of docs, and the minutes of the last CI."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SECONDS = ROOT / "build/ci-seconds"
"""A phase a line with its seconds, as `.ci/run` writes it."""
APART = {"CHANGELOG.md", "THIRD_PARTY.md"}
PRODUCT = ("sapo_edge/", "backends/", "tui/")


def main() -> None:
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    product = [file for file in files if file.startswith(PRODUCT) and file.endswith(".py")]
    tests = [file for file in files if file.startswith("tests/") and file.endswith(".py")]
    pages = {file for file in files if file.endswith(".md") and file.rpartition("/")[0] in ("", "docs")} - APART
    lines, code, docstrings = map(sum, zip(*map(counted, product), strict=True))
    print(f"product     {lines:7,} lines in {len(product)} files: {code:,} of code, {docstrings:,} of docstrings")
    print(f"tests       {sum(counted(file)[0] for file in tests):7,} lines in {len(tests)} files")
    print(f"docs        {words(pages):7,} words, and {words(['CHANGELOG.md']):,} of CHANGELOG.md")
    if SECONDS.exists():
        phases = [line.rpartition(" ") for line in SECONDS.read_text("utf-8").splitlines()]
        print("CI          " + ", ".join(f"{name} {int(seconds) / 60:.1f}" for name, _, seconds in phases) + " minutes")


def counted(file: str) -> tuple[int, int, int]:
    """All lines, those of code, and those of docstrings; blank ones and comments are neither."""
    text = (ROOT / file).read_text("utf-8")
    documented = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for statement in node.body
        if isinstance(statement, ast.Expr) and isinstance(getattr(statement.value, "value", None), str)
        for line in range(statement.lineno, (statement.end_lineno or 0) + 1)
    }
    lines = [line.strip() for line in text.splitlines()]
    code = [number for number, line in enumerate(lines, 1) if line and not line.startswith("#")]
    return len(lines), len(set(code) - documented), len(documented)


def words(files: Iterable[str]) -> int:
    """Words of some files, as `wc -w` counts them."""
    return sum(len((ROOT / file).read_text("utf-8").split()) for file in files)


if __name__ == "__main__":
    main()
