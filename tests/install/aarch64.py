"""Which wheels an install on a 64-bit Raspberry Pi finds: `python -m tests.install aarch64`. Installs nothing.

uv resolves for that platform, by its markers. pip, told the same platform, then looks for a wheel of each distribution.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.install.platforms import PURE, ROOT

PYTHONS = ("3.11", "3.12", "3.13")
CUDA = ("nvidia-", "cuda-", "triton")
"""What PyPI's torch requires for graphics cards."""
PLATFORMS = ("manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64", "linux_aarch64")
ROLES = {
    "a node that learns": ("", "llama,starter"),
    "a generator": ("+core", "swarm,llama,starter"),
    "a relay": ("+core", "swarm"),
}
"""Each with its wheel of `packaging/wheels.py` and its extras."""


@dataclass(frozen=True, slots=True)
class Wheels:
    """What an install consists of.

    Attributes:
        pure: distributions whose wheels run everywhere.
        native: those with a wheel for aarch64.
        own: those with one that `packaging/wheels.py` made; some of the others.
        missing: those without a wheel.
    """

    pure: int
    native: int
    own: tuple[str, ...]
    missing: tuple[str, ...]


def resolve(wheels: Path, uv: str) -> None:
    """Print, for each role and Python, what has a wheel.

    Args:
        wheels: directory of `packaging/wheels.py`, with wheels for aarch64 if there are any.
        uv: the program.
    """
    print("| Role | Python | Pure | For aarch64 | Made by `packaging/wheels.py` | Without a wheel |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as directory:
        pure = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", directory, *PURE]
        subprocess.run([*pure, "-c", str(ROOT / "constraints.txt")], check=True, stderr=subprocess.DEVNULL)
        for role, (local, extras) in ROLES.items():
            (own,) = (path for path in wheels.glob("sapo_edge-*.whl") if ("+" in path.name) == bool(local))
            for python in PYTHONS:
                pins = requirements(f"sapo-edge[{extras}] @ {own.as_uri()}", python, wheels, uv)
                found = look(
                    [pin for pin in pins if not pin.startswith("sapo-edge")], python, [wheels, Path(directory)]
                )
                made = ", ".join(found.own) or "none"
                missing = ", ".join(found.missing) or "none"
                print(f"| {role} | {python} | {found.pure} | {found.native} | {made} | {missing} |", flush=True)


def requirements(wanted: str, python: str, wheels: Path, uv: str) -> list[str]:
    """Name and version of everything that an install on aarch64 consists of."""
    command = [
        uv, "pip", "compile", "-", "--quiet", "--no-header", "--no-annotate", "--find-links", str(wheels),
        "--constraints", "constraints.txt", "--python-platform", "aarch64-manylinux_2_28", "--python-version", python,
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, input=wanted, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    # PyTorch's own index has a build without these.
    return [pin for pin in done.stdout.split("\n") if pin and not pin.startswith(CUDA)]


def look(pins: list[str], python: str, places: list[Path]) -> Wheels:
    """Let pip find a wheel of each distribution.

    Args:
        pins: names with versions.
        python: version.
        places: directories of more wheels.
    """
    missing: list[str] = []
    with tempfile.TemporaryDirectory() as target:
        options = [word for place in places for word in ("--find-links", str(place))]
        options += [word for platform in PLATFORMS for word in ("--platform", platform)]
        command = [
            sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--no-deps", "--ignore-installed",
            "--only-binary", ":all:", "--python-version", python, "--implementation", "cp", "--target", target,
            "--report", "-", *options,
        ]  # fmt: skip
        while True:
            left = [pin for pin in pins if pin not in missing]
            done = subprocess.run([*command, *left], capture_output=True, text=True, check=False)
            if done.returncode == 0:
                break
            found = re.search(r"No matching distribution found for (\S+)", done.stderr)
            if found is None:
                raise SystemExit(done.stderr)
            missing.append(found[1])
    urls = [str(item["download_info"]["url"]) for item in json.loads(done.stdout)["install"]]
    own = tuple(sorted(Path(url).name.split("-")[0] for url in urls if url.startswith(places[0].as_uri())))
    pure = sum(url.endswith("-none-any.whl") for url in urls)
    return Wheels(pure, len(urls) - pure, own, tuple(missing))
