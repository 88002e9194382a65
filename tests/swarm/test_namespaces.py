"""Namespaces of tests that were killed."""

import os
import subprocess
import sys

import pytest

from tests.swarm.namespaces import DIRECTORY, Namespaces, NotPermittedError, ip, name, permitted


def test_namespaces_of_a_process_that_was_killed_are_removed_with_what_runs_in_them() -> None:
    killed = subprocess.Popen([sys.executable, "-c", ""])
    killed.wait()
    abandoned = f"sapo-{killed.pid}-m1"
    with Namespaces() as lab:
        try:
            with permitted():
                lab.add("m1")
                ip("netns", "add", abandoned)
        except NotPermittedError as error:
            pytest.skip(str(error))
        left = subprocess.Popen(["ip", "netns", "exec", abandoned, "sleep", "60"])
        # `ip` enters the namespace before it becomes the command.
        while os.readlink(f"/proc/{left.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            pass
        with permitted():
            pass
        assert left.wait(10) < 0
        assert not (DIRECTORY / abandoned).exists() and (DIRECTORY / name("m1")).exists()
