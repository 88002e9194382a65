"""What is known of a base model beside its weights: its name on the hub, its licence, its languages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sapo_edge.backends.hub.cache import page_of
from sapo_edge.backends.hub.name import HUB, HubName

HUB_ADDRESS = re.compile(r"https://huggingface\.co/([\w.-]+/[\w.-]+?)/?", re.ASCII)
ADDRESSES = ("general.base_model.0.repo_url", "general.source.repo_url", "general.repo_url", "general.source.url")
"""Where a GGUF file may say which model of the hub it was made of."""
_SHORT = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,63}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Base:
    """A base model; what is not known of it is empty.

    Attributes:
        name: for people: without the directory of its file.
        repository: "organisation/model" of the hub.
        licence, languages: by the hub's names.
    """

    name: str
    repository: str = ""
    licence: str = ""
    languages: tuple[str, ...] = ()


EMBEDDED = Base("SmolLM2-135M-Instruct (Q4_1)", "HuggingFaceTB/SmolLM2-135M-Instruct", "apache-2.0", ("en",))


def base_of(setting: str, path: Path, metadata: Mapping[str, Any]) -> Base:
    """What is known of a model on this machine, from the setting `model`; the network is not used.

    The metadata is that of its GGUF file; empty for a directory.
    """
    if not setting:
        return EMBEDDED
    repository = HubName.parse(setting).repository if setting.startswith(HUB) else ""
    addresses = (HUB_ADDRESS.fullmatch(str(metadata.get(key, ""))) for key in ADDRESSES)
    repository = repository or next((match[1] for match in addresses if match), "")
    page = page_of(_directory_of(path))
    licence = page.get("license") or metadata.get("general.license")
    spoken = page.get("language") or metadata.get("general.languages") or ()
    languages = [spoken] if isinstance(spoken, str) else spoken if isinstance(spoken, list) else []
    return Base(
        path.name if not setting.startswith(HUB) else setting.removeprefix(HUB),
        repository,
        licence if isinstance(licence, str) and _SHORT.fullmatch(licence) else "",
        tuple(name for name in languages if isinstance(name, str) and _SHORT.fullmatch(name)),
    )


def _directory_of(path: Path) -> Path:
    """The directory with a model's page: its own, or the top of the hub's repository in which a file lies."""
    if path.is_dir():
        return path
    return next((place for place in path.parents if place.parent.name == "snapshots"), path)
