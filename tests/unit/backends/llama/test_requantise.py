"""The file to sample from: measured once, remembered, made again when damaged."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import numpy.typing as npt
import pytest

from sapo_edge.backends.llama import requantise as subject
from sapo_edge.backends.llama.requantise import CANDIDATES, SamplerChoice, choose_sampler, fixed_sampler
from sapo_edge.backends.model.gguf_header import GgufHeader, file_digest, read_header
from sapo_edge.errors import ModelError
from tests.models import Headers

Choose = Callable[[], SamplerChoice]
Logits = npt.NDArray[np.float32]
LOGITS = np.log(np.array([[1, 2, 5], [5, 2, 1]], np.float32))
"""Of any format: what is chosen depends on the rates alone."""
SOME = np.array([[True, False, False], [False, False, False]])


@pytest.fixture
def header(headers: Headers) -> GgufHeader:
    return headers["llama-gqa"]


@pytest.fixture
def narration() -> list[str]:
    return []


@pytest.fixture
def choose(header: GgufHeader, tmp_path: Path, narration: list[str], monkeypatch: pytest.MonkeyPatch) -> Choose:
    """Chooses for a tiny model as if it were large enough, on a host that is fastest with bf16."""
    monkeypatch.setattr(subject, "SMALL", 0)
    rates = {"llama-gqa": 100.0, "bf16": 300.0, "f16": 250.0, "q8_0": 200.0}
    monkeypatch.setattr(subject, "_decode", lambda derived, _threads: (rates[derived.path.stem], LOGITS))
    return lambda: choose_sampler(header, tmp_path, 1, narration.append)


@pytest.fixture
def derived(header: GgufHeader, tmp_path: Path) -> Path:
    """The directory of what is made of the model."""
    return tmp_path / "sampler" / file_digest(header.path)[:16]


def test_a_small_model_is_sampled_from_as_it_is(header: GgufHeader, tmp_path: Path, narration: list[str]) -> None:
    choice = choose_sampler(header, tmp_path, 1, narration.append)
    assert (choice.path, choice.format) == (header.path, "original") and choice.reason
    assert not narration and not list(tmp_path.iterdir())


def test_the_fastest_format_is_made_and_remembered(
    choose: Choose, derived: Path, narration: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = choose()
    assert choice.format == "bf16" and "300" in choice.reason and "100" in choice.reason
    rates = {"original": 100, "bf16": 300, "f16": 250, "q8_0": 200}
    assert narration[1:] == [f"  {name}: {rate} tokens/s" for name, rate in rates.items()]
    assert read_header(choice.path).tensors["blk.0.attn_q.weight"].type == 30
    assert {path.name for path in derived.iterdir()} == {"bf16.gguf", "choice.json"}
    monkeypatch.setattr(subject, "_decode", lambda *_: pytest.fail("measured again"))
    assert choose() == choice and len(narration) == 5


def rewrite(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "derived file truncated": lambda d: (d / "bf16.gguf").write_bytes((d / "bf16.gguf").read_bytes()[:-1000]),
    "derived file gone": lambda d: (d / "bf16.gguf").unlink(),
    "record gone": lambda d: (d / "choice.json").unlink(),
    "record of another machine": lambda d: rewrite(d / "choice.json", machine="another"),
    "record of an unknown format": lambda d: rewrite(d / "choice.json", format="q2_k"),
    "record of a path": lambda d: rewrite(d / "choice.json", format="../bf16"),
    "record of fewer formats": lambda d: rewrite(d / "choice.json", tried=["original", "bf16"]),
    "rates are a text": lambda d: rewrite(d / "choice.json", rates="fast"),
    "rates are texts": lambda d: rewrite(d / "choice.json", rates={"bf16": "fast"}),
}


@pytest.mark.parametrize("damage", list(DAMAGE))
def test_a_damaged_choice_is_made_again(choose: Choose, derived: Path, narration: list[str], damage: str) -> None:
    first = choose()
    content = first.path.read_bytes()
    DAMAGE[damage](derived)
    assert choose() == first and len(narration) == 10
    assert first.path.read_bytes() == content


def test_the_original_can_win(
    choose: Choose, derived: Path, header: GgufHeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "_decode", lambda made, _threads: (float(made.path == header.path), LOGITS))
    choice = choose()
    assert (choice.path, choice.format) == (header.path, "original")
    assert [path.name for path in derived.iterdir()] == ["choice.json"]


@pytest.mark.parametrize(
    ("logits", "what"),
    [
        (LOGITS + 7, ""),
        (LOGITS * 1.05, ""),
        (LOGITS[::-1], "not sampling from bf16: it moves the model's probabilities by 0.8 nats"),
        (np.where(SOME, np.nan, LOGITS), "not sampling from bf16: it moves .* nan nats"),
        (np.where(SOME, np.inf, LOGITS), "not sampling from bf16: it moves .* nan nats"),
        (np.where(SOME, -np.inf, LOGITS), "not sampling from bf16: it moves .* inf nats"),
    ],
)
def test_a_format_that_moves_the_distribution_is_left_out(
    choose: Choose, derived: Path, narration: list[str], monkeypatch: pytest.MonkeyPatch, logits: Logits, what: str
) -> None:
    """In F16 what a layer is given is too large for the format in some models."""
    usual = subject._decode

    def decode(derived: GgufHeader, threads: int) -> tuple[float, Logits]:
        rate, others = usual(derived, threads)
        return rate, logits if derived.path.stem == "bf16" else others

    monkeypatch.setattr(subject, "_decode", decode)
    choice = choose()
    assert choice.format == ("f16" if what else "bf16")
    assert [bool(re.match(what, text)) for text in narration[1:] if not text.startswith(" ")] == [True] * bool(what)
    assert {path.name for path in derived.iterdir()} == {choice.path.name, "choice.json"}
    assert choose() == choice, "remembered"


def test_a_full_disk_keeps_the_original(
    choose: Choose, derived: Path, header: GgufHeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(_header: GgufHeader, target: Path, _form: str) -> None:
        target.write_bytes(bytes(1000))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(subject, "write_gguf", cut_off)
    choice = choose()
    assert choice.path == header.path and "No space left" in choice.reason
    assert not list(derived.iterdir())
    # What a killed process left is removed, what another one writes stays: no process has the first number.
    killed, running = (derived / f".bf16.gguf.{number}.part" for number in (2**22, os.getppid()))
    killed.touch()
    running.touch()
    choose()
    assert list(derived.iterdir()) == [running]
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=1000))
    choice = choose()
    assert choice.path == header.path and "disk" in choice.reason


def test_a_process_with_another_choice_takes_nothing_away(choose: Choose, monkeypatch: pytest.MonkeyPatch) -> None:
    original = subject._decode

    def decode(header: GgufHeader, threads: int) -> tuple[float, Logits]:
        if header.path.stem == "q8_0":
            (header.path.parent / "bf16.gguf").unlink()
        return original(header, threads)

    monkeypatch.setattr(subject, "_decode", decode)
    choice = choose()
    assert choice.format == "bf16" and read_header(choice.path).tensors["blk.0.attn_q.weight"].type == 30


def test_a_format_that_fails_is_left_out(choose: Choose, narration: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "write_gguf", Mock(side_effect=NotImplementedError("no such format")))
    assert choose().format == "original"
    assert sum("can't be converted" in text for text in narration) == 3


def test_a_cache_that_can_not_be_written_keeps_the_original(choose: Choose, header: GgufHeader, tmp_path: Path) -> None:
    (tmp_path / "sampler").write_text("in the way")
    choice = choose()
    assert choice.path == header.path and "can't be written" in choice.reason


def test_formats_are_measured(header: GgufHeader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "SMALL", 0)
    choice = choose_sampler(header, tmp_path, 1, lambda _text: None)
    rates = json.loads(next(tmp_path.rglob("choice.json")).read_text())["rates"]
    assert set(rates) == set(CANDIDATES) and min(rates.values()) > 0
    assert choice.format == max(rates, key=rates.get)


def test_a_format_that_is_asked_for_is_made_whichever_is_the_fastest(
    choose: Choose, header: GgufHeader, tmp_path: Path, narration: list[str]
) -> None:
    choice = fixed_sampler(header, tmp_path, "q8_0", narration.append)
    assert choice.format == "q8_0" and narration == ["converting the model to q8_0, to sample from"]
    assert read_header(choice.path).tensors["blk.0.attn_q.weight"].type == 8
    # Measuring removes what is slower, and another process may be sampling from it.
    assert choose().format == "bf16"
    narration.clear()
    assert fixed_sampler(header, tmp_path, "q8_0", narration.append) == choice and not narration
    choice.path.write_bytes(choice.path.read_bytes()[:1000])
    assert fixed_sampler(header, tmp_path, "q8_0", narration.append) == choice
    assert len(narration) == 1 and read_header(choice.path).tensors


def test_a_format_that_is_asked_for_and_can_not_be_made_is_an_error(
    header: GgufHeader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fixed_sampler(header, tmp_path, "bf16", lambda _text: None).path == header.path, "small enough as it is"
    monkeypatch.setattr(subject, "SMALL", 0)
    (tmp_path / "sampler").touch()
    with pytest.raises(ModelError, match=r"can't be written.*free some disk space"):
        fixed_sampler(header, tmp_path, "bf16", lambda _text: None)
