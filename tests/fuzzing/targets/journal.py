"""A journal that is damaged anywhere is read, or is a StateError that says so.

The bytes change a good journal: three for a position and one for a value, again and again.
"""

from __future__ import annotations

from functools import cache

from sapo_edge.control.journal_view import JournalReader, RolloutQuery, in_full
from sapo_edge.errors import StateError
from sapo_edge.events import Comparison, HeldOut, Notice
from sapo_edge.rollout import Answer, Rollout, TaskRef
from sapo_edge.state.journal import Journal, JournaledRollout
from tests.fakes import round_event
from tests.fuzzing.target import KIB, MIB, Target, directory, read


@cache
def good() -> bytes:
    path = directory() / "good.sqlite"
    path.unlink(missing_ok=True)
    journal = Journal(path)
    answers = (Answer("<answer>4</answer>", True), Answer("", False))
    rollout = Rollout(TaskRef("sums", "0.1.25", 7, 1), "2 + 2 =", "4", answers, "me", 1, 1, 12.5, "ab" * 32)
    rows = [JournaledRollout(rollout, (1.0, 0.0), (0.7, -0.7), own) for own in (True, False)]
    journal.record(round_event(1), rows, {"sequence": 3})
    accuracy = {"accuracy": 0.5, "correct": 5, "questions": 10, "low": 0.2, "high": 0.8, "split": "validation"}
    journal.record(HeldOut(round=1, time=2.0, **accuracy))  # type: ignore[arg-type]
    journal.record(Comparison(round=1, questions=10, base=1, adapter=5, gain=0.4, low=0.1, high=0.6))
    journal.record(Notice(level="info", text="hello"))
    journal.close()
    return path.read_bytes()


def check(data: bytes) -> None:
    """Open it as a node does, and read all of it as a node and its clients do."""
    content = bytearray(good())
    for start in range(0, len(data) - 3, 4):
        content[int.from_bytes(data[start : start + 3], "big") % len(content)] = data[start + 3]
    path = directory() / "journal.sqlite"
    path.write_bytes(content)
    if (journal := read(Journal, path, StateError)) is None:
        return
    try:
        reader = JournalReader(path)
        for view in (
            journal.rounds, journal.held_out, journal.held_out_course, journal.last_comparison, journal.events,
            journal.last_round, lambda: journal.rollouts(1), lambda: journal.used_external(10),
            lambda: journal.best_held_out(("validation", 10, "")), lambda: journal.counter("sequence"),
            lambda: journal.external_since_evaluation("validation"), lambda: reader.history(10),
            lambda: reader.rollouts(RolloutQuery(search="a")), lambda: show(reader),
        ):  # fmt: skip
            try:
                view()
            except StateError:
                continue
    finally:
        journal.close()


def show(reader: JournalReader) -> None:
    rollout = reader.rollout(1, 0)
    if rollout is not None:
        in_full(1, 0, rollout)


def seeds() -> list[bytes]:
    """No change, and each value's text changed somewhere."""
    marks = (b'{"v":1', b"<answer>", b"[1.0", b"[0.7", b"sums", b"validation", b'"event":', b"me")
    places = [good().find(mark) for mark in marks]
    return [b"", *(place.to_bytes(3, "big") + byte for place in places if place >= 0 for byte in (b"\xff", b"x", b"1"))]


TARGET = Target(check, seeds, 4 * 64, MIB, KIB, short=20)
