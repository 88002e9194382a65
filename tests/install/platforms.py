"""Whether wheels alone make an install on other machines: `python -m tests.install platforms`. Installs nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLATFORMS = ("x86_64-manylinux_2_28", "aarch64-manylinux_2_28", "aarch64-apple-darwin")
PYTHONS = ("3.11", "3.12", "3.13")
PURE = ("varint", "python-baseconv")
"""On PyPI as sources alone, and made into a wheel by any Python: nothing is compiled."""


def resolve(wheels: Path, uv: str) -> None:
    """Print, for each platform and Python, how many distributions an install without a compiler has.

    Args:
        wheels: directory of `packaging/wheels.py slim`.
        uv: the program.
    """
    print("| platform | Python | distributions |\n|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        links = Path(directory)
        for wheel in wheels.glob("*+sapo-*.whl"):
            (links / wheel.name).symlink_to(wheel)
        pure = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", directory, *PURE]
        subprocess.run([*pure, "-c", str(ROOT / "constraints.txt")], check=True, stderr=subprocess.DEVNULL)
        command = [
            uv, "pip", "compile", "pyproject.toml", "--quiet", "--no-header", "--no-annotate", "--extra", "starter",
            "--only-binary", ":all:", "--find-links", directory, "--constraints", "constraints.txt",
        ]  # fmt: skip
        for platform in PLATFORMS:
            for python in PYTHONS:
                done = subprocess.run(
                    [*command, "--python-platform", platform, "--python-version", python], cwd=ROOT,
                    env={**os.environ, "MACOSX_DEPLOYMENT_TARGET": "14.0"}, capture_output=True, text=True, check=False,
                )  # fmt: skip
                found = done.stdout.count("==") if done.returncode == 0 else done.stderr.strip()
                print(f"| {platform} | {python} | {found} |", flush=True)
