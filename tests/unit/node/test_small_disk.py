"""A node on a disk that becomes full or read-only: a small file system of its own, which only this test sees."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MOUNT = 'mount -t tmpfs -o size=40m,mode=700 tmpfs "$0" && exec "$@"'


def test_a_full_disk_and_a_read_only_one_lose_nothing_and_are_reported_with_a_remedy(tmp_path: Path) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("needs the command unshare (util-linux)")
    alone = ["unshare", "--mount", "--propagation", "private", "sh", "-c", MOUNT, str(tmp_path)]
    if subprocess.run([*alone, "true"], capture_output=True).returncode:
        pytest.skip("file systems in a namespace of their own are not permitted here")
    command = [*alone, sys.executable, "-m", "tests.unit.node.small_disk", str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    messages = [json.loads(line) for line in ended.stdout.splitlines()]
    kinds = ("the journal", "MB free and", "can't write", "read-only")
    assert [kind for kind in kinds if any(kind in message for message in messages)] == list(kinds)
    assert ended.stderr.count("can't write to the log") <= 1
