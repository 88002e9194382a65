"""`packaging/install.sh` with a program in pip's place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.script import ROOT, program
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or Path("/dev/nvidiactl").exists() or Path("/dev/dxg").exists(),
    reason="a Mac, or a machine with a graphics card of NVIDIA's, installs another build of torch",
)
PYTHON = """#!/bin/sh
echo "$@" >> {calls}
case "$*" in
*" torch") exit {torch} ;;
esac
case "$*" in
*native*) echo "there is no compiler" >&2; exit 1 ;;
*broken*) echo "ERROR: No matching distribution found"; exit 1 ;;
esac
"""
CPU_BUILD = "--no-deps --index-url https://download.pytorch.org/whl/cpu torch"


def install(
    tmp_path: Path, extras: str, *, torch: int = 0, compiles: bool = False
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    python, calls = tmp_path / "python", tmp_path / "calls"
    program(python, PYTHON.format(calls=calls, torch=torch))
    # Nothing takes time here.
    (tmp_path / "sleep").symlink_to("/bin/true")
    # As that of a Mac, which lacks what GNU adds.
    program(tmp_path / "sed", '#!/bin/sh\nexec /bin/sed --posix "$@"\n')
    variables = {"PATH": f"{tmp_path}:/usr/bin:/bin", "COMPILE": "yes" if compiles else "no"}
    ended = subprocess.run(
        ["sh", "packaging/install.sh", python, extras], cwd=ROOT, env=variables,
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    first, *others = calls.read_text().splitlines()
    # Linux without a card of NVIDIA's gets the build without CUDA at first.
    assert first.endswith(CPU_BUILD)
    return ended, others


@pytest.mark.parametrize("torch", [0, 1])
def test_wheels_are_made_that_compile_nothing_and_installed(tmp_path: Path, torch: int) -> None:
    """Also where PyTorch's index can't be reached."""
    ended, calls = install(tmp_path, "starter,llama,web", torch=torch)
    assert ended.returncode == 0 and ended.stderr == ""
    assert len(calls) == 3 and calls[2] == "-m sapo_edge.trimming" and calls[0] == "packaging/wheels.py slim"
    assert calls[1].endswith("-c constraints.txt --find-links dist --editable .[starter,llama,web]")


def test_compiling_is_asked_for(tmp_path: Path) -> None:
    ended, calls = install(tmp_path, "starter,llama", compiles=True)
    assert ended.returncode == 1 and "there is no compiler" in ended.stderr
    assert calls == ["packaging/wheels.py slim native"]


def test_pip_ends_with_the_script(tmp_path: Path) -> None:
    """As with Ctrl-C, which a program in the background of a script ignores."""
    python, begun, ended = (tmp_path / name for name in ("python", "begun", "ended"))
    program(python, f"#!/bin/sh\ntrap 'touch {ended}; exit' TERM\ntouch {begun}\nwhile :; do /bin/sleep 0.01; done\n")
    program(tmp_path / "sleep", "#!/bin/sh\n/bin/sleep 0.01\n")
    variables = {"PATH": f"{tmp_path}:/usr/bin:/bin", "TMPDIR": str(tmp_path)}
    script = subprocess.Popen(["sh", "packaging/install.sh", python, "starter"], cwd=ROOT, env=variables)
    wait_until(begun.exists)
    script.terminate()
    assert script.wait(30) == 130
    wait_until(ended.exists)
    assert not list(tmp_path.glob("tmp.*"))


def test_another_failure_is_shown_and_final(tmp_path: Path) -> None:
    ended, calls = install(tmp_path, "broken,starter")
    assert ended.returncode == 1 and "No matching distribution" in ended.stderr and len(calls) == 2
