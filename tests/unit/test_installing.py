"""What to type for a missing package, by how this program was installed."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from unittest.mock import Mock

import pytest

from sapo_edge import installing
from sapo_edge.installing import extra_of, how_to_install, how_to_install_extra, how_to_remove

ROOT = Path(__file__).parents[2]
REQUIREMENTS = (
    "typer>=0.29",
    "sapo-edge[swarm]",
    'trio>=0.26; extra == "swarm"',
    'mlx-lm[cpu]<0.33; sys_platform != "never" and extra == "mlx"',
    'mlx-lm<0.33; sys_platform == "never" and extra == "mlx"',
    'sapo-edge[models,swarm]; extra == "mlx"',
    'numpy>=1.26; extra == "models"',
    'google-re2>=1.1; extra == "models"',
)


@pytest.fixture(autouse=True)
def declared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A distribution that declares `REQUIREMENTS`, in an empty prefix."""
    metadata = Message()
    for extra in ("swarm", "mlx", "models"):
        metadata["Provides-Extra"] = extra
    for line in REQUIREMENTS:
        metadata["Requires-Dist"] = line
    monkeypatch.setattr(importlib.metadata, "metadata", lambda _: metadata)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "sapo-edge"))
    (tmp_path / "sapo-edge").mkdir()
    installing._declared.cache_clear()
    yield
    installing._declared.cache_clear()


@pytest.mark.parametrize(("file", "text", "command"), [
    ("pipx_metadata.json", "{}", "pipx inject sapo-edge "),
    ("pyvenv.cfg", "home = /usr/bin\nuv = 0.13.9\n", "uv pip install --python {prefix} "),
    ("pyvenv.cfg", "home = /usr/bin\n", "{python} -m pip install "),
])  # fmt: skip
def test_the_command_fits_the_installation(file: str, text: str, command: str) -> None:
    (Path(sys.prefix) / file).write_text(text)
    expected = command.format(prefix=sys.prefix, python=sys.executable) + "'trio>=0.26'"
    assert how_to_install("trio") == f"install it with: {expected}"


def test_what_root_installed_takes_its_rights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    monkeypatch.setattr(installing, "DEBIAN", Path(sys.prefix))
    assert how_to_install("trio").startswith(f"install it with: sudo {sys.executable} -m pip install ")
    assert how_to_remove() == "`sudo apt remove sapo-edge`"
    monkeypatch.setattr(installing, "PIPX_GLOBAL", tmp_path)
    (Path(sys.prefix) / "pipx_metadata.json").touch()
    assert how_to_install("trio").startswith("install it with: sudo pipx inject --global sapo-edge ")
    assert how_to_remove() == "`sudo pipx uninstall --global sapo-edge`"


def test_a_uv_that_is_not_on_the_path_is_named_by_its_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    prefix, uv = tmp_path / "uv/tools/sapo-edge", tmp_path / "sapo-edge/uv/uv"
    for file, text in ((prefix / "pyvenv.cfg", "uv = 0.13.9\n"), (uv, "")):
        file.parent.mkdir(parents=True)
        file.write_text(text)
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert how_to_install("trio") == f"install it with: {uv} pip install --python {prefix} 'trio>=0.26'"
    assert how_to_remove().startswith("`sh install.sh --uninstall`")
    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/uv")
    assert how_to_remove() == "`uv tool uninstall sapo-edge`"


def test_versions_and_extras_are_the_declared_ones_if_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    assert how_to_install("mlx_lm", "unheard").endswith("-m pip install 'mlx-lm[cpu]<0.33' unheard")
    assert how_to_install("trio", "numpy").startswith("install them with: ")
    assert [extra_of(name) for name in ("trio", "re2", "typer", "unheard")] == ["swarm", "models", None, None]

    monkeypatch.setattr(importlib.metadata, "metadata", Mock(side_effect=importlib.metadata.PackageNotFoundError))
    assert how_to_install("torch", "peft").endswith("-m pip install torch peft")


def test_an_extra_names_what_it_lacks_with_the_extras_inside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    present = {"numpy"}

    def version(name: str) -> str:
        if name not in present:
            raise importlib.metadata.PackageNotFoundError(name)
        return "1"

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert how_to_install_extra("mlx").endswith("'mlx-lm[cpu]<0.33' 'google-re2>=1.1' 'trio>=0.26'")
    present |= {"mlx-lm", "google-re2", "trio"}
    assert "numpy" in how_to_install_extra("mlx"), "what is installed can be broken"


def test_no_text_tells_people_to_install_a_name_that_is_not_ours() -> None:
    command = re.compile(r"(pip|pipx|uv tool) install(?: -\S+)* ['\"]?sapo-edge")
    files = [path for folder in ("sapo_edge", "backends", "tui", "docs") for path in (ROOT / folder).rglob("*.*")]
    files = [path for path in [*files, ROOT / "README.md"] if path.suffix in (".py", ".md", ".toml")]
    assert len(files) > 300
    assert [str(path) for path in files if command.search(path.read_text("utf-8"))] == []
