"""`install.sh` and `packaging/install.sh` with programs in the places of uv, PyPI and pip: what is asked and said."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.script import ROOT, program
from tests.waiting import wait_until

UV = """#!/bin/sh
echo "$* links=$UV_FIND_LINKS torch=${{UV_TORCH_BACKEND:-}} python=$UV_PYTHON cache=${{UV_CACHE_DIR:-}}" >> {calls}
[ "$1 $2" != "tool dir" ] || echo {tools}
"""
PYTHON = """#!/bin/sh
echo "python $*" >> {calls}
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone with its wheels, and a uv that notes what it is asked."""
    place = tmp_path / "a clone"
    (place / "dist").mkdir(parents=True)
    for name in ("sapo_edge-1", "sapo_edge-1+core", "llama_cpp_python-1+sapo"):
        (place / f"dist/{name}-py3-none-any.whl").touch()
    shutil.copy(ROOT / "install.sh", place)
    (place / "constraints.txt").touch()
    (place / "packaging").mkdir()
    (place / "packaging/wheels.py").touch()
    (tmp_path / "tools/sapo-edge/bin").mkdir(parents=True)
    for name, script in {"uv": UV, "tools/sapo-edge/bin/python": PYTHON}.items():
        program(tmp_path / name, script.format(calls=tmp_path / "calls", tools=tmp_path / "tools"))
    return place


def tool_install(calls: list[str]) -> str:
    """The last call that installs."""
    return next(call for call in reversed(calls) if call.startswith("tool install"))


def install(clone: Path, *words: str, **variables: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Ended with these calls of uv."""
    base = clone.parent
    environment = {"PATH": f"{base}:/usr/bin:/bin", "HOME": str(base / "home"), **variables}
    command = ["sh", str(clone / "install.sh"), *words]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)
    calls = base / "calls"
    return ended, calls.read_text().splitlines() if calls.exists() else []


def test_what_learns_gets_torch_for_this_machine(clone: Path) -> None:
    shutil.rmtree(clone.parent / "tools")
    ended, calls = install(clone, UV_FIND_LINKS="/mirror")
    tool = tool_install(calls)
    assert ended.returncode == 0 and f"begin with: {clone.parent}/tools/sapo" in ended.stderr
    assert calls[0].startswith(f"run --quiet --no-project --with pip python {clone}/packaging/wheels.py")
    assert tool.startswith("tool install --quiet --constraints ")
    assert " --force " in tool and "--torch-backend auto" in tool
    assert f"{clone}/dist/sapo_edge-1-py3-none-any.whl[starter,llama]" in tool
    assert f"links={clone}/dist,/mirror torch=" in tool


def test_what_is_installed_is_kept_and_trimmed(clone: Path) -> None:
    ended, calls = install(clone)
    assert ended.returncode == 0 and "python -m sapo_edge.trimming" in calls
    assert "--reinstall-package sapo-edge" in tool_install(calls) and "--force" not in tool_install(calls)
    with (clone.parent / "uv").open("a") as uv:
        uv.write('case "$*" in *--reinstall-package*) exit 2 ;; esac\n')
    ended, calls = install(clone)
    assert ended.returncode == 0 and "--force" in tool_install(calls)


def test_torchs_build_can_be_chosen_and_a_generator_has_none(clone: Path) -> None:
    assert "--torch-backend cpu" in tool_install(install(clone, UV_TORCH_BACKEND="cpu")[1])
    assert "torch-backend" not in tool_install(install(clone, UV_TORCH_BACKEND="none")[1])
    tool = tool_install(install(clone, "--generator")[1])
    assert f"{clone}/dist/sapo_edge-1+core-py3-none-any.whl[swarm,tui,llama,starter]" in tool


def test_uv_takes_a_python_for_which_there_are_wheels_unless_another_is_named(clone: Path) -> None:
    ended, calls = install(clone)
    assert ended.returncode == 0 and len(calls) > 2
    assert all(" python=>=3.11,<3.14 " in call for call in calls if call.startswith(("run", "tool")))
    assert " python=3.12 " in tool_install(install(clone, UV_PYTHON="3.12")[1])


