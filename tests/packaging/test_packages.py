"""The container, the Debian package and the manual page: what can be checked without installing them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from sapo_edge.config.layers import OTHER_VARIABLES, PREFIX
from sapo_edge.config.settings import SETTINGS
from tests.packaging.script import ROOT
from tests.unit.test_docs import COMMANDS

PACKAGING = ROOT / "packaging"
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
INSTALL = "usr/sbin/sapo-edge-install"
INSTRUCTION = re.compile(r"^([A-Z]+)\s+((?:.*\\\n)*.*)$", re.MULTILINE)


def stages() -> dict[str, list[tuple[str, str]]]:
    """Instructions of each stage of the Dockerfile, those of its base first."""
    found: dict[str, list[tuple[str, str]]] = {}
    text = re.sub(r"^#.*\n", "", (PACKAGING / "Dockerfile").read_text(), flags=re.MULTILINE)
    for name, value in INSTRUCTION.findall(text):
        if name == "FROM":
            base, stage = re.fullmatch(r"(\S+) AS (\S+)", value).groups()  # type: ignore[union-attr]
            current = found[stage] = list(found.get(base, ()))
        else:
            current.append((name, value.replace("\\\n", " ")))
    return found


@pytest.mark.parametrize("stage", ["node", "relay"])
def test_a_container_runs_a_command_that_exists_and_not_as_root(stage: str) -> None:
    instructions = stages()[stage]
    values = dict(instructions)
    last_run = max(index for index, (name, _) in enumerate(instructions) if name == "RUN")
    assert values["USER"] == "10001" and instructions.index(("USER", "10001")) > last_run
    command = json.loads(values["ENTRYPOINT"]) + json.loads(values["CMD"])
    options = {option for parameter in COMMANDS[" ".join(command[:2])].params for option in parameter.opts}
    assert {word for word in command[2:] if word.startswith("--")} <= options
    assert values["VOLUME"] == "/data" and "SAPO_EDGE_HOME=/data" in values["ENV"]
    (extras,) = re.findall(r"\[([a-z,]+)\]\"", " ".join(value for name, value in instructions if name == "RUN"))
    assert set(extras.split(",")) <= set(EXTRAS)


def test_a_container_is_made_of_files_that_exist() -> None:
    for name, value in stages()["wheels"]:
        if name == "COPY":
            assert all((ROOT / source).exists() for source in value.split()[:-1]), value
    text = (PACKAGING / "Dockerfile").read_text()
    kinds = re.findall(r"wheels\.py --to /wheels *(.*)", text)
    assert kinds and all(f"\n{kind} " in (PACKAGING / "wheels.py").read_text() for kind in kinds[0].split())
    variables = set(re.findall(rf"{PREFIX}[A-Z_]+", text)) - OTHER_VARIABLES
    assert {name.removeprefix(PREFIX).lower() for name in variables} <= set(SETTINGS)


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is not installed")
def test_a_debian_package_holds_the_wheels_and_sound_scripts(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for name in ("sapo_edge-9.8", "sapo_edge-9.8+core", "libp2p-0.8.1+sapo"):
        (wheels / f"{name}-py3-none-any.whl").touch()
    command = deb(wheels, tmp_path)
    package = tmp_path / "sapo-edge_9.8_all.deb"
    assert run(*command) == f"{package}\n"
    fields = run("dpkg-deb", "--field", str(package))
    assert "Depends: python3 (>= 3.11), python3 (<< 3.14~), " in fields
    assert "Version: 9.8\n" in fields and "python3-venv" in fields and "Architecture: all" in fields
    listed = run("dpkg-deb", "--contents", str(package))
    assert "+core" not in listed and all(line.split()[1] == "root/root" for line in listed.splitlines())
    run("dpkg-deb", "--raw-extract", str(package), str(tmp_path / "root"))
    root = tmp_path / "root"
    held = [path.name for path in (root / "usr/share/sapo-edge").iterdir()]
    assert sorted(held) == ["constraints.txt", "libp2p-0.8.1+sapo-py3-none-any.whl", "sapo_edge-9.8-py3-none-any.whl"]
    scripts = [root / place for place in ("DEBIAN/postinst", "DEBIAN/prerm", "usr/bin/sapo", INSTALL)]
    for script in scripts:
        assert script.stat().st_mode & 0o777 == 0o755
        run("sh", "-n", str(script))
    install = scripts[3].read_text()
    assert "sapo_edge-9.8-py3-none-any.whl[llama,starter]" in install and {"llama", "starter"} <= set(EXTRAS)
    assert "--constraint /usr/share/sapo-edge/constraints.txt" in install and " torch" in install
    core = run(*command, "--core", "--extras", "swarm").strip()
    assert core.endswith("sapo-edge_9.8+core_all.deb")
    run("dpkg-deb", "--raw-extract", core, str(tmp_path / "core"))
    install = (tmp_path / "core" / INSTALL).read_text()
    assert "sapo_edge-9.8+core-py3-none-any.whl[swarm]" in install and "torch" not in install
    run("sh", "-n", str(tmp_path / "core" / INSTALL))
    launcher = scripts[2].read_text().replace("/opt/", f"{tmp_path}/opt/")
    place = tmp_path / "opt/sapo-edge"
    # Installed; then Debian's Python is a newer one; then it is gone.
    (place / "bin").mkdir(parents=True)
    (place / "bin/sapo").symlink_to("/bin/echo")
    for name, code in (("python3.11", 0), ("python3.13", 1), ("", 1)):
        (place / "bin/python").unlink(missing_ok=True)
        (place / "bin/python").symlink_to(tmp_path / name)
        (place / "lib/python3.11/site-packages/sapo_edge").mkdir(parents=True, exist_ok=True)
        launched = subprocess.run(["sh", "-c", launcher], capture_output=True, text=True, check=False)
        assert launched.returncode == code and ("sapo-edge-install" in launched.stderr) == bool(code)


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is not installed")
def test_a_debian_package_holds_the_wheels_of_its_architecture(tmp_path: Path) -> None:
    pure, here = "sapo_edge-9.8-py3-none-any.whl", "llama_cpp_python-1-py3-none-linux_x86_64.whl"
    there = "llama_cpp_python-1-py3-none-linux_aarch64.whl"
    for name in (pure, here, "pycosat-1-cp311-cp311-linux_x86_64.whl"):
        (tmp_path / name).write_bytes(b"")
    command = deb(tmp_path, tmp_path)
    for_arm = [*command, "--architecture", "arm64"]
    (empty := tmp_path / "empty").mkdir()
    for refused, problem in ((for_arm, "has no llama.cpp for arm64; see"), (deb(empty, tmp_path), "has 0 wheels")):
        with pytest.raises(subprocess.CalledProcessError) as caught:
            run(*refused)
        assert problem in caught.value.stderr and "packaging/wheels.py" in caught.value.stderr
    (tmp_path / there).write_bytes(b"")
    package = run(*for_arm).strip()
    assert package.endswith("sapo-edge_9.8_arm64.deb") and "Architecture: arm64" in run("dpkg-deb", "--field", package)
    listed = run("dpkg-deb", "--contents", package)
    assert there in listed and pure in listed and "x86_64" not in listed
    listed = run("dpkg-deb", "--contents", run(*command, "--architecture", "amd64").strip())
    assert here in listed and "pycosat" in listed and "aarch64" not in listed


def test_the_manual_has_every_command_and_option_and_is_valid_roff() -> None:
    roff = run(sys.executable, str(PACKAGING / "manual.py"))
    page = roff.replace("\\-", "-")
    assert [path for path in COMMANDS if f"\n.SS {path}" not in page] == []
    options = {option for command in COMMANDS.values() for option in command.params if option.opts[0].startswith("--")}
    assert [option.opts[0] for option in options if f"\\fB{option.opts[0]}" not in page] == []
    assert "\n.SH EXIT STATUS\n" in page and all(f"\n.B {code}\n" in page for code in (0, 1, 2, 3, 130))
    if shutil.which("groff") is not None:
        command = ["groff", "-man", "-Tascii", "-ww", "-z"]
        result = subprocess.run(command, input=roff, capture_output=True, text=True, check=False, timeout=60)
        warnings = [line for line in result.stderr.splitlines() if "cannot adjust" not in line and "break" not in line]
        assert result.returncode == 0 and warnings == []


def deb(wheels: Path, to: Path) -> tuple[str, ...]:
    return (sys.executable, str(PACKAGING / "deb.py"), "--wheels", str(wheels), "--to", str(to))


def run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
