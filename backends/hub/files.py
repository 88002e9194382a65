"""Chosen files of one version of a repository on the Hugging Face hub, each bounded before it is downloaded."""

from __future__ import annotations

from pathlib import Path

from sapo_edge.backends.hub.download import check_sum
from sapo_edge.backends.hub.find import explained
from sapo_edge.backends.hub.name import FORM, HubName
from sapo_edge.errors import ModelError


class Repository:
    """The newest version of a repository, named "owner/name", and its commit. The hub is asked for both."""

    def __init__(self, name: str) -> None:
        from huggingface_hub import HfApi

        self.name = HubName(name)
        with explained("model", str(self.name), FORM, ModelError, fetch=True):
            info = HfApi().model_info(name, files_metadata=True)
        self.commit = str(info.sha)
        self._files = {file.rfilename: file for file in info.siblings or ()}

    def __contains__(self, file: str) -> bool:
        return file in self._files

    def fetch(self, file: str, directory: Path, limit: int) -> Path:
        """Download a file of at most `limit` bytes into a directory, under its own name."""
        from huggingface_hub import hf_hub_download

        if file not in self._files:
            raise ModelError(f"{self.name} has no {file}", "name a repository that `sapo push` made")
        size = self._files[file].size
        if size is None or size > limit:
            raise ModelError(f"{file} of {self.name} is too large: more than {limit} bytes", "use another repository")
        with explained("model", str(self.name), FORM, ModelError, fetch=True):
            path = Path(hf_hub_download(self.name.repository, file, revision=self.commit, local_dir=directory))
        check_sum(f"the model {self.name}", path, self._files[file])
        if path.stat().st_size != size:
            raise ModelError(f"{file} of {self.name} arrived incomplete", "try again")
        return path
