"""A short run of the embedded model, from an empty state directory to an evaluated adapter; memory as estimated."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from sapo_edge import events
from sapo_edge.backends.backend import silent
from sapo_edge.backends.llama.requantise import choose_sampler
from sapo_edge.backends.model.find import embedded_model, find_model
from sapo_edge.backends.model.gguf_header import read_header
from sapo_edge.state.journal import Journal
from tests import needs
from tests.cli.process import Result, fork
from tests.memory_probe import measure_memory

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(embedded_model() is None, reason="the extra `starter` is not installed"),
]

QUESTIONS = "6"
SHAPE = (
    "--own", "3", "--external", "0", "--answers", "4", "--seed", "3", "--threads", "1", "--set", "temperature=0.7",
    "--set", f"held_out={QUESTIONS}", "--set", "evaluate_every=2", "--set", "head_start=3", "--solo",
)  # fmt: skip
"""With this seed the first round has a gradient, so the second samples from an adapter that is loaded again."""


def sapo(home: Path, *arguments: str | Path) -> Result:
    process = fork(*arguments, "--home", home, "--json", directory=home.parent)
    out, err = process.communicate(900)
    return Result(process.wait(), out, err)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of which file to sample from, measured once."""
    directory = tmp_path_factory.mktemp("measured") / "cache"
    choose_sampler(read_header(find_model("")), directory, 1, silent)
    return directory


@pytest.fixture(scope="module")
def home(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty home with the cache of all tests: another measurement might choose another file to sample from."""
    home = tmp_path_factory.mktemp("embedded") / "home"
    home.mkdir()
    (home / "cache").symlink_to(cache, target_is_directory=True)
    return home


def run(home: Path) -> list[events.Event]:
    ended = sapo(home, "run", "--rounds", "2", *SHAPE)
    assert ended.code == 0, ended.err
    return [events.from_json(line) for line in ended.out.splitlines()]


@pytest.fixture(scope="module")
def reported(home: Path) -> list[events.Event]:
    return run(home)


def test_the_base_is_evaluated_and_two_rounds_finish(reported: list[events.Event]) -> None:
    rounds = [event for event in reported if isinstance(event, events.RoundFinished)]
    assert [event.round for event in rounds] == [1, 2]
    held_out = [event for event in reported if isinstance(event, events.HeldOut)]
    assert [event.round for event in held_out] == [0, 2]
    for measured in held_out:
        assert measured.questions == int(QUESTIONS) and measured.low <= measured.accuracy <= measured.high
    assert held_out[0].correct < held_out[0].questions, "the base model has something to learn"
    for event in rounds:
        assert (event.groups, event.own, event.external, event.reward_external) == (3, 3, 0, None)
        assert event.tokens > 0 and event.seconds_generate > 0
        assert 0.0 <= event.statistics["mismatch_kl"] < 0.05, "sampler and learner are the same policy"
        assert event.statistics["steps"] == min(event.informative, 1), "a group with a gradient leads to a step"
    assert rounds[0].informative


def answers(home: Path) -> list[list[str]]:
    """Own answers of each round."""
    with closing(Journal(home / "state" / "runs" / "first" / "journal" / "journal.sqlite")) as journal:
        rounds = [journal.rollouts(number) for number in (1, 2)]
    return [[answer.text for scored in rollouts for answer in scored.rollout.answers] for rollouts in rounds]


def test_a_round_that_another_process_repeats_gives_the_same_answers_and_weights_bit_for_bit(
    home: Path, reported: list[events.Event], tmp_path: Path
) -> None:
    other = tmp_path / "home"
    shutil.copytree(home, other, symlinks=True)
    checkpoint = Path("state", "runs", "first", "checkpoints", "round-000002")
    shutil.rmtree(other / checkpoint)
    assert [event.round for event in run(other) if isinstance(event, events.RoundFinished)] == [2]
    assert answers(other) == answers(home)
    for name in ("adapter_model.safetensors", "optimizer.safetensors"):
        assert (other / checkpoint / name).read_bytes() == (home / checkpoint / name).read_bytes()


def test_eval_agrees_with_the_run(home: Path, reported: list[events.Event]) -> None:
    *_, compared = (event for event in reported if isinstance(event, events.Comparison))
    adapter = home / "state" / "runs" / "first" / "checkpoints" / f"round-{compared.round:06d}"
    ended = sapo(home, "eval", "--adapter", adapter, "--questions", QUESTIONS, "--threads", "1")
    assert ended.code == 0, ended.err
    record = json.loads(ended.out)
    assert (record["base"]["correct"], record["adapter"]["correct"]) == (compared.base, compared.adapter)


@pytest.mark.parametrize("backend", ["torch", "llama_cpp", pytest.param("mlx", marks=needs.MLX)])
def test_memory_is_as_estimated(backend: str, cache: Path) -> None:
    """Of a small round in a fresh process, whose libraries count too."""
    memory = measure_memory(backend, cache)
    assert memory["estimate"] == pytest.approx(memory["measured"], rel=0.2)