def test_what_fails_names_the_other_torch(clone: Path) -> None:
    with (clone.parent / "uv").open("a") as uv:
        uv.write('[ "$1 $2" != "tool install" ] || exit 2\n')
    ended, _ = install(clone)
    assert ended.returncode == 1 and "begin with" not in ended.stderr
    assert "UV_TORCH_BACKEND=none takes torch from PyPI" in ended.stderr and "nothing was installed" in ended.stderr


def test_a_release_has_its_wheels_beside_the_script(clone: Path) -> None:
    release = clone.parent / "sapo-edge"
    (clone / "dist").rename(release)
    for name in ("install.sh", "constraints.txt"):
        (clone / name).rename(release / name)
    ended, calls = install(release)
    assert ended.returncode == 0 and not [call for call in calls if "wheels.py" in call]
    tool = tool_install(calls)
    assert f"{release}/sapo_edge-1-py3-none-any.whl[starter,llama]" in tool and f"links={release} " in tool


def test_a_folder_needs_no_network(clone: Path) -> None:
    folder = clone.parent / "folder"
    folder.mkdir()
    for name in ("sapo_edge-0", "sapo_edge-0+core"):
        # Of an earlier version, collected in the same folder.
        (folder / f"{name}-py3-none-any.whl").touch()
    # Brings uv, also for those others.
    program(clone.parent / "python3", '#!/bin/sh\necho "python3 $*" >> "$(dirname "$0")/calls"\n')
    ended, calls = install(clone, "--folder", str(folder))
    assert ended.returncode == 0 and f"sh {folder}/install.sh --from {folder}" in ended.stderr
    brought, _, torch, rest = calls
    assert brought.startswith("python3 - ") and brought.endswith(str(folder))
    assert "/whl/cpu torch links" in torch and f"--dest {folder} {clone}/dist/sapo_edge-1-py3-none-any.whl" in rest
    for name in ("install.sh", "constraints.txt", "llama_cpp_python-1+sapo-py3-none-any.whl"):
        assert (folder / name).exists()
    ended, calls = install(folder, "--from", str(folder))
    tool = tool_install(calls)
    assert ended.returncode == 0 and "--offline --no-index" in tool and f"links={folder} " in tool
    assert f" {folder}/sapo_edge-1-py3-none-any.whl[starter,llama] links" in tool
    assert install(clone, "--folder", str(clone / "dist"))[0].returncode == 0 and (clone / "dist/install.sh").exists()


def test_a_uv_that_can_not_be_brought_is_said_in_words(clone: Path) -> None:
    (clone.parent / "uv").unlink()
    ended, _ = install(clone, "--from", str(clone / "dist"))
    assert ended.returncode == 1 and f"{clone}/dist has no uv for this machine\n" in ended.stderr
    ended, _ = install(clone, https_proxy="http://127.0.0.1:1")
    assert ended.returncode == 1 and "refused" in ended.stderr and "install uv in another way" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_it_goes_as_it_came_with_what_its_own_uv_downloads(clone: Path) -> None:
    ended, calls = install(clone, "--uninstall")
    assert ended.returncode == 0 and [call.split(" links")[0] for call in calls] == ["tool uninstall sapo-edge"]
    place = clone.parent / "home/.local/share/sapo-edge/uv"
    place.mkdir(parents=True)
    assert install(clone)[1][-1].endswith("cache=")
    (clone.parent / "uv").rename(place / "uv")
    (place / "cache").mkdir()
    assert install(clone)[1][-1].endswith(f"cache={place}/cache") and not (place / "cache").exists()
    ended, _ = install(clone, "--uninstall")
    assert ended.returncode == 0 and not place.exists()


@pytest.mark.parametrize("words", [("--help",), ("--from",), ("--from", "/nowhere")])
def test_what_it_does_not_know_is_said(clone: Path, words: tuple[str, ...]) -> None:
    ended, calls = install(clone, *words)
    assert ended.returncode in (1, 2) and not calls
    assert any(said in ended.stderr for said in ("sh install.sh --generator", "needs a directory", "is no directory"))


