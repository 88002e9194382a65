"""Names of models on the Hugging Face hub, and which files of a repository belong to a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

HUB = "hf:"
"""Prefix of a model's name on the hub. Nothing is downloaded without it."""
FORM = "hf:ORGANISATION/MODEL, or hf:ORGANISATION/MODEL:FILE for a GGUF file"
DIRECTORY_FILES = ("*.json", "*.safetensors", "*.jinja", "tokenizer*", "*.txt", "README.md")


@dataclass(frozen=True, slots=True)
class HubName:
    """A model on the hub.

    Attributes:
        repository: "organisation/model".
        file: name of a GGUF file in it, or a part of the name that only one has, such as "Q4_K_M"; "" for the
            repository's config.json and safetensors.
    """

    repository: str
    file: str = ""

    @classmethod
    def parse(cls, text: str) -> HubName:
        """From `FORM`."""
        repository, _, file = text.removeprefix(HUB).partition(":")
        return cls(repository, file)

    def __str__(self) -> str:
        return f"{HUB}{self.repository}{':' if self.file else ''}{self.file}"

    def among(self, files: Sequence[str]) -> list[str]:
        """The GGUF files that the name may mean: the one of this name, or else those whose names it is a part of."""
        ggufs = [file for file in files if file.endswith(".gguf")]
        exact = [file for file in ggufs if file == self.file]
        return exact or [file for file in ggufs if self.file.casefold() in file.casefold()]


def belongs(path: str) -> bool:
    """Whether a file of a repository belongs to its directory of safetensors."""
    return "/" not in path and any(fnmatch(path, pattern) for pattern in DIRECTORY_FILES)
