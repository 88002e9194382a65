"""Journals of long runs and of a gigabyte: how long the questions of the terminal app take, and opening."""

from __future__ import annotations

import random
import statistics
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from sapo_edge import events
from sapo_edge.control.journal_view import JournalReader, RolloutQuery
from sapo_edge.events import HeldOut, RoundFinished
from sapo_edge.rollout import Answer, Rollout, TaskRef
from sapo_edge.state import journal as journal_module
from sapo_edge.state.journal import Journal, JournaledRollout
from tests.benchmarks.measure import seconds

LENGTHS = (10_000, 100_000)
ROLLOUTS = 100_000
"""Of about 10 kB each."""
WORDS = ("alpha", "beta", "gamma", "delta", "Epsilon", "12", "+", "34", "=", "<answer>46</answer>")
STATISTICS = dict.fromkeys(
    ("loss", "gradient_norm", "clip_fraction", "entropy", "mismatch_kl", "reference_kl", "answer_tokens", "ended",
     "groups", "informative", "tokens", "steps", "learning_rate"),
    0.123456789,
)  # fmt: skip


def run(repeats: int) -> None:
    """Medians of a few repeats, on warm files."""
    print("\n### The journal\n\n| what | median ms | max ms |\n|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="sapo-journal-") as directory:
        for rounds in LENGTHS:
            path = Path(directory) / f"{rounds}" / "journal.sqlite"
            fill(path, rounds, 0)
            reader = JournalReader(path)
            _report(f"`history` of {rounds} rounds", repeats, partial(reader.history, 400))
        _large(Path(directory) / "large" / "journal.sqlite", repeats)


def _large(path: Path, repeats: int) -> None:
    journal = fill(path, 500, ROLLOUTS)
    reader = JournalReader(path)
    size = path.stat().st_size / 1e9
    _report(f"`rollouts` of a journal of {size:.1f} GB", repeats, lambda: reader.rollouts(RolloutQuery()))
    _report("... a search for what is not there", repeats, lambda: reader.rollouts(RolloutQuery(search="é")))
    _report("`rollout`", repeats, lambda: reader.rollout(250, 3))
    alone = [seconds(partial(journal.record, _round(number))) for number in range(501, 701)]
    done = threading.Event()

    def search() -> None:
        while not done.is_set():
            reader.rollouts(RolloutQuery(search="not there"))

    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            pool.submit(search)
        beside = [seconds(partial(journal.record, _round(number))) for number in range(701, 901)]
        done.set()
    _print("writing a round", alone)
    _print("... while four clients search", beside)
    journal.close()
    _report("opening it after an orderly end", repeats, lambda: Journal(path).close())
    known, journal_module.CHECKED_BYTES = journal_module.CHECKED_BYTES, 1 << 62
    _report("... with a look through all of it", repeats, lambda: Journal(path).close())
    journal_module.CHECKED_BYTES = known


def fill(path: Path, rounds: int, rollouts: int) -> Journal:
    """A journal of so many rounds, the rollouts spread evenly over them; written in one transaction."""
    # All rollouts are kept.
    journal_module.KEEP_ROLLOUTS = 1 << 62
    journal = Journal(path)
    rng = random.Random(1)
    with journal._transaction() as connection:
        # Writing 100,000 rounds one by one takes minutes.
        connection.execute("SAVEPOINT filling")
        per_round = rollouts // rounds
        for number in range(1, rounds + 1):
            event = _round(number)
            connection.execute("INSERT INTO rounds VALUES (?, ?, ?)", (number, event.time, events.to_json(event)))
            made = [journal_module._row(number, place, _rollout(rng, number, place)) for place in range(per_round)]
            connection.executemany(f"INSERT INTO rollouts VALUES ({', '.join('?' * 17)})", made)
        connection.execute("RELEASE filling")
    for number in range(0, rounds + 1, max(10, rounds // 200)):
        journal.record(HeldOut(round=number, accuracy=0.5, correct=50, questions=100, low=0.4, high=0.6))
    return journal


def _round(number: int) -> RoundFinished:
    return RoundFinished(
        round=number, reward_own=0.5, reward_external=0.4 if number % 3 else None, groups=8, informative=number % 8,
        own=4, external=4, tokens=4000, seconds_generate=3.0, seconds_update=4.0, statistics=STATISTICS,
    )  # fmt: skip


def _rollout(rng: random.Random, number: int, place: int) -> JournaledRollout:
    answers = tuple(Answer(" ".join(rng.choices(WORDS, k=200)), True) for _ in range(8))
    rollout = Rollout(
        TaskRef("sums", "1", 1, place), f"What is {number} + {place}?", "5", answers, "12D3KooW" + "x" * 44, number,
        1000 * number + place, float(number),
    )  # fmt: skip
    return JournaledRollout(rollout, (1.0, *[0.0] * 7), (1.0, *[-0.1] * 7), own=place % 2 == 0)


def _report(name: str, repeats: int, work: Callable[[], object]) -> None:
    _print(name, [seconds(work) for _ in range(repeats)])


def _print(name: str, taken: list[float]) -> None:
    print(f"| {name} | {1000 * statistics.median(taken):.2f} | {1000 * max(taken):.1f} |", flush=True)
