"""The scripts of `packaging/`, which are in no package, as modules; and programs for them to call."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def program(file: Path, text: str) -> None:
    file.write_text(text)
    file.chmod(0o755)


def load_script(name: str) -> Any:
    """`packaging/NAME.py` as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"packaging/{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
