"""What is known of a base model, without the network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sapo_edge.backends.hub.base import EMBEDDED, Base, base_of
from sapo_edge.backends.hub.cache import page_of
from tests.defences.defence import fails_without

HUB = "https://huggingface.co/some/tiny"
PAGE = "---\nlicense: mit\nlanguage:\n- en\n- de\n---\n# Of a model\n"


def test_the_embedded_model_is_known_and_one_of_the_hub_is_told_by_its_page(tmp_path: Path) -> None:
    assert base_of("", Path("/anywhere/file.gguf"), {"general.license": "other"}) == EMBEDDED
    snapshot = tmp_path / "models--some--tiny" / "snapshots" / "0123"
    (snapshot / "folder").mkdir(parents=True)
    (snapshot / "README.md").write_text(PAGE)
    file = snapshot / "folder" / "tiny-Q8_0.gguf"
    known = base_of("hf:some/tiny:folder/tiny-Q8_0.gguf", file, {"general.license": "apache-2.0"})
    assert known == Base("some/tiny:folder/tiny-Q8_0.gguf", "some/tiny", "mit", ("en", "de"))
    assert base_of("hf:some/tiny", snapshot, {}) == Base("some/tiny", "some/tiny", "mit", ("en", "de"))


@fails_without("backends/hub/cache.py", ", YAMLError, RecursionError):", "):")
@pytest.mark.parametrize(
    "front", ["title: one: two", "language: [en", "tag: !!python/name:os.system", pytest.param("[" * 1000, id="deep")]
)
def test_a_page_whose_front_is_no_yaml_says_nothing(tmp_path: Path, front: str) -> None:
    (tmp_path / "README.md").write_text(f"---\n{front}\n---\n# Of a model\n")
    assert page_of(tmp_path) == {}


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({}, Base("mine.gguf")),
        (
            {"base_model.0.repo_url": HUB, "license": "apache-2.0", "languages": ["en"]},
            Base("mine.gguf", "some/tiny", "apache-2.0", ("en",)),
        ),
        # Arrays that are too long to keep are their length; anything may be written there.
        ({"license": "two\nlines", "languages": 40, "repo_url": "https://elsewhere.org/a/b"}, Base("mine.gguf")),
        ({"license": 7, "languages": [1, "e n", "fr"]}, Base("mine.gguf", "", "", ("fr",))),
    ],
)
def test_a_file_of_one_s_own_is_told_by_what_it_says(tmp_path: Path, metadata: dict[str, Any], expected: Base) -> None:
    # The page of a directory that a file happens to lie in is of something else.
    (tmp_path / "README.md").write_text(PAGE)
    general = {f"general.{name}": value for name, value in metadata.items()}
    assert base_of(str(tmp_path / "mine.gguf"), tmp_path / "mine.gguf", general) == expected