no_card = pytest.mark.skipif(
    not sys.platform.startswith("linux") or Path("/dev/nvidiactl").exists() or Path("/dev/dxg").exists(),
    reason="a Mac, or a machine with a graphics card of NVIDIA's, installs another build of torch",
)
PIP = """#!/bin/sh
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


def install_in_clone(
    tmp_path: Path, extras: str, *, torch: int = 0, compiles: bool = False
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    python, calls = tmp_path / "python", tmp_path / "calls"
    program(python, PIP.format(calls=calls, torch=torch))
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


@no_card
@pytest.mark.parametrize("torch", [0, 1])
def test_wheels_are_made_that_compile_nothing_and_installed(tmp_path: Path, torch: int) -> None:
    """Also where PyTorch's index can't be reached."""
    ended, calls = install_in_clone(tmp_path, "starter,llama,web", torch=torch)
    assert ended.returncode == 0 and ended.stderr == ""
    assert len(calls) == 3 and calls[2] == "-m sapo_edge.trimming" and calls[0] == "packaging/wheels.py slim"
    assert calls[1].endswith("-c constraints.txt --find-links dist --editable .[starter,llama,web]")


@no_card
def test_compiling_is_asked_for(tmp_path: Path) -> None:
    ended, calls = install_in_clone(tmp_path, "starter,llama", compiles=True)
    assert ended.returncode == 1 and "there is no compiler" in ended.stderr
    assert calls == ["packaging/wheels.py slim native"]


@no_card
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


@no_card
def test_another_failure_is_shown_and_final(tmp_path: Path) -> None:
    ended, calls = install_in_clone(tmp_path, "broken,starter")
    assert ended.returncode == 1 and "No matching distribution" in ended.stderr and len(calls) == 2


@pytest.mark.skipif(shutil.which("make") is None or shutil.which("dash") is None, reason="make or dash is missing")
@pytest.mark.parametrize("name", ["python3.11", "python3.12", "python3"])
def test_make_finds_the_one_python_that_is_there_by_a_shell_that_looks_for_one_at_a_time(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).symlink_to(sys.executable)
    command = [str(shutil.which("make")), "-n", f"SHELL={shutil.which('dash')}", "size"]
    shown = subprocess.run(command, cwd=ROOT, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=True)
    assert shown.stdout == f"{tmp_path}/{name} packaging/size.py\n"


@pytest.mark.parametrize(("version", "refused", "compiles"), [
    ("3, 10", True, False), ("3, 11", False, False), ("3, 13", False, False), ("3, 14", False, True),
])  # fmt: skip
def test_a_python_that_is_too_old_or_compiles_or_lacks_venv_is_told_what_to_do(
    tmp_path: Path, version: str, refused: bool, compiles: bool
) -> None:
    # Debian's Pythons have no ensurepip without the package.
    changes = f'sys.version_info = ({version}, 0); sys.modules["ensurepip"] = None'
    code = f"import sys; {changes}; exec(sys.argv[1])"
    program(tmp_path / "python", f"#!/bin/sh\nexec {sys.executable} -c '{code}' \"$2\"\n")
    # What else is missing is not asked for here.
    for name in ("make", "apt-get"):
        (tmp_path / name).symlink_to("/bin/false")
    command = ["/bin/sh", "packaging/system-packages.sh", str(tmp_path / "python")]
    ended = subprocess.run(
        command, cwd=ROOT, env={"PATH": str(tmp_path)}, capture_output=True, text=True, timeout=30, check=False
    )
    assert (f"needs Python 3.11 or newer; '{tmp_path}/python' is not" in ended.stderr) == refused
    assert ("which takes a C compiler" in ended.stderr) == compiles
    assert ("make PYTHON=" in ended.stderr and "sh install.sh" in ended.stderr) == (refused or compiles)
    package = f"python{version.replace(', ', '.')}-venv"
    assert (f"Install them with: sudo apt-get install {package}\n" in ended.stderr) != refused
    assert ended.returncode == 1
