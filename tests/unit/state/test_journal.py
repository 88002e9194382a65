"""The journal: what is kept, dropped and refused."""

import contextlib
import math
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from sapo_edge import events
from sapo_edge.control.journal_view import JournalReader, RolloutQuery
from sapo_edge.errors import StateError
from sapo_edge.rollout import Answer, Rollout, TaskRef
from sapo_edge.state import journal as journal_module
from sapo_edge.state.detail import Detail
from sapo_edge.state.journal import Journal, JournaledRollout
from tests.fakes import round_event
from tests.unflushed import flushing_connect


def finished(round: int, loss: float = 0.5) -> events.RoundFinished:
    return round_event(round, statistics={"loss": loss})


def scored(sequence: int = 1) -> JournaledRollout:
    answers = (Answer("4\x00é\n", True, (1, 2), (-0.1, -0.2)), Answer("", False))
    rollout = Rollout(TaskRef("sum", "0.1", 2**63 - 1, 7), "2 + 2?", "4", answers, "me", 3, sequence, 12.5)
    return JournaledRollout(rollout, (1.0, 0.0), (0.7, -0.7))


def held_out(
    round: int, accuracy: float = 0.5, split: str = "validation", questions: int = 10, question_set: str = "new"
) -> events.HeldOut:
    return events.HeldOut(
        round=round, accuracy=accuracy, correct=5, questions=questions, low=0.2, high=0.8, split=split,
        time=round + 0.5, question_set=question_set,
    )  # fmt: skip


def compared(round: int) -> events.Comparison:
    return events.Comparison(round=round, questions=10, base=1, adapter=5, gain=0.4, low=0.1, high=0.6)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal" / "journal.sqlite")


def test_a_round_is_stored_with_its_rollouts_as_text_and_figures_that_are_none(journal: Journal) -> None:
    journal.record(event := finished(3), [scored(1), replace(scored(2), own=False)])
    assert journal.rounds() == [event] and journal.last_round() == 3
    first, second = journal.rollouts(3)
    assert first == JournaledRollout(scored(1).rollout.as_text(), (1.0, 0.0), (0.7, -0.7))
    assert (second.rollout.sequence, second.own) == (2, False)
    # A repeated round replaces the earlier one.
    journal.record(finished(3, loss=math.nan), [scored(3)])
    journal.record(held_out(3, math.nan))
    ((again,), (evaluation,)) = journal.rounds(), journal.held_out()
    assert math.isnan(again.statistics["loss"]) and math.isnan(evaluation.accuracy)
    assert [item.rollout.sequence for item in journal.rollouts(3)] == [3]


def test_the_newest_rounds_come_in_order_and_only_evaluations_on_the_same_questions_are_a_course(
    journal: Journal,
) -> None:
    assert journal.held_out_course() is None
    for round in range(1, 11):
        journal.record(finished(round))
    assert [event.round for event in journal.rounds(3)] == [8, 9, 10]
    for evaluation in (held_out(0, split=""), held_out(10, split=""), held_out(10, 0.7), held_out(20, 0.8)):
        journal.record(evaluation)
    assert [event.round for event in journal.held_out(2)] == [10, 20]
    assert journal.held_out_course() == (held_out(10, 0.7), held_out(20, 0.8))
    assert journal.held_out_after(10, "validation") == held_out(10, 0.7)
    assert journal.held_out_after(0, "validation") is None
    journal.record(held_out(30, 0.9, questions=5))
    assert journal.held_out_course() == (held_out(30, 0.9, questions=5),) * 2
    for round in (40, 50):
        journal.record(held_out(round, 0.7, questions=5, question_set="of another library"))
    first, last = journal.held_out_course() or (None, None)
    assert first is not None and last is not None and (first.round, last.round) == (40, 50)
    assert len(journal.held_out()) == 7, "earlier ones stay readable"


def test_the_last_comparison_is_found(journal: Journal) -> None:
    assert journal.last_comparison() is None
    for round in (10, 20):
        journal.record(compared(round))
        journal.record(events.Notice(level="info", text="comparison"))
    last = journal.last_comparison()
    assert last is not None and last.round == 20
    journal.truncate_after(15)
    last = journal.last_comparison()
    assert last is not None and last.round == 10


def test_external_rollouts_and_their_tasks_are_known_after_a_restart(journal: Journal) -> None:
    signed = replace(scored(2), rollout=replace(scored(2).rollout, digest="ab" * 32), own=False)
    unsigned = replace(scored(3), own=False)
    journal.record(finished(1), [scored(1), signed, unsigned])
    journal.close()
    again = Journal(journal.path)
    used = [(item.rollout.author, item.rollout.ref) for item in (signed, unsigned)]
    assert again.used_external(10) == [("ab" * 32, *used[0]), (unsigned.rollout.id, *used[1])]
    assert again.used_external(1) == [(unsigned.rollout.id, *used[1])]
    kept = [item.rollout.as_text().id for item in (scored(1), signed, unsigned)]
    assert [item.rollout.id for item in again.rollouts(1)] == kept


