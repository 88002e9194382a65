"""Every target of fuzzing holds for its seeds and a few mutations of them; `python -m tests.fuzzing` goes further."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzzing import planted
from tests.fuzzing.__main__ import MISSING
from tests.fuzzing.fuzz import ROOT, fuzz
from tests.fuzzing.target import KIB, BoundError, Target, measure, mutations
from tests.fuzzing.targets import NAMES, load

ATHERIS = pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason=MISSING)


@pytest.mark.parametrize("name", NAMES)
def test_a_target_holds_for_its_seeds_and_their_mutations(name: str) -> None:
    target = load(name)
    seeds = list(target.seeds())
    for seed in seeds:
        target.check(seed)
    for data in (*seeds, *mutations(seeds, target.short, target.longest)):
        measure(target, data)


def test_mutations_are_the_same_each_time_and_differ_from_each_other() -> None:
    first, second = (list(mutations([b"one seed", b"another"], 200, 12)) for _ in range(2))
    assert first == second and len(set(first)) > 100 and max(map(len, first)) <= 12


def test_an_input_that_takes_too_much_memory_or_time_is_a_fault() -> None:
    def keep(data: bytes) -> None:
        bytearray(64 * KIB)

    def work(data: bytes) -> None:
        sum(range(30_000))

    measure(Target(keep, list, 1, 128 * KIB, 0), b"")
    measure(Target(keep, list, 1, 0, 128 * KIB), b"1")
    measure(Target(work, list, 1, 16 * KIB, 0), b"")
    with pytest.raises(BoundError, match="allocated"):
        measure(Target(keep, list, 1, 32 * KIB, 128 * KIB), b"")
    with pytest.raises(BoundError, match="take"):
        measure(Target(work, list, 1, KIB, 0, seconds=0.0001), b"")


@ATHERIS
def test_the_fuzzer_finds_a_planted_fault_and_says_how_to_repeat_it(tmp_path: Path) -> None:
    for data in mutations(list(planted.TARGET.seeds()), 2000, planted.TARGET.longest):
        measure(planted.TARGET, data)
    much = len(b"1" * 2**29)
    run = fuzz("planted", tmp_path, 60, ("-seed=1",))
    assert 0 < run.peak < much >> 20, "the memory of its starter"
    assert run.crash is not None and run.crash.parent == tmp_path / "crashes" / "planted"
    assert run.crash.read_bytes().startswith(planted.WORD) and "the planted fault" in run.reason
    assert run.inputs > 100 and run.edges > 1
    with pytest.raises(KeyError, match="the planted fault"):
        measure(planted.TARGET, run.crash.read_bytes())
    command = [sys.executable, "-m", "tests.fuzzing", "--repeat", str(run.crash)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1 and "the planted fault" in ended.stderr
