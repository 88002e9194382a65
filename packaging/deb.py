#!/usr/bin/env python3
"""Makes a Debian package from the wheels of `packaging/wheels.py`.

    python packaging/deb.py [--wheels dist] [--to dist] [--extras llama,starter] [--core] [--architecture arm64]

The package holds the wheels and a script that installs them with pip into an environment of its own, /opt/sapo-edge,
when it is configured; the rest of the libraries, torch above all, comes from the network then.
Removing it removes that environment; what a node has learned, in people's homes, stays. Needs dpkg-deb.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHARE = "usr/share/sapo-edge"
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
"""Debian's name of an architecture, and that of wheels."""
CONTROL = """\
Package: sapo-edge
Version: {version}
Architecture: {architecture}
Maintainer: the sapo-edge project
Section: science
Priority: optional
Depends: python3 (>= 3.11), python3 (<< 3.14~), python3-venv, libgomp1
Installed-Size: {kilobytes}
Description: collective RL post-training of small language models
 A node trains a LoRA adapter on questions whose answers can be checked, alone
 or in a swarm that shares rollouts as text. Configuring this package installs
 its libraries from PyPI into /opt/sapo-edge, which takes 1 GB and the network.
"""
INSTALL = """\
#!/bin/sh
# Installs sapo-edge into /opt/sapo-edge from the wheels of this package and PyPI; run it again to repair it.
set -e
# What is there for another Python, as after an upgrade of Debian, serves nobody.
version=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
[ -d "/opt/sapo-edge/lib/python$version" ] || rm -rf /opt/sapo-edge
python3 -m venv /opt/sapo-edge
install() {{
    /opt/sapo-edge/bin/python -m pip install --quiet --no-cache-dir --disable-pip-version-check \\
        --constraint /{share}/constraints.txt "$@"
}}
{torch}install --find-links /{share} '/{share}/{wheel}[{extras}]'
/opt/sapo-edge/bin/python -m sapo_edge.trimming
"""
TORCH = """\
# PyPI's torch brings 3 GB of CUDA, which only a card of NVIDIA's needs (WSL shows one as dxg).
if [ ! -e /dev/nvidiactl ] && [ ! -e /dev/dxg ]; then
    install --retries 1 --no-deps --index-url https://download.pytorch.org/whl/cpu torch ||
        echo 'sapo-edge: PyTorch has no build for CPUs here; taking the one of PyPI' >&2
fi
"""
POSTINST = """\
#!/bin/sh
set -e
if [ "$1" = configure ]; then
    echo 'sapo-edge: installing libraries into /opt/sapo-edge; this takes minutes'
    # Without the network the package is still installed.
    sapo-edge-install || echo 'sapo-edge: that failed; run sapo-edge-install as root once the network is there' >&2
fi
"""
PRERM = """\
#!/bin/sh
set -e
if [ "$1" = remove ]; then
    rm -rf /opt/sapo-edge
fi
"""
LAUNCHER = """\
#!/bin/sh
# The Python of a newer Debian does not find what was installed for the one before.
python=$(readlink -f /opt/sapo-edge/bin/python)
if [ ! -d "/opt/sapo-edge/lib/${python##*/}/site-packages/sapo_edge" ]; then
    echo 'sapo: not installed completely, or for another Python; run: sudo sapo-edge-install' >&2
    exit 1
fi
exec /opt/sapo-edge/bin/sapo "$@"
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", type=Path, default=ROOT / "dist")
    parser.add_argument("--to", type=Path, default=ROOT / "dist")
    parser.add_argument("--extras", default="llama,starter")
    parser.add_argument(
        "--core", action="store_true", help="without torch, for a relay or a generator: name the extras"
    )
    parser.add_argument("--architecture", choices=MACHINES, help="by default this one")
    options = parser.parse_args()
    options.architecture = options.architecture or _output("dpkg", "--print-architecture")
    skipped = re.compile(r"sapo_edge-[^+]*-" if options.core else r"sapo_edge-.*\+core-")
    machine = MACHINES.get(options.architecture, options.architecture)
    runs = re.compile(rf".*(-any|_{machine})\.whl")
    found = sorted(wheel for wheel in options.wheels.glob("*.whl") if not skipped.match(wheel.name))
    wheels = [wheel for wheel in found if runs.fullmatch(wheel.name)]
    own = [wheel for wheel in wheels if wheel.name.startswith("sapo_edge-")]
    if len(own) != 1:
        print(f"{options.wheels} has {len(own)} wheels of sapo-edge; run packaging/wheels.py first", file=sys.stderr)
        return 1
    if re.fullmatch(r"[a-z0-9]+(,[a-z0-9]+)*", options.extras) is None:
        parser.error("extras are names, separated by commas")
    others = [wheel for wheel in found if wheel.name.startswith("llama_cpp_")]
    if others and not set(others) & set(wheels):
        print(f"{options.wheels} has no llama.cpp for {options.architecture}; see packaging/wheels.py", file=sys.stderr)
        return 1
    print(build(own[0], wheels, options.extras, options.to, options.architecture))
    return 0


def build(own: Path, wheels: list[Path], extras: str, to: Path, architecture: str) -> Path:
    """The package of this program's wheel and the others.

    Args:
        wheels: all that the package holds, this one too.
        extras: of this program, separated by commas.
        architecture: in Debian's words, of the machines whose wheels these are.
    """
    version = own.name.split("-")[1]
    # Wheels for one kind of processor make a package for it.
    if all(wheel.name.endswith("-any.whl") for wheel in wheels):
        architecture = "all"
    to.mkdir(parents=True, exist_ok=True)
    package = to / f"sapo-edge_{version}_{architecture}.deb"
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "root"
        share = root / SHARE
        share.mkdir(parents=True)
        for wheel in wheels:
            shutil.copyfile(wheel, share / wheel.name)
        shutil.copyfile(ROOT / "constraints.txt", share / "constraints.txt")
        copyright = root / "usr/share/doc/sapo-edge/copyright"
        copyright.parent.mkdir(parents=True)
        shutil.copyfile(ROOT / "LICENSE", copyright)
        kilobytes = sum(wheel.stat().st_size for wheel in wheels) // 1024
        control = CONTROL.format(version=version, architecture=architecture, kilobytes=kilobytes)
        _write(root / "DEBIAN/control", control, 0o644)
        _write(root / "DEBIAN/postinst", POSTINST, 0o755)
        _write(root / "DEBIAN/prerm", PRERM, 0o755)
        install = INSTALL.format(share=SHARE, wheel=own.name, extras=extras, torch="" if "+core" in own.name else TORCH)
        _write(root / "usr/sbin/sapo-edge-install", install, 0o755)
        _write(root / "usr/bin/sapo", LAUNCHER, 0o755)
        for directory in (root, *(path for path in root.rglob("*") if path.is_dir())):
            directory.chmod(0o755)
        # Wheels are compressed already: a minute of work would save next to nothing.
        _output("dpkg-deb", "--root-owner-group", "-Znone", "--build", str(root), str(package))
    return package


def _write(file: Path, text: str, mode: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    file.chmod(mode)


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
