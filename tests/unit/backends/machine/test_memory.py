"""Memory within control groups: what a container or a service manager leaves."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from sapo_edge.backends.machine.memory import free_memory, total_memory

MB = 10**6


def write(group: Path, **files: object) -> None:
    group.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (group / f"memory.{name}").write_text(f"{text}\n")


def test_without_groups_it_is_the_machines(groups: Path) -> None:
    assert total_memory() == psutil.virtual_memory().total
    (groups / "own").write_text("12:cpu,cpuacct:/\n0::/none\n3:memory:/none\n")
    assert total_memory() == psutil.virtual_memory().total and free_memory(7) == 7


def test_a_group_of_version_2_and_those_above_it_count(groups: Path) -> None:
    (groups / "own").write_text("0::/user/node\n")
    write(groups / "cgroup", stat="anon 1\n")
    write(groups / "cgroup" / "user", max=500 * MB, current=450 * MB, stat=f"anon 1\ninactive_file {50 * MB}")
    write(groups / "cgroup" / "user" / "node", max="max", current=9, stat="anon 1")
    assert (free_memory(), total_memory()) == (100 * MB, 500 * MB)
    write(groups / "cgroup" / "user" / "node", max=60 * MB, current=10 * MB)
    assert (free_memory(), total_memory()) == (50 * MB, 60 * MB)


def test_a_group_of_version_1_and_a_containers_own_root(groups: Path) -> None:
    (groups / "own").write_text("5:memory:/docker/of-the-host\n1:name=systemd:/docker/of-the-host\n")
    write(
        groups / "cgroup" / "memory",
        limit_in_bytes=512 * MB, usage_in_bytes=100 * MB, stat=f"inactive_file 1\ntotal_inactive_file {40 * MB}",
    )  # fmt: skip
    assert (free_memory(), total_memory()) == (452 * MB, 512 * MB)


@pytest.mark.parametrize("text", ["", "max", "-", "\x00", "1 2"])
def test_what_cannot_be_read_is_no_limit(groups: Path, text: str) -> None:
    (groups / "own").write_text("0::/\n")
    write(groups / "cgroup", max=text, current=1, stat="x 1")
    assert total_memory() == psutil.virtual_memory().total
