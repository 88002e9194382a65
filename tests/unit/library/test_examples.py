"""The script of docs/python.md and the notebook beside it, run as a user runs them, with a tiny model."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import sapo_edge as sapo
from tests.forked import Forked
from tests.models import SHAPES, write_model

ROOT = Path(__file__).parents[3]
QUICK = {  # rounds of a fraction of a second
    "own": "2", "external": "0", "answers": "4", "threads": "1", "seed": "3", "rank": "2", "max_tokens": "8",
    "held_out": "4", "head_start": "2",
}  # fmt: skip


def test_script_and_notebook_do_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "docs" / "examples", tmp_path / "docs" / "examples")
    model = write_model(tmp_path / "tiny.gguf", SHAPES["llama-gqa"])
    for name, value in {**QUICK, "model": str(model)}.items():
        monkeypatch.setenv(f"SAPO_EDGE_{name.upper()}", value)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    script = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text("utf-8"), re.DOTALL)[0]
    (tmp_path / "script.py").write_text(script)
    environment = {**os.environ, "SAPO_EDGE_HOME": str(tmp_path / "script")}
    # Both at the same time. The notebook's kernel is a new process, and shows that nothing needs to be loaded before.
    started = Forked("script.py", directory=tmp_path, environment=environment)
    monkeypatch.setenv("SAPO_EDGE_HOME", str(tmp_path / "notebook"))
    notebook = nbformat.read(tmp_path / "docs" / "examples" / "requests.ipynb", as_version=4)  # type: ignore[no-untyped-call]
    where = {"metadata": {"path": str(tmp_path / "docs" / "examples")}}
    NotebookClient(notebook, timeout=120, resources=where).execute()
    with started:
        out, errors = started.communicate(timeout=120)
    assert started.returncode == 0, errors
    printed = out.splitlines()
    assert printed[0].startswith("4 test questions:") and printed[-1].startswith("my-model/merged")
    texts = [output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", ())]
    assert any(text.startswith(printed[0]) for text in texts)

    runs = [sapo.open_run(home=tmp_path / name) for name in ("script", "notebook")]
    assert [len(run.rounds) for run in runs] == [10, 10]
    adapters = [run.adapter / "adapter_model.safetensors" for run in runs if run.adapter is not None]
    assert adapters[0].read_bytes() == adapters[1].read_bytes() and runs[0].results == runs[1].results
