"""Taking out of an installation what does not run."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import msgpack
import pytest

from sapo_edge.trimming import LEAST, main, trim
from tests.fakes import find_the_disk_full

SYMBOLS = 2 * LEAST
LOADS = """
import sys
sys.path.insert(0, sys.argv[1])
from msgpack import _cmsgpack
print(_cmsgpack.__file__, _cmsgpack.unpackb(_cmsgpack.Packer().pack([7])))
"""


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A compiled library with as much behind it as symbols take; `make` has cut off its own."""
    shutil.copytree(Path(msgpack.__file__).parent, tmp_path / "msgpack")
    found = list((tmp_path / "msgpack").glob("_cmsgpack*.so"))
    if not found or not found[0].read_bytes().startswith(b"\x7fELF"):
        pytest.skip("this platform's libraries are of another kind")
    trim(tmp_path)
    content = bytearray(found[0].read_bytes())
    # One empty section, whose entry in the table is the last of the file.
    struct.pack_into("<Q", content, 0x28, len(content) + SYMBOLS)
    struct.pack_into("<HHH", content, 0x3A, 64, 1, 0)
    found[0].write_bytes(bytes(content) + bytes(SYMBOLS + 64))
    return found[0]


def test_a_folder_of_tests_within_one_that_goes_does_not_end_it(tmp_path: Path) -> None:
    for folder in ("torch/include/tests", "torch/test/a/tests", "other/tests", "other/a"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "file").write_bytes(b"12345")
    assert trim(tmp_path) == (15, 0)
    assert [path.name for path in sorted(tmp_path.rglob("*"))] == ["other", "a", "file", "torch"]


def test_a_library_without_its_symbols_works(library: Path, tmp_path: Path) -> None:
    size, mode = library.stat().st_size, library.stat().st_mode
    freed, shared = trim(tmp_path)
    assert freed == size - library.stat().st_size > LEAST and shared == 0 and library.stat().st_mode == mode
    done = subprocess.run([sys.executable, "-c", LOADS, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{library} [7]"
    assert trim(tmp_path) == (0, 0) and list(tmp_path.rglob("*.trimmed")) == []


def test_what_is_shared_with_a_cache_stays(library: Path, tmp_path: Path) -> None:
    os.link(library, tmp_path / "cached")
    (tmp_path / "sympy/tests").mkdir(parents=True)
    (tmp_path / "sympy/tests/test_it.py").write_text("x" * 100)
    os.link(tmp_path / "sympy/tests/test_it.py", tmp_path / "cached.py")
    before = library.read_bytes()
    freed, shared = trim(tmp_path)
    assert freed == 0 and shared > LEAST + 100
    assert library.read_bytes() == before and (tmp_path / "sympy/tests/test_it.py").exists()


@pytest.mark.parametrize("damage", ["a part is missing", "something is appended", "no library", "its table is away"])
def test_what_is_no_whole_library_stays_as_it_is(library: Path, tmp_path: Path, damage: str) -> None:
    content = {
        "a part is missing": library.read_bytes()[: 1 << 16],
        "something is appended": library.read_bytes() + bytes(200_000),
        "no library": b"\x7fELF",
        "its table is away": library.read_bytes()[:32] + b"\xff" * 8 + library.read_bytes()[40:],
    }[damage]
    library.write_bytes(content)
    assert trim(tmp_path) == (0, 0) and library.read_bytes() == content


def test_headers_and_tests_go_and_what_is_imported_stays(tmp_path: Path) -> None:
    goes = (
        "torch/include/c10/a.h", "torch/bin/protoc-3", "torch/bin/AnyTest", "torch/test/a_test",
        "numpy/linalg/tests/data/a.txt",
    )  # fmt: skip
    stays = (
        "torch/lib/a.so", "torch/bin/torch_shm_manager", "jinja2/tests.py", "numpy/testing/a.py", "other/include/a.h",
    )  # fmt: skip
    for name in (*goes, *stays):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1234")
    assert trim(tmp_path) == (20, 0)
    assert not any((tmp_path / name).exists() for name in goes) and all((tmp_path / name).exists() for name in stays)


def test_an_installation_that_cannot_be_trimmed_is_left_and_said(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "copy2", find_the_disk_full)
    before = library.read_bytes()
    main(tmp_path)
    assert "No space left on device" in capsys.readouterr().out
    assert library.read_bytes() == before and list(tmp_path.rglob("*.trimmed")) == []
