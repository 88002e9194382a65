"""Models of the hub: downloaded by the hub's own client from a small hub here, kept, listed and removed."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sapo_edge.backends.hub.cache import kept_models, remove_model
from sapo_edge.backends.hub.download import SPARE
from sapo_edge.backends.hub.find import hub_model
from sapo_edge.backends.hub.name import HubName
from sapo_edge.backends.model.source import open_source
from sapo_edge.errors import ModelError
from tests.hub import COMMIT, Hub


def fetch(name: str, **more: Any) -> Path:
    return hub_model(HubName.parse(name), **{"fetch": True, **more})


def test_a_directory_arrives_whole_and_without_what_is_not_needed(hub: Hub, repositories: Path) -> None:
    reports: list[tuple[int, int]] = []
    path = fetch("hf:someone/tiny", progress=lambda *report: reports.append(report))
    original = repositories / "someone" / "tiny"
    names = {file.name for file in path.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md"} <= names
    assert not names & {"original", "pytorch_model.bin", "consolidated.safetensors"}
    assert (path / "model.safetensors").read_bytes() == (original / "model.safetensors").read_bytes()
    assert open_source(path).architecture == "llama"
    total = sum((original / name).stat().st_size for name in names)
    assert reports[0] == (0, total) and reports[-1] == (total, total)
    assert [done for done, _ in reports] == sorted(done for done, _ in reports)
    # What is here is not asked for again.
    hub.requests.clear()
    assert fetch("hf:someone/tiny") == fetch("hf:someone/tiny", fetch=False) == path and hub.requests == []


@pytest.mark.parametrize("name", ["hf:someone/tiny-GGUF:tiny-Q8_0.gguf", "hf:someone/tiny-GGUF:q8_0"])
def test_one_file_arrives_by_its_name_or_a_part_of_it(hub: Hub, name: str) -> None:
    path = fetch(name)
    assert path.name == "tiny-Q8_0.gguf" and open_source(path).architecture == "llama"
    asked = {request[1] for request in hub.requests if "resolve" in request[1]}
    assert asked == {f"/someone/tiny-GGUF/resolve/{COMMIT}/tiny-Q8_0.gguf"}
    hub.requests.clear()
    assert fetch(name) == path and hub.requests == []


def test_a_file_of_an_older_version_stays_after_another_of_a_newer_one(hub: Hub) -> None:
    name = "hf:someone/tiny-GGUF:tiny-Q4_0.gguf"
    newer = fetch(name).parent
    (older := newer.with_name("0" * 40)).mkdir()
    (newer / "tiny-Q4_0.gguf").rename(older / "tiny-Q4_0.gguf")
    other = fetch("hf:someone/tiny-GGUF:tiny-Q8_0.gguf")
    assert fetch(name, fetch=False) == older / "tiny-Q4_0.gguf"
    assert [model.path for model in kept_models()] == [older / "tiny-Q4_0.gguf", other]
    remove_model(HubName.parse(name))
    assert [model.path for model in kept_models()] == [other]


def test_a_whole_version_serves_while_a_newer_one_is_not_whole(hub: Hub) -> None:
    path = fetch("hf:someone/tiny")
    (newer := path.with_name("1" * 40)).mkdir()
    shutil.copy(path / "config.json", newer / "config.json", follow_symlinks=False)
    (path.parents[1] / "refs" / "main").write_text(newer.name)
    assert fetch("hf:someone/tiny", fetch=False) == path
    assert [(model.path, model.complete) for model in kept_models()] == [(path, True)]


def test_an_interrupted_download_goes_on_where_it_ended(hub: Hub, repositories: Path) -> None:
    name, file = "hf:someone/tiny-GGUF:tiny-Q8_0.gguf", repositories / "someone" / "tiny-GGUF" / "tiny-Q8_0.gguf"
    half = file.stat().st_size // 2
    hub.cuts["tiny-Q8_0.gguf"] = half
    assert fetch(name).read_bytes() == file.read_bytes()
    ranges = [request[2] for request in hub.requests if request[0] == "GET" and "resolve" in request[1]]
    assert ranges[0] == "" and ranges[1].startswith("bytes=") and half - 1000 < int(ranges[1][6:-1]) <= half


def test_what_arrives_damaged_is_removed_and_comes_again(hub: Hub, repositories: Path) -> None:
    hub.damaged.add("model.safetensors")
    with pytest.raises(ModelError, match=r"model\.safetensors .* arrived damaged.*; .*try again"):
        fetch("hf:someone/tiny")
    with pytest.raises(ModelError, match="not on this machine yet"):
        fetch("hf:someone/tiny", fetch=False)
    hub.damaged.clear()
    path = fetch("hf:someone/tiny")
    assert (path / "model.safetensors").read_bytes() == (repositories / "someone/tiny/model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("name", "problem", "remedy"),
    [
        ("hf:someone/tiny-GGUF", "is a repository of GGUF files", "hf:someone/tiny-GGUF:tiny-Q4_0.gguf"),
        ("hf:someone/tiny-GGUF:Q5_K", "has no GGUF file of this name", "tiny-Q4_0.gguf"),
        ("hf:someone/tiny-GGUF:Q", "has several GGUF files of this name", "tiny-Q4_0.gguf tiny-Q8_0.gguf"),
        ("hf:someone/tiny-GGUF:F16", "is one part of a larger file", "smaller format"),
        ("hf:someone/tiny:Q4_0", "has no GGUF file of this name", "it has: none"),
        ("hf:someone/pickled", "has no weights as safetensors", "use another model"),
        ("hf:someone/else", "not on the hub", "check the name"),
        *(
            (name, "is no name of a model", "hf:ORGANISATION/MODEL")
            for name in ("hf:some one/else", "hf:../else", "hf:")
        ),
    ],
)
def test_each_mistake_is_answered(hub: Hub, name: str, problem: str, remedy: str) -> None:
    with pytest.raises(ModelError, match=f"{problem}.*; .*{remedy}"):
        fetch(name)


def test_a_full_disk_and_a_hub_out_of_reach_are_noticed(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=SPARE + 10))
    with pytest.raises(ModelError, match=r"GB free.*; .*HF_HOME"):
        fetch("hf:someone/tiny")
    assert not [request for request in hub.requests if "resolve" in request[1]]
    with monkeypatch.context() as elsewhere, pytest.raises(ModelError, match=r"can't be downloaded.*; .*the network"):
        elsewhere.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
        fetch("hf:someone/tiny")
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=10**12))
    (fetch("hf:someone/tiny") / "config.json").unlink()
    # What has arrived needs no space again.
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=SPARE + 10_000))
    assert (fetch("hf:someone/tiny") / "config.json").is_file()


def stored(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.rglob("*") if not file.is_symlink())


def test_kept_models_are_listed_and_removed(hub: Hub, tmp_path: Path) -> None:
    assert kept_models() == []
    directory = fetch("hf:someone/tiny")
    small, large = fetch("hf:someone/tiny-GGUF:Q4_0"), fetch("hf:someone/tiny-GGUF:Q8_0")
    kept = {model.name: model for model in kept_models()}
    names = ["hf:someone/tiny", "hf:someone/tiny-GGUF:tiny-Q4_0.gguf", "hf:someone/tiny-GGUF:tiny-Q8_0.gguf"]
    assert list(kept) == names and all(model.complete for model in kept.values())
    assert [kept[name].path for name in names] == [directory, small, large]
    assert [kept[name].licence for name in names] == ["apache-2.0", "", ""]
    before, size = stored(tmp_path / "cache"), small.stat().st_size
    assert kept[names[1]].bytes == remove_model(HubName.parse("hf:someone/tiny-GGUF:Q4_0")) == size
    assert before - stored(tmp_path / "cache") >= size and large.exists()
    assert [model.name for model in kept_models()] == [names[0], names[2]]
    older = Path(shutil.copytree(directory, directory.with_name("0" * 40), symlinks=True))
    (blob := older.parents[1] / "blobs" / "older").write_bytes(bytes(1000))
    (older / "config.json").unlink()
    (older / "config.json").symlink_to(blob)
    assert remove_model(HubName.parse(names[0])) == kept[names[0]].bytes + 1000
    remove_model(HubName.parse(names[2]))
    assert kept_models() == [] and not list((tmp_path / "cache").glob("models--*"))
    with pytest.raises(ModelError, match=r"is not on this machine.*; .*none"):
        remove_model(HubName.parse(names[0]))
