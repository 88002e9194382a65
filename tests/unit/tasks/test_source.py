"""Task sources: sequences, references and held-out questions."""

from __future__ import annotations

import contextlib
import io
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from decimal import getcontext

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sapo_edge.errors import ManifestError, UnknownTaskError
from sapo_edge.rollout import MAX_INTEGER, Task, TaskRef
from sapo_edge.state.secret import seed_from_secret
from sapo_edge.tasks.allowed import ALLOWED, Integer, Real
from sapo_edge.tasks.held_out import Split
from sapo_edge.tasks.library import library_version
from sapo_edge.tasks.manifest import Manifest, TaskEntry, load_manifest
from sapo_edge.tasks.questions import SPLIT_QUESTIONS
from sapo_edge.tasks.skills import SKILLS
from sapo_edge.tasks.source import JUDGED, TaskSource
from tests.defences.defence import fails_without

STARTER = TaskSource(load_manifest("starter"))
NINE = TaskSource(load_manifest("reasoning-gym-nine"))
each_source = pytest.mark.parametrize("source", [STARTER, NINE], ids=lambda source: source.manifest.name)
SPLITS: tuple[Split, ...] = ("validation", "test")


def one_task(generator: str, **config: object) -> Manifest:
    return Manifest("one", (TaskEntry("task", generator, config),))  # type: ignore[arg-type]


def questions(source: TaskSource, split: Split) -> set[str]:
    return {task.question for task in source.held_out(split, SPLIT_QUESTIONS)}


@each_source
def test_a_sequence_is_a_pure_function_of_seed_and_index_and_a_task_of_its_reference(source: TaskSource) -> None:
    seed, fresh = seed_from_secret(b"n"), TaskSource(source.manifest)
    drawn = [source.draw(seed, index) for index in range(150)]
    assert [fresh.draw(seed, index) for index in reversed(range(150))] == drawn[::-1]
    assert all(source.is_drawn(task.ref) for task in drawn)
    assert {task.ref.entry for task in drawn} == {entry.name for entry in source.manifest.tasks}
    assert [source.regenerate(task.ref) for task in drawn] == drawn
    with pytest.raises(UnknownTaskError, match="another version"):
        source.regenerate(replace(drawn[0].ref, version="0.1.0"))


def test_other_identities_seeds_and_manifests_draw_and_hold_out_other_questions() -> None:
    seeds = (seed_from_secret(b"one"), seed_from_secret(b"two"), 100, 101)
    drawn = [{NINE.draw(seed, index).question for index in range(50)} for seed in seeds]
    assert sum(map(len, drawn)) == len(set.union(*drawn))
    config = dict(STARTER.manifest.tasks[0].config)
    sources = [TaskSource(Manifest(name, (TaskEntry("sums", "chain_sum", config),))) for name in ("a", "b")]
    assert questions(sources[0], "test") != questions(sources[1], "test")


def test_entries_are_drawn_and_held_out_by_weight() -> None:
    entries = (TaskEntry("rare", "gcd", weight=1.0), TaskEntry("common", "lcm", weight=4.0))
    source = TaskSource(Manifest("weights", entries))
    assert 0.16 < Counter(source.draw(3, index).ref.entry for index in range(2000))["rare"] / 2000 < 0.24
    entries = (TaskEntry("rare", "gcd", weight=1.0), TaskEntry("common", "lcm", weight=3.0))
    source = TaskSource(Manifest("weights", entries))
    for split in SPLITS:
        counts = Counter(task.ref.entry for task in source.held_out(split, SPLIT_QUESTIONS))
        assert counts == {"rare": 50, "common": 150}


@settings(max_examples=100, deadline=None)
@given(
    st.one_of(st.text(max_size=20), st.sampled_from([entry.name for entry in NINE.manifest.tasks])),
    st.one_of(st.text(max_size=20), st.just(library_version())),
    st.integers(0, MAX_INTEGER),
    st.integers(0, MAX_INTEGER),
)
@example(NINE.manifest.tasks[0].name, library_version(), 0, 0)
@example("none", library_version(), 0, 0)
def test_a_reference_gives_a_task_or_an_unknown_task_error(entry: str, version: str, seed: int, index: int) -> None:
    ref = TaskRef(entry, version, seed, index)
    try:
        assert NINE.regenerate(ref).ref == ref
    except UnknownTaskError as error:
        assert error.remedy


@each_source
def test_training_never_draws_a_held_out_question_and_continues_at_its_cursor(source: TaskSource) -> None:
    held_out = questions(source, "validation") | questions(source, "test")
    for seed in (1, 2):
        tasks, cursor = source.training_tasks(seed, 0, 300)
        assert len(tasks) == 300 and cursor >= 300
        assert not held_out & {task.question for task in tasks}
        assert not any(source.is_held_out(task.question) for task in tasks)
        first, middle = source.training_tasks(seed, 0, 15)
        second, last = source.training_tasks(seed, middle, 285)
        assert (first + second, last) == (tasks, cursor)


@each_source
def test_held_out_questions_are_the_same_on_all_nodes_and_distinct(source: TaskSource) -> None:
    again = TaskSource(source.manifest)
    for split in SPLITS:
        tasks = source.held_out(split, SPLIT_QUESTIONS)
        assert again.held_out(split, SPLIT_QUESTIONS) == tasks
        assert len(questions(source, split)) == len(source.held_out(split, 1000)) == 200 == len(tasks)
        assert source.held_out(split, 20) == tasks[:20]
        assert all(source.is_held_out(task.question) for task in tasks)
        entries = Counter(task.ref.entry for task in source.held_out(split, 3 * len(source.manifest.tasks)))
        assert set(entries.values()) == {3}, "they are spread over the entries"
    assert not questions(source, "validation") & questions(source, "test")


