"""A machine with a processor of 2008, made by QEMU, installs from a shared folder, without a network, and learns.

`sh install.sh --folder DIR`, then `python -m tests.install old --wheels DIR`: a quarter of an hour, as root,
with qemu-system-x86 and debootstrap.

What is shared has to run on any processor of its architecture, and no test on a newer one shows that: a process sees
the host's processor, also under QEMU's user mode. So a Debian boots with its own kernel where AVX does not exist.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.debian.machine import HOME, PERSON, fresh_machine

PROCESSOR = "Nehalem"
"""Intel's first Core i7: SSE 4.2, no AVX."""
MEMORY_MB = 4096
DISK_MB = 9000
SHARED = "shared"
"""What `install.sh --folder` wrote, in the person's home."""
STEPS = (
    "grep -m 1 'model name' /proc/cpuinfo",
    "! grep -w -o -m 1 avx /proc/cpuinfo",
    f"sh {SHARED}/install.sh --from {SHARED}",
    # As small as can be: QEMU computes a hundredth of what a processor does.
    ".local/bin/sapo run --solo --agree --rounds 1 --set held_out=0 --set own=1 --set external=0 --set answers=2"
    " --set precision=float32",
    ".local/bin/sapo history",
)
FIRST = """#!/bin/bash
mkdir -p /dev/shm; mount -t tmpfs tmpfs /tmp; mount -t tmpfs tmpfs /dev/shm
cd {home}; echo
while read -r step; do
    echo "step: $step"
    setpriv --reuid=1000 --regid=1000 --clear-groups env HOME={home} PATH=/usr/bin:/bin bash -c "$step" 2>&1
    echo "status: $?"
done < /steps
echo o > /proc/sysrq-trigger
sleep 60
"""
"""Runs in place of the system's own first program."""


def old_processor(folder: Path) -> None:
    """Print a table of what an old processor made of each step; ends the program where one failed."""
    needed = [name for name in ("qemu-system-x86_64", "mke2fs", "debootstrap") if shutil.which(name) is None]
    if needed:
        sys.exit(f"this needs {', '.join(needed)}: apt-get install qemu-system-x86 e2fsprogs debootstrap")
    packages = ("python3", "linux-image-cloud-amd64", "initramfs-tools")
    with fresh_machine(None, *packages) as machine, tempfile.TemporaryDirectory(prefix="sapo-old-") as name:
        shutil.copytree(folder, machine.home / SHARED)
        machine.run(f"chown -R {PERSON}: {HOME}")
        (machine.root / "steps").write_text("".join(f"{step}\n" for step in STEPS))
        first = machine.root / "first"
        first.write_text(FIRST.format(home=HOME))
        first.chmod(0o755)
        disk = Path(name) / "disk"
        command = ["mke2fs", "-q", "-t", "ext4", "-d", str(machine.root), str(disk), f"{DISK_MB}M"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        (kernel,), (start,) = ((machine.root / "boot").glob(pattern) for pattern in ("vmlinuz-*", "initrd.img-*"))
        _boot(kernel, start, disk)


def _boot(kernel: Path, start: Path, disk: Path) -> None:
    command = [
        "qemu-system-x86_64", "-accel", "tcg", "-cpu", PROCESSOR, "-m", str(MEMORY_MB), "-nic", "none", "-nographic",
        "-no-reboot", "-kernel", str(kernel), "-initrd", str(start), "-drive", f"file={disk},format=raw,if=virtio",
        "-append", "root=/dev/vda rw console=ttyS0 quiet panic=-1 init=/first",
    ]  # fmt: skip
    print("| step | seconds | its last line |\n|---|---|---|", flush=True)
    done, step, last, lines, began = 0, "", "", [], time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as qemu:
        assert qemu.stdout is not None
        for line in (part.decode("utf-8", "replace") for part in qemu.stdout):
            lines.append(line)
            text = line.strip()
            if text.startswith("step: "):
                step, last, began = text.removeprefix("step: "), "", time.monotonic()
            elif text.startswith("status: ") and step:
                print(f"| `{step}` | {time.monotonic() - began:.0f} | {last} |", flush=True)
                if text != "status: 0":
                    qemu.kill()
                    sys.exit(f"{step} failed on {PROCESSOR}:\n{''.join(lines[-40:])}")
                done, step = done + 1, ""
            elif text:
                last = text
    if done != len(STEPS):
        sys.exit(f"the machine stopped after {done} of {len(STEPS)} steps:\n{''.join(lines[-40:])}")
