"""An adapter is asked with the prompt of its training; what an export may leave and replace."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from sapo_edge.backends.adapter import merged
from sapo_edge.backends.adapter.export import ExportFormat
from sapo_edge.backends.adapter.files import adapter_shapes, write_state
from sapo_edge.backends.model.source import open_source, shape_of
from sapo_edge.care.signals import handling
from sapo_edge.cli.adapters import export
from sapo_edge.errors import StateError
from sapo_edge.library.adapters import export_adapter, open_conversation
from sapo_edge.library.workspace import Workspace, open_workspace
from sapo_edge.policy import LoraSettings
from sapo_edge.state.checkpoint import Checkpoint
from sapo_edge.state.checkpoints import Checkpoints
from sapo_edge.state.paths import Paths
from sapo_edge.swarm.joining.invite import Swarm
from sapo_edge.swarm.joining.membership import Membership
from sapo_edge.tasks.manifest import load_manifest
from tests.models import SHAPES, write_model

TRAINED_ON, JOINED = load_manifest("starter"), load_manifest("home")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "tiny.gguf", SHAPES["llama-gqa"])


@pytest.fixture
def home(model: Path, tmp_path: Path) -> Path:
    """A home whose adapter was trained on one manifest, and that joined the swarm of another one since."""
    source, paths = open_source(model), Paths.default(tmp_path / "home")
    shapes = adapter_shapes(shape_of(source), 2)
    write = partial(
        write_state, lora=LoraSettings(2, 4.0, 0), base="tiny", optimizer={},
        adapter={name: np.zeros(shape, np.float32) for name, shape in shapes.items()},
    )  # fmt: skip
    Checkpoints(paths.checkpoints).save(Checkpoint(3, source.digest, TRAINED_ON.digest, 1), write)
    Membership(paths.state).join(Swarm.of(JOINED))
    return tmp_path / "home"


def test_a_merged_model_comes_with_the_prompt_of_its_training_and_it_is_said_whose(
    home: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An adapter that is no checkpoint doesn't name the manifest that it was trained on."""
    workspace = open_workspace(home, {"model": str(model)})
    assert workspace.manifest == JOINED
    alone = export_adapter(workspace, None, "peft", tmp_path / "alone")
    for adapter, manifest, other in ((None, TRAINED_ON, JOINED), (alone, JOINED, TRAINED_ON)):
        export(tmp_path / "out", ExportFormat.MERGED, adapter=adapter, model=str(model), home=home)
        text = (tmp_path / "out" / "Modelfile").read_text()
        assert manifest.system in text and other.system not in text
        assert f"the prompt of the manifest {manifest.name};" in capsys.readouterr().err


def test_a_merged_model_does_not_replace_the_one_that_it_is_made_of(home: Path, model: Path, tmp_path: Path) -> None:
    """Somebody trains on from what an earlier run exported, and exports to the same place."""
    base = shutil.copyfile(model, tmp_path / "merged-q8_0.gguf")
    workspace = open_workspace(home, {"model": str(base)})
    with pytest.raises(StateError, match="was trained on") as caught:
        export_adapter(workspace, None, "merged", tmp_path)
    assert caught.value.remedy and base.read_bytes() == model.read_bytes()
    assert export_adapter(workspace, None, "merged", tmp_path, "f16").is_file()


def test_what_stops_an_export_leaves_no_hidden_half_of_a_model(
    home: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(_header: object, file: Path, *_: object) -> None:
        file.write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGTERM)

    def interrupted(_tensors: object, file: Path, metadata: object) -> None:
        file.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(merged, "write_gguf", stopped)
    with handling([signal.SIGTERM], lambda *_: None), pytest.raises(SystemExit) as ended:
        export(tmp_path / "out", ExportFormat.MERGED, model=str(model), home=home)
    assert ended.value.code == 128 + signal.SIGTERM and not (tmp_path / "out").exists()
    monkeypatch.setitem(sys.modules, "safetensors.torch", SimpleNamespace(save_file=interrupted))
    monkeypatch.setattr("safetensors.safe_open", lambda *_, **__: nullcontext())
    (tmp_path / "out").mkdir()
    with pytest.raises(KeyboardInterrupt):
        merged._merge_file(model, [], tmp_path / "out" / "model.safetensors", {}, 1.0)
    assert not list((tmp_path / "out").iterdir())


def test_a_chat_asks_as_in_training_unless_told_how(home: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = SimpleNamespace(model_digest=open_source(model).digest, load=str, close=str)
    monkeypatch.setattr(Workspace, "open_policy", lambda *_, **__: (policy, ()))
    for named, name in ((None, "starter"), ("home", "home")):
        workspace = open_workspace(home, {"model": str(model), "manifest": named})
        with open_conversation(workspace, None, print) as (_, models):
            assert models.manifest == name
