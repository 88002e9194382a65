"""The adapter that the sampler reads: in memory where the system can."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sapo_edge.backends.llama.adapter_file import AdapterFile
from sapo_edge.backends.llama.policy import LlamaCppPolicy
from sapo_edge.policy import LoraSettings
from tests.contract.training import STRONG, own_group
from tests.models import question


def sampled_after_updates(model: Path, workspace: Path) -> list[str]:
    policy = LlamaCppPolicy(model, cache=workspace / "cache", workspace=workspace, lora=LoraSettings(rank=4), threads=1)
    for _ in range(2):
        policy.update([own_group(policy, question("a"))], STRONG)
    answers = [sample.text for sample in policy.generate([question("b")], 4, 8, 1.0, 1)[0]]
    policy.close()
    return answers


def files_in_memory() -> set[str]:
    """Descriptors of adapters' files that this process has open."""
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return {link.name for link in links if "sapo-edge-adapter" in os.readlink(link)}


IN_MEMORY = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no files in memory")


@IN_MEMORY
def test_the_memory_is_free_again_without_close(tmp_path: Path) -> None:
    open_before = files_in_memory()
    file = AdapterFile(tmp_path)
    assert len(files_in_memory() - open_before) == 1
    del file
    assert files_in_memory() <= open_before


@IN_MEMORY
def test_a_round_writes_no_adapter_to_the_disk(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_before = files_in_memory()
    answers = sampled_after_updates(models["llama-gqa"], tmp_path)
    assert not list(tmp_path.glob("*.gguf*"))
    assert files_in_memory() <= open_before, "policies of other tests may have theirs"

    monkeypatch.delattr(os, "memfd_create")
    assert sampled_after_updates(models["llama-gqa"], tmp_path) == answers
    assert [file.name for file in tmp_path.glob("*.gguf*")] == ["sampler-adapter.gguf"]