def test_a_set_has_a_mark_of_its_questions_and_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    mark = STARTER.question_set("validation", 20)
    assert mark == TaskSource(STARTER.manifest).question_set("validation", 20)
    assert mark.startswith(f"{JUDGED}-{library_version()}-")
    others = [STARTER.question_set("validation", 19), STARTER.question_set("test", 20)]
    monkeypatch.setattr("sapo_edge.tasks.source.library_version", lambda: "9.9")
    assert len({mark, *others, STARTER.question_set("validation", 20)}) == 4


@pytest.mark.parametrize(("high", "distinct"), [(2, 4), (3, 9), (6, 36)])
def test_of_a_tiny_question_space_at_most_a_third_is_held_out(high: int, distinct: int) -> None:
    source = TaskSource(one_task("gcd", max_value=high))
    held_out = [questions(source, split) for split in SPLITS]
    assert len(held_out[0]) >= 1 and len(held_out[0] | held_out[1]) <= distinct // 3
    tasks, _ = source.training_tasks(1, 0, 100)
    assert not any(source.is_held_out(task.question) for task in tasks)


def test_a_manifest_without_enough_questions_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    source = TaskSource(one_task("gcd", max_value=2))
    monkeypatch.setattr(source, "is_held_out", lambda question: True)
    with pytest.raises(ManifestError, match=r"almost no questions.*; .*widen"):
        source.training_tasks(1, 0, 1)

    def fail(*_: object) -> None:
        raise ValueError("no")

    monkeypatch.setattr("sapo_edge.tasks.source.generate", fail)
    with pytest.raises(ManifestError, match="task task generates no questions"):
        TaskSource(one_task("gcd")).held_out("test", 1)


@fails_without(
    "tasks/source.py",
    "except ValueError as error:\n        raise UnknownTaskError(",
    "except ZeroDivisionError as error:\n        raise UnknownTaskError(",
)
@pytest.mark.parametrize(
    ("failures", "length", "message"), [(7, 16_384, ""), (8, 1, "can't be generated"), (0, 16_385, "is not valid")]
)
def test_a_task_that_cannot_be_made_is_unknown(
    failures: int, length: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [failures]

    def generate(*_: object) -> Mapping[str, str]:
        left[0] -= 1
        if left[0] >= 0:
            raise ZeroDivisionError
        return {"question": "x" * length, "answer": "1"}

    monkeypatch.setattr("sapo_edge.tasks.source.generate", generate)
    error = ""
    try:
        TaskSource(one_task("gcd")).draw(1, 0)
    except UnknownTaskError as caught:
        error = str(caught)
    assert message in error and bool(message) == bool(error)


def corner(generator: str, corner: str) -> Manifest:
    """The manifest with all numbers of a generator at one end of their bounds, minimum below maximum."""
    bounds = ALLOWED[generator]
    config: dict[str, object] = {}
    for key, bound in bounds.items():
        if isinstance(bound, Integer | Real) and corner != "default":
            gap = type(bound.low)(1) if key[4:] in ("base", "value") else type(bound.low)(0)
            lowest = bound.low + (gap if key.startswith("max_") else 0)
            highest = bound.high - (gap if key.startswith("min_") else 0)
            config[key] = lowest if corner == "low" else highest
    return one_task(generator, **config)


@pytest.mark.parametrize("where", ["low", "default", "high"])
@pytest.mark.parametrize("generator", sorted(ALLOWED))
def test_every_generator_is_cheap_at_the_ends_of_its_bounds(generator: str, where: str) -> None:
    source = TaskSource(corner(generator, where))
    source.draw(0, 0)
    start = time.process_time()
    tasks = [source.draw(1, index) for index in range(30)]
    assert time.process_time() - start < 5
    assert all(isinstance(task, Task) for task in tasks)


@pytest.mark.parametrize("generator", sorted(set(ALLOWED) - set(SKILLS)))
def test_the_recorded_defaults_are_the_librarys(generator: str) -> None:
    import reasoning_gym.factory

    config = reasoning_gym.factory.DATASETS[generator][1]()
    for key, bound in ALLOWED[generator].items():
        actual = getattr(config, key)
        assert (tuple(actual) if isinstance(bound.default, tuple) else actual) == bound.default


def test_a_division_that_would_take_hours_is_an_error() -> None:
    import reasoning_gym.arithmetic.basic_arithmetic as library

    TaskSource(one_task("basic_arithmetic")).draw(0, 0)
    with pytest.raises(OverflowError):
        library.find_common_divisors(10**20, 0)
    assert library.find_common_divisors(12, 0) == [1, 12, 2, 6, 3, 4]


@pytest.mark.parametrize("operators", [["+"], ["-", "+"], ["*"]])
def test_without_parentheses_are_the_operators_that_the_library_reckons_right(operators: list[str]) -> None:
    source = TaskSource(one_task("basic_arithmetic", allow_parentheses=False, operators=operators))
    for index in range(40):
        task = source.draw(1, index)
        assert isinstance(task, Task)
        assert eval(task.question.removeprefix("Calculate ").removesuffix(".")) == int(task.ground_truth)


def test_generating_tasks_prints_nothing_and_keeps_the_decimal_context() -> None:
    precision = getcontext().prec
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for index in range(60):
            NINE.score(NINE.draw(4, index), "<answer>1</answer>")
    assert printed.getvalue() == "" and getcontext().prec == precision
