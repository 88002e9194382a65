"""Whether wheels alone make an install on other machines: `python -m tests.install platforms aarch64`.

Installs nothing. `platforms` lets uv resolve for each platform. `aarch64` lets pip look, too, for a wheel of each
distribution that uv names for a 64-bit Raspberry Pi.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLATFORMS = ("x86_64-manylinux_2_28", "aarch64-manylinux_2_28", "aarch64-apple-darwin")
PYTHONS = ("3.11", "3.12", "3.13")
PURE = ("varint", "python-baseconv")
"""On PyPI as sources alone, and made into a wheel by any Python: nothing is compiled."""
CUDA = ("nvidia-", "cuda-", "triton")
"""What PyPI's torch requires for graphics cards."""
TAGS = ("manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64", "linux_aarch64")
ROLES = {
    "a node that learns": ("", "llama,starter"),
    "a generator": ("+core", "swarm,llama,starter"),
    "a relay": ("+core", "swarm"),
}
"""Each with its wheel of `packaging/wheels.py` and its extras."""


@contextmanager
def pure_wheels() -> Iterator[Path]:
    """A directory with wheels of `PURE`."""
    with tempfile.TemporaryDirectory() as directory:
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", directory, *PURE]
        subprocess.run([*pip, "-c", str(ROOT / "constraints.txt")], check=True, stderr=subprocess.DEVNULL)
        yield Path(directory)


def compile_list(
    uv: str, source: str, links: Path, platform: str, python: str, *more: str, text: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Let uv list what an install for a platform consists of."""
    command = [
        uv, "pip", "compile", source, "--quiet", "--no-header", "--no-annotate", "--find-links", str(links),
        "--constraints", "constraints.txt", "--python-platform", platform, "--python-version", python, *more,
    ]  # fmt: skip
    environment = {**os.environ, "MACOSX_DEPLOYMENT_TARGET": "14.0"}
    return subprocess.run(command, cwd=ROOT, env=environment, input=text, capture_output=True, text=True, check=False)


def resolve_platforms(wheels: Path, uv: str) -> None:
    """Print, for each platform and Python, how many distributions an install from `packaging/wheels.py slim` has."""
    print("| platform | Python | distributions |\n|---|---|---|", flush=True)
    with pure_wheels() as links:
        for wheel in wheels.glob("*+sapo-*.whl"):
            (links / wheel.name).symlink_to(wheel)
        for platform in PLATFORMS:
            for python in PYTHONS:
                more = ("--extra", "starter", "--only-binary", ":all:")
                done = compile_list(uv, "pyproject.toml", links, platform, python, *more)
                found = done.stdout.count("==") if done.returncode == 0 else done.stderr.strip()
                print(f"| {platform} | {python} | {found} |", flush=True)


def resolve_aarch64(wheels: Path, uv: str) -> None:
    """Print, for each role and Python, what has a wheel: on PyPI, or among those of `packaging/wheels.py`."""
    print("| Role | Python | Pure | For aarch64 | Made by `packaging/wheels.py` | Without a wheel |")
    print("|---|---|---|---|---|---|")
    with pure_wheels() as links:
        for role, (local, extras) in ROLES.items():
            (own,) = (path for path in wheels.glob("sapo_edge-*.whl") if ("+" in path.name) == bool(local))
            for python in PYTHONS:
                text = f"sapo-edge[{extras}] @ {own.as_uri()}"
                done = compile_list(uv, "-", wheels, "aarch64-manylinux_2_28", python, text=text)
                if done.returncode:
                    raise SystemExit(done.stderr)
                # PyTorch's own index has a build without CUDA.
                pins = [pin for pin in done.stdout.split("\n") if pin and not pin.startswith((*CUDA, "sapo-edge"))]
                urls, missing = look(pins, python, [wheels, links])
                made = sorted(Path(url).name.split("-")[0] for url in urls if url.startswith(wheels.as_uri()))
                pure = sum(url.endswith("-none-any.whl") for url in urls)
                lists = f"{', '.join(made) or 'none'} | {', '.join(missing) or 'none'}"
                print(f"| {role} | {python} | {pure} | {len(urls) - pure} | {lists} |", flush=True)


def look(pins: list[str], python: str, places: list[Path]) -> tuple[list[str], list[str]]:
    """The addresses of wheels that pip finds, in these places, too, and names with versions of which there is none."""
    missing: list[str] = []
    with tempfile.TemporaryDirectory() as target:
        options = [word for place in places for word in ("--find-links", str(place))]
        options += [word for tag in TAGS for word in ("--platform", tag)]
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
    return [str(item["download_info"]["url"]) for item in json.loads(done.stdout)["install"]], missing
