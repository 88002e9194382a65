"""What others wrote in JavaScript: fixtures that install it, or skip the test."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path

import pytest

INTEROP = Path(__file__).parents[1] / "interop"
NODE_VERSION = 18


@pytest.fixture(scope="module")
def node() -> str:
    path = shutil.which("node")
    if path is None:
        pytest.skip("node is not installed")
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(version.removeprefix("v").split(".")[0]) < NODE_VERSION:
        pytest.skip(f"node {version} is older than {NODE_VERSION}, which the peer needs")
    return path


@pytest.fixture(scope="module")
def modules(node: str) -> None:
    """Installs the dependencies once, exactly those of package-lock.json."""
    installed, wanted = INTEROP / "node_modules" / ".package-lock.json", INTEROP / "package-lock.json"
    npm = shutil.which("npm")
    # Test processes that share the tests would remove each other's installation.
    with wanted.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if installed.exists() and installed.stat().st_mtime >= wanted.stat().st_mtime:
            return
        if npm is None:
            pytest.skip("npm is not installed")
        command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        process = subprocess.run(command, cwd=INTEROP, capture_output=True, text=True, timeout=120)
        assert process.returncode == 0, process.stderr
