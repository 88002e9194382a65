"""A short run of the embedded model, from an empty state directory to an evaluated adapter."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from sapo_edge import events
from sapo_edge.backends.model.find import embedded_model
from sapo_edge.state.journal import Journal
from tests.cli.process import Result, fork

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(embedded_model() is None, reason="the extra `starter` is not installed"),
]

QUESTIONS = "8"
SHAPE = (
    "--own", "4", "--external", "0", "--answers", "6", "--seed", "3", "--threads", "1", "--set", "temperature=0.7",
    "--set", f"held_out={QUESTIONS}", "--set", "evaluate_every=3", "--solo",
)  # fmt: skip
"""With this seed the second round has a gradient, so the third samples from an adapter that was loaded again."""


def sapo(home: Path, *arguments: str | Path) -> Result:
    process = fork(*arguments, "--home", home, "--json", directory=home.parent)
    out, err = process.communicate(240)
    return Result(process.wait(), out, err)


def new_home(directory: Path, cache: Path) -> Path:
    """An empty home with the cache of all tests: another measurement might choose another file to sample from."""
    home = directory / "home"
    home.mkdir()
    (home / "cache").symlink_to(cache, target_is_directory=True)
    return home


@pytest.fixture(scope="module")
def home(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_home(tmp_path_factory.mktemp("embedded"), cache)


@pytest.fixture(scope="module")
def reported(home: Path) -> list[events.Event]:
    """Events of three rounds by two processes."""
    lines: list[str] = []
    for rounds in ("2", "3"):
        ended = sapo(home, "run", "--rounds", rounds, *SHAPE)
        assert ended.code == 0, ended.err
        lines += ended.out.splitlines()
    return [events.from_json(line) for line in lines]


def test_the_base_is_evaluated_and_three_rounds_finish(reported: list[events.Event]) -> None:
    rounds = [event for event in reported if isinstance(event, events.RoundFinished)]
    assert [event.round for event in rounds] == [1, 2, 3]
    held_out = [event for event in reported if isinstance(event, events.HeldOut)]
    assert [event.round for event in held_out] == [0, 2, 3]
    for measured in held_out:
        assert measured.questions == int(QUESTIONS) and measured.low <= measured.accuracy <= measured.high
    assert held_out[0].correct < held_out[0].questions, "the base model has something to learn"
    for event in rounds:
        assert (event.groups, event.own, event.external, event.reward_external) == (4, 4, 0, None)
        assert event.tokens > 0 and event.seconds_generate > 0
        assert 0.0 <= event.statistics["mismatch_kl"] < 0.05, "sampler and learner are the same policy"
        assert event.statistics["steps"] == min(event.informative, 1), "a group with a gradient leads to a step"


def answers(home: Path) -> list[list[str]]:
    """Own answers of each round."""
    with closing(Journal(home / "state" / "runs" / "first" / "journal" / "journal.sqlite")) as journal:
        rounds = [journal.rollouts(number) for number in (1, 2, 3)]
    return [[answer.text for scored in rollouts for answer in scored.rollout.answers] for rollouts in rounds]


def test_an_uninterrupted_run_gives_the_same_answers_and_weights_bit_for_bit(
    home: Path, reported: list[events.Event], cache: Path, tmp_path: Path
) -> None:
    other = new_home(tmp_path, cache)
    ended = sapo(other, "run", "--rounds", "3", *SHAPE)
    assert ended.code == 0, ended.err
    assert answers(other) == answers(home)
    checkpoint = Path("state", "runs", "first", "checkpoints", "round-000003")
    for name in ("adapter_model.safetensors", "optimizer.safetensors"):
        assert (other / checkpoint / name).read_bytes() == (home / checkpoint / name).read_bytes()


def test_eval_agrees_with_the_run(home: Path, reported: list[events.Event]) -> None:
    *_, compared = (event for event in reported if isinstance(event, events.Comparison))
    adapter = home / "state" / "runs" / "first" / "checkpoints" / f"round-{compared.round:06d}"
    ended = sapo(home, "eval", "--adapter", adapter, "--questions", QUESTIONS, "--threads", "1")
    assert ended.code == 0, ended.err
    record = json.loads(ended.out)
    assert (record["base"]["correct"], record["adapter"]["correct"]) == (compared.base, compared.adapter)


def test_general_questions_are_neither_too_easy_nor_too_hard_for_the_model(
    home: Path, reported: list[events.Event]
) -> None:
    ended = sapo(home, "eval", "--general", "--threads", "1")
    assert ended.code == 0, ended.err
    record = json.loads(ended.out)
    # Of 60, so that a fall and a rise both show.
    assert 24 <= record["base"]["correct"] <= 42
    assert record["base"]["questions"] == record["adapter"]["questions"] == 60
