"""What was measured is remembered until what it depends on changes, and again once a busy machine is quiet."""

from __future__ import annotations

from pathlib import Path

import pytest

from sapo_edge.backends.machine import measured as subject
from sapo_edge.backends.machine.measured import Measured


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Cores that other programs use; the last one counts."""
    cores = [0.0]
    monkeypatch.setattr(subject, "cores_in_use", lambda _seconds: cores[-1])
    return cores


def test_figures_are_remembered_for_their_subject_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cache" / "figures.json"
    measured = Measured(path, {"torch": "2"})
    assert measured.read(dict) is None
    measured.write({"rate": 7.5}, quiet=True)
    found = measured.read(dict)
    assert found is not None and found["rate"] == 7.5
    assert Measured(path, {"torch": "3"}).read(dict) is None
    assert Measured(path, {"torch": "2", "products": "float32"}).read(dict) is None
    assert Measured(None, {}).read(dict) is None
    Measured(None, {}).write({"rate": 1}, quiet=True)
    assert [file.name for file in path.parent.iterdir()] == ["figures.json"]
    monkeypatch.setattr(subject, "processor", lambda: "another")
    assert measured.read(dict) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"machine": "another"}', '{"torch": "2", "quiet": true}', "loud"])
def test_a_damaged_file_remembers_nothing(tmp_path: Path, text: str) -> None:
    measured, path = Measured(tmp_path / "figures.json", {"torch": "2"}), tmp_path / "figures.json"
    measured.write({"rate": 1}, quiet=True)
    path.write_text(text if text != "loud" else path.read_text().replace('"quiet"', '"loud"'))
    assert measured.read(dict) is None


def test_a_record_of_other_types_remembers_nothing(tmp_path: Path) -> None:
    measured = Measured(tmp_path / "figures.json", {})
    for rates in (7, {}, {"a": "fast"}, {"a": None}):
        measured.write({"rates": rates}, quiet=True)
        assert measured.read(lambda record: float(record["rates"]["a"])) is None


def test_what_was_measured_beside_busy_programs_counts_until_they_are_quiet(tmp_path: Path, load: list[float]) -> None:
    measured = Measured(tmp_path / "figures.json", {})
    measured.write({"rate": 1}, quiet=False)
    load.append(1.5)
    assert not subject.is_quiet() and measured.read(dict) is not None
    load.append(0.1)
    assert subject.is_quiet() and measured.read(dict) is None


def test_what_can_not_be_written_is_measured_again(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way")
    measured = Measured(tmp_path / "cache" / "figures.json", {})
    measured.write({"rate": 1}, quiet=True)
    assert measured.read(dict) is None
