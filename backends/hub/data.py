"""Data sets of the Hugging Face hub, as files of Parquet. The hub then sees this machine's address.

The hub itself converts public data sets to Parquet, in a branch whose paths name configuration and split; others often
have such files of their own. So its client, which comes with every model, is enough: the library `datasets` would bring
pandas and more, to read the same files. No code of a data set is downloaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sapo_edge.backends.hub.download import Progress, cached, check_space, check_sum, reporting
from sapo_edge.backends.hub.find import explained
from sapo_edge.backends.hub.name import HUB
from sapo_edge.errors import DataError
from sapo_edge.plain import did_you_mean, printable

if TYPE_CHECKING:
    from huggingface_hub.hf_api import DatasetInfo, RepoSibling

FORM = "hf:OWNER/NAME"
CONVERTED = "refs/convert/parquet"
"""The branch of the hub's own conversion."""
MAX_FILE_BYTES = 512_000_000
"""Largest file that is downloaded or read."""
USUAL = ("default", "main")
"""Configurations that are taken where there are several and none is named."""
# Of the conversion, which may hold the beginning of a large split only; and of files that the `datasets` library wrote.
_IN_BRANCH = re.compile(r"([^/]+)/(?:partial-)?([^/]+)/\d+\.parquet")
_OF_OWNER = re.compile(r"(?:([^/]+)/)?([A-Za-z0-9_.]+)-\d{5}-of-\d{5}(?:-[0-9a-f]+)?\.parquet")


@dataclass(frozen=True, slots=True)
class DataSplit:
    """One split of a data set.

    Attributes:
        repository: "owner/name".
        revision: the commit of its files.
        files: in the order of its rows.
    """

    repository: str
    configuration: str
    split: str
    revision: str
    files: tuple[RepoSibling, ...]

    def __str__(self) -> str:
        return f"{HUB}{self.repository}, configuration {self.configuration}, split {self.split}"


def find_split(name: str, configuration: str | None, split: str | None) -> DataSplit:
    """Ask the hub for the files of a split of a data set, named as in `FORM`.

    Args:
        configuration: None: the only one, or one of `USUAL`.
        split: None: "train", or the only one.
    """
    from huggingface_hub import HfApi, errors
    from huggingface_hub.utils._validators import validate_repo_id

    repository, what = name.removeprefix(HUB), f"the data set {name}"
    with explained("data set", name, FORM, DataError, fetch=True):
        validate_repo_id(repository)
        api = HfApi()
        try:
            info = api.dataset_info(repository, revision=CONVERTED, files_metadata=True)
            splits = _splits(info, _IN_BRANCH)
        except errors.RevisionNotFoundError:
            splits = {}
        if not splits:
            info = api.dataset_info(repository, files_metadata=True)
            splits = _splits(info, _OF_OWNER)
    if not splits:
        remedy = "download a file of it, and give that: .parquet, .jsonl or .csv"
        raise DataError(f"{what} has no Parquet files", remedy)
    chosen = _choose(what, "configuration", splits, configuration, USUAL)
    part = _choose(f"{what}, configuration {chosen},", "split", splits[chosen], split, ("train",))
    return DataSplit(repository, chosen, part, str(info.sha), tuple(splits[chosen][part]))


def fetch_files(split: DataSplit, progress: Progress) -> Iterator[Path]:
    """Download the files of a split, each when it is wanted: whoever has enough rows need not take all.

    Raises:
        DataError: if a file is too large, or can't be downloaded.
        ModelError: if the disk is too full, or what arrived is damaged, as with models.
    """
    what = f"the data set {HUB}{split.repository}"
    for file in split.files:
        size = file.size or 0
        if size > MAX_FILE_BYTES:
            remedy = "give a smaller split or configuration, or a file of your own with fewer columns"
            raise DataError(f"{file.rfilename} of {what} has {size / 1e6:.0f} MB", remedy)
        with explained("data set", f"{HUB}{split.repository}", FORM, DataError, fetch=True):
            check_space(what, size)
            path = cached(split.repository, file, split.revision, reporting(progress, 0, size), kind="dataset")
        check_sum(what, path, file)
        yield path


def _splits(info: DatasetInfo, form: re.Pattern[str]) -> dict[str, dict[str, list[RepoSibling]]]:
    """The files by configuration and split."""
    splits: dict[str, dict[str, list[RepoSibling]]] = {}
    for file in sorted(info.siblings or (), key=lambda file: file.rfilename):
        if match := form.fullmatch(file.rfilename):
            # `data` is the directory of a data set with one configuration.
            configuration = match[1] if match[1] not in (None, "data") else USUAL[0]
            splits.setdefault(configuration, {}).setdefault(match[2], []).append(file)
    return splits


def _choose(what: str, kind: str, options: Mapping[str, object], named: str | None, usual: Sequence[str]) -> str:
    names = printable(", ".join(options))
    if named is not None:
        if named in options:
            return named
        remedy = f"{did_you_mean(named, options, 'choose another')} (there are: {names})"
        raise DataError(f"{what} has no {kind} {named}", remedy)
    if len(options) == 1:
        return next(iter(options))
    for name in usual:
        if name in options:
            return name
    raise DataError(f"{what} has {len(options)} {kind}s", f"name one with --{kind}: {names}")
