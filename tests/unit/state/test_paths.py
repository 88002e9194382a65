"""The directories."""

import os
import stat
from pathlib import Path

import pytest

from sapo_edge.errors import StateError
from sapo_edge.state.paths import Paths


def test_an_argument_overrides_the_environment_and_is_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SAPO_EDGE_HOME", str(tmp_path / "named"))
    assert Paths.default().state == tmp_path / "named" / "state"
    assert Paths.default(tmp_path / "given").state == tmp_path / "given" / "state"
    monkeypatch.chdir(tmp_path)
    assert Paths.default(Path("here")).state == tmp_path / "here" / "state"


@pytest.mark.skipif(os.uname().sysname == "Darwin", reason="XDG directories")
def test_xdg_directories_are_respected_but_that_of_a_session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SAPO_EDGE_HOME", raising=False)
    for variable in ("STATE", "CONFIG", "CACHE"):
        monkeypatch.setenv(f"XDG_{variable}_HOME", str(tmp_path / variable))
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1000")
    paths = Paths.default()
    assert (paths.state, paths.config) == (tmp_path / "STATE" / "sapo-edge", tmp_path / "CONFIG" / "sapo-edge")
    assert paths.cache == tmp_path / "CACHE" / "sapo-edge"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert Paths.default().runtime == paths.runtime, "node and command agree on it in every session"


def test_created_directories_are_private(tmp_path: Path) -> None:
    paths = Paths.default(tmp_path)
    paths.create()
    paths.create()
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o700 for path in (paths.state, paths.config, paths.runtime))


def test_settings_may_be_read_only_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = Paths.default(tmp_path)
    paths.create()
    access, denied = os.access, {paths.config}
    monkeypatch.setattr(os, "access", lambda path, mode: access(path, mode) and not (path in denied and mode & os.W_OK))
    paths.create()
    paths.check()
    denied.add(paths.cache)
    for action in (paths.create, paths.check):
        with pytest.raises(StateError, match="cache"):
            action()


@pytest.mark.parametrize(("file", "home"), [("state", "."), ("file", "file/home")])
def test_a_file_in_the_way_is_reported_with_a_remedy(tmp_path: Path, file: str, home: str) -> None:
    (tmp_path / file).write_text("")
    with pytest.raises(StateError, match="move it away"):
        Paths.default(tmp_path / home).create()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_write_permission_is_reported_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o500)
    with pytest.raises(StateError, match="permissions"):
        Paths.default(tmp_path).create()