def test_a_commit_is_flushed_to_disk_while_a_reader_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "connect", flushing_connect)
    journal = Journal(tmp_path / "journal.sqlite")
    # Where commits are not flushed, the write-ahead log is when it is copied into the file: not while it is read.
    assert journal._rows("PRAGMA synchronous", ()) == [(2,)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(journal.record, map(finished, range(8))))
    assert len(journal.rounds()) == 8
    assert (journal.reserve_sequences(8), journal.reserve_sequences(1)) == (1, 9)
    journal.truncate_after(-1)
    journal.close()
    assert Journal(journal.path).reserve_sequences(2) == 10


def test_rollouts_and_other_events_are_bounded_and_rounds_and_what_a_run_is_made_with_stay(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "KEEP_ROLLOUTS", 2)
    monkeypatch.setattr(journal_module, "KEEP_EVENTS", 3)
    for round in range(1, 6):
        journal.record(finished(round), [scored()])
    assert [round for round in range(1, 6) if journal.rollouts(round)] == [4, 5] and len(journal.rounds()) == 5
    journal.record(events.Progress(phase="generate", done=1, total=2, unit="answers"))
    first, second = (events.NodeStarted(model=name, backend="b") for name in ("old", "new"))
    for start in (first, second):
        journal.record(start)
        for number in range(9):
            journal.record(events.CheckpointSaved(round=number, path="p", best=False))
    assert len(journal.events()) == 4 and journal.events()[0] == second
    journal.record(stopped := events.NodeStopped(reason="asked", rounds=2))
    assert journal.events()[-1] == stopped


def test_a_failed_round_leaves_nothing_behind(journal: Journal) -> None:
    with pytest.raises(AttributeError):
        journal.record(finished(1), [scored(), object()])  # type: ignore[list-item]
    assert journal.rounds() == []
    journal.record(finished(2))


