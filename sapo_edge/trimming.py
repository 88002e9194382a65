"""Makes an installation a third smaller, by what only who develops its libraries needs: `python -m sapo_edge.trimming`.

That are torch's headers and test programs, the tests of all libraries, and the symbols of compiled ones: all that
follows the last segment which the system loads. What runs is the same. What is installed again is whole again.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import sysconfig
from collections.abc import Iterator
from pathlib import Path

ELF = b"\x7fELF\x02\x01"
"""The first bytes of a library for Linux on processors of 64 bits that are little-endian."""
SECTIONS = (0x28, 8), (0x3A, 6)
"""Where an ELF header says where its sections are, and how many: offset and bytes. Whoever loads a library needs its
segments alone."""
LEAST = 65536
"""Bytes below which symbols stay."""


def trim(site: Path) -> tuple[int, int]:
    """Trim the libraries of a directory such as site-packages.

    Files with several names, as an installer shares them with its cache, stay: nothing would become free. Returns the
    bytes that became free, and those that would have if their files were not shared.
    """
    freed = shared = 0
    # One at a time: a folder that is removed may have held another.
    for path in _for_developers(site):
        states = [file.lstat() for file in (path, *path.rglob("*")) if not file.is_dir()]
        unwanted = sum(state.st_size for state in states)
        if any(state.st_nlink > 1 for state in states):
            shared += unwanted
            continue
        freed += unwanted
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in site.rglob("*.so*"):
        symbols = _symbols(path)
        if symbols < LEAST:
            continue
        if path.stat().st_nlink > 1:
            shared += symbols
            continue
        freed += symbols
        _cut(path, symbols)
    return freed, shared


def _for_developers(site: Path) -> Iterator[Path]:
    yield from (path for name in ("include", "test") if (path := site / "torch" / name).is_dir())
    # Another program there is needed by `import torch`.
    yield from (
        path for path in site.glob("torch/bin/*") if path.is_file() and re.match("protoc|.*test", path.name, re.I)
    )
    for folder, names, _ in os.walk(site):
        if "tests" in names:
            names.remove("tests")
            yield Path(folder) / "tests"


def _symbols(path: Path) -> int:
    """Bytes of a library after its last segment; 0 of what is no library."""
    if path.is_symlink() or not path.is_file():
        return 0
    with path.open("rb") as file:
        header = file.read(64)
        if len(header) < 64 or not header.startswith(ELF):
            return 0
        (table, sections), lengths = struct.unpack_from("<QQ", header, 0x20), struct.unpack_from("<HHHH", header, 0x36)
        size, count, section_size, section_count = lengths
        whole = path.stat().st_size
        if size < 56 or table + size * count > whole or whole != sections + section_size * section_count:
            return 0  # Damaged, or something else was appended.
        file.seek(table)
        segments = file.read(size * count)
    ends = [sum(struct.unpack_from("<8xQ16xQ", segments, size * number)) for number in range(count)]
    end: int = max([table + size * count, *ends])
    return max(0, whole - end)


def _cut(path: Path, symbols: int) -> None:
    """Replace a library, which may be in use, by one without symbols."""
    made = path.with_name(f"{path.name}.trimmed")
    try:
        shutil.copy2(path, made)
        with made.open("r+b") as file:
            file.truncate(path.stat().st_size - symbols)
            for offset, length in SECTIONS:
                file.seek(offset)
                file.write(bytes(length))
        made.replace(path)
    finally:
        made.unlink(missing_ok=True)


def main(site: Path) -> None:
    """Trim, and say what that brought. An installation that can't be trimmed works all the same."""
    try:
        freed, shared = trim(site)
    except OSError as error:
        print(f"not all was trimmed ({error}): the installation works, and is larger than it need be")
        return
    print(f"{freed / 1e6:.0f} MB became free")
    if shared:
        print(f"{shared / 1e6:.0f} MB are shared with the cache of an installer, and stay")


if __name__ == "__main__":
    main(Path(sysconfig.get_path("platlib")))