def test_a_damaged_journal_is_reported_and_a_large_one_checked_only_after_a_crash(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    for round in range(300):
        journal.record(finished(round), [scored()])
    journal.close()
    with journal.path.open("r+b") as file:
        # Behind the first pages, which opening reads in any case.
        file.seek(16 * 4096)
        file.write(b"\xff" * (journal.path.stat().st_size - 16 * 4096))
    with pytest.raises(StateError, match=r"damaged.*rename"):
        Journal(journal.path)
    monkeypatch.setattr(journal_module, "CHECKED_BYTES", 1000)
    opened = Journal(journal.path)
    with pytest.raises(StateError, match=r"damaged.*rename"):
        [opened.rollouts(round) for round in range(300)]
    opened.close()
    journal.path.with_name("journal.sqlite-wal").touch()
    with pytest.raises(StateError, match=r"damaged.*rename"):
        Journal(journal.path)


@pytest.mark.parametrize("version", [0, journal_module.SCHEMA_VERSION + 1])
def test_a_journal_of_another_version_is_left_alone(journal: Journal, version: int) -> None:
    journal._rows(f"PRAGMA user_version = {version}", ())
    journal.close()
    with pytest.raises(StateError, match="newer or an unknown sapo-edge; update sapo-edge"):
        Journal(journal.path)


def test_details_of_the_first_the_best_and_the_last_evaluation_are_kept(journal: Journal) -> None:
    def rounds(split: str = "validation") -> list[int]:
        query = f"SELECT round FROM details WHERE split = '{split}' ORDER BY round"
        return [round for (round,) in journal._rows(query, ())]

    for round, accuracy in enumerate((0.1, 0.4, 0.9, 0.3, 0.2)):
        journal.record(replace(held_out(round), accuracy=accuracy))
        journal.record_detail("validation", round, Detail({"sums": "0" * round}))
    journal.record_detail("test", 0, Detail())
    assert rounds() == [0, 2, 4]
    journal.truncate_after(3)
    assert rounds() == [0, 2]
    for round, accuracy in enumerate((0.1, 0.2, 0.4, 0.3, 0.2), start=4):
        journal.record(replace(held_out(round, question_set="other"), accuracy=accuracy))
        journal.record_detail("validation", round, Detail())
    assert rounds("test") == [0] and rounds() == [0, 4, 6, 8], "the first and best on these questions"


def test_the_best_evaluation_is_the_earliest_with_its_answers(journal: Journal) -> None:
    asked = held_out(1).asked
    assert journal.best_held_out(asked) == (0, None)
    first, second = (replace(held_out(round), answers="1" * 5 + "0" * 5) for round in (2, 3))
    other = replace(first, round=7, correct=9, question_set="other")
    for event in (second, first, other, held_out(4, questions=9), replace(held_out(5, split="test"), answers="1")):
        journal.record(event)
    assert journal.best_held_out(asked) == (2, first)
    journal.record(better := replace(held_out(6), correct=6, answers="1" * 6 + "0" * 4))
    assert journal.best_held_out(asked) == (3, better)


def test_external_rollouts_are_counted_since_the_last_evaluation(journal: Journal) -> None:
    assert journal.external_since_evaluation("validation") == 0
    for round, external in ((1, 4), (2, 2), (3, 0)):
        journal.record(round_event(round, external=external))
    assert journal.external_since_evaluation("validation") == 4
    journal.record(held_out(1))
    assert journal.external_since_evaluation("validation") == 2
    journal.record(held_out(2))
    assert journal.external_since_evaluation("validation") == 0


def test_a_return_deletes_later_rounds_once(journal: Journal) -> None:
    journal.record(notice := events.Notice(level="info", text="hello"))
    journal._rows("INSERT INTO events (time, event) VALUES (1, ?)", ('{"v":1,"event":"of_a_newer_version"}',))
    for round in (1, 2, 3):
        journal.record(finished(round), [scored(round)])
        journal.record(held_out(round))
    event = events.RolledBack(from_round=3, to_round=1)
    journal.roll_back(event, {"cursor": 7})
    journal.record(finished(2))
    journal.roll_back(event, {"cursor": 7})
    assert [item.round for item in journal.rounds()] == [1, 2] and [item.round for item in journal.held_out()] == [1]
    assert journal.events() == [notice, event] and journal.counter("cursor") == 7
    assert journal.rollouts(1) and journal.rollouts(3) == [] and journal.truncate_after(1) == 1


@pytest.mark.parametrize("content", [b"this is no database" * 100, b"\x00" * 5000, b""])
def test_a_file_that_is_no_journal_is_rejected(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "journal.sqlite"
    path.write_bytes(content)
    if not content:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE other (x)")
    with pytest.raises(StateError, match="damaged" if content else "another program's database"):
        Journal(path)


def test_a_damaged_name_that_is_not_text_is_reported_as_damage(journal: Journal) -> None:
    journal.close()
    content = journal.path.read_bytes()
    damaged = content.replace(b"tableroundsrounds", b"table\xffoundsrounds").replace(b"TABLE rounds", b"TABLX rounds")
    assert damaged != content
    journal.path.write_bytes(damaged)
    # SQLite quotes the name, and Python can't decode the message.
    with pytest.raises(StateError, match="is damaged"):
        Journal(journal.path)


@pytest.mark.parametrize(("change", "read"), [
    ("rounds SET event = '{\"v\":'", lambda journal: journal.rounds()),
    ("rounds SET event = 7", lambda journal: journal.rounds()),
    ("events SET event = 'x'", lambda journal: journal.events()),
    ("held_out SET accuracy = 'high'", lambda journal: journal.held_out()),
    ("rollouts SET rewards = '[1.0'", lambda journal: journal.rollouts(1)),
    ("rollouts SET answers = '7'", lambda journal: JournalReader(journal.path).rollout(1, 0)),
    ("rollouts SET answers = ']['", lambda journal: JournalReader(journal.path).rollouts(RolloutQuery(search="a"))),
    ("rollouts SET rewards = '[]'", lambda journal: JournalReader(journal.path).rollouts(RolloutQuery())),
    ("rollouts SET seed = -1, own = 0, digest = 'ab'", lambda journal: journal.used_external(10)),
    ("counters SET value = 'x'", lambda journal: journal.counter("sequence")),
])  # fmt: skip
def test_a_damaged_row_is_reported_as_damage(journal: Journal, change: str, read: Callable[[Journal], object]) -> None:
    # To SQLite, a text with changed bytes is a text.
    journal.record(finished(1), [scored()], {"sequence": 1})
    journal.record(held_out(1))
    journal.record(compared(1))
    read(journal)
    journal._rows(f"UPDATE {change}", ())
    with pytest.raises(StateError, match=r"is damaged.*; .*rename"):
        read(journal)


def test_a_full_disk_is_reported_and_the_journal_stays_usable(journal: Journal) -> None:
    journal.record(finished(1))
    pages = journal._rows("PRAGMA page_count", ())[0][0]
    journal._rows(f"PRAGMA max_page_count = {pages}", ())
    with pytest.raises(StateError, match="free some space"):
        for round in range(2, 500):
            journal.record(finished(round), [scored()])
    journal._rows("PRAGMA max_page_count = 100000", ())
    last = journal.last_round()
    assert last is not None
    journal.record(finished(last + 1))


def test_rewards_must_fit_the_answers() -> None:
    with pytest.raises(ValueError, match="1 rewards for 2 answers"):
        JournaledRollout(scored().rollout, (1.0,), (0.0, 0.0))
    with pytest.raises(ValueError, match="finite"):
        JournaledRollout(scored().rollout, (1.0, math.nan), (0.0, 0.0))
