"""How an answer is read out of a completion: one answer for a text, whatever the text says around it."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sapo_edge.events import FORMED, OTHERWISE, WRONG
from sapo_edge.tasks.checks import Check, Choice, Exact, Number, Set
from sapo_edge.tasks.manifest import Manifest, TaskEntry, load_manifest
from sapo_edge.tasks.questions import OwnQuestion
from sapo_edge.tasks.readings import FIT, MAX_ANSWER_CHARACTERS, READINGS, read
from sapo_edge.tasks.source import TaskSource
from tests.defences.defence import fails_without


@fails_without("tasks/readings.py", "_tail(said) if", "_tail(completion) if")
@pytest.mark.parametrize(("text", "number"), [
    ("7 + 9 = 16", "16"), ("The answer is 1,234.50.", "1234.5"), ("10-4", "4"), ("It is -5", "-5"), ("(3)-4", "4"),
    ("+7", "7"), ("16.0", "16"), ("6e23 atoms", "6e23"), ("1 2 3 4 5 6 7 8 9 10", "10"),
    ("<answer>the sum is 7</answer> or 9", "7"), ("<answer>5", "5"), ("5</answer> or 9", "5"), ("4 or \u0663", "4"),
    ("12, 13", "13"), ("\u221216", "-16"), ("about .5", ".5"), ("from -.0 to .0", "0"),
])  # fmt: skip
def test_the_last_number_counts(text: str, number: str) -> None:
    assert read("number", text) == (number,)


@fails_without("tasks/readings.py", "if tagged is None and closed and OPEN_TAG in said:")
@pytest.mark.parametrize(("text", "answers"), [
    ("Paris", ("Paris",)),
    ("Let me see.\nThe answer is Paris.", ("The answer is Paris.", "Paris", "Let me see.\nThe answer is Paris.")),
    ("It must be **Paris**!", ("It must be **Paris**!", "Paris")),
    ('She said "Paris".', ('She said "Paris".', "Paris")),
    ("```\nParis\n```", ("Paris", "```\nParis\n```")),
    ("Answer: 4 apples", ("Answer: 4 apples", "4 apples")),
    ("<answer>Paris</answer> and more", ("Paris",)),
    ("<answer>Paris", ("Paris",)),
    pytest.param("<answer>" + "x" * 5000 + "</answer>", (), id="too long"),
    ("", ()),
])  # fmt: skip
def test_the_last_line_counts_or_what_it_marks(text: str, answers: tuple[str, ...]) -> None:
    assert read("line", text) == answers


def test_an_answer_of_several_lines_is_the_last_so_many_and_a_fraction_no_number() -> None:
    assert read("number", "16/2") == () and read("number", "16/2 = 8") == ("8",)
    assert read("number", "16 / 4") == read("number", "16 /\n 4") == () and read("number", "16 / 4 = 4.") == ("4",)
    assert read("line", "Here you are:\n\n1 2\n3 4\n", lines=2)[0] == "1 2\n3 4"
    code = "def f():\n    return 1"
    assert code in read("line", code, lines=2), "an answer with indentation can be right"


@pytest.mark.parametrize("code", ["if x:\n    y()\nelse:\n    z()", "def f():\n\n    return 1"])
@pytest.mark.parametrize("text", ["```python\n{}\n```", "Sure:\n{}", "Sure:\n\n```\n{}\n\n```\n", "  {}  "])
def test_lines_may_be_indented_in_a_fence_or_below_a_sentence(text: str, code: str) -> None:
    own = OwnQuestion("Write it.", code, Exact(), "train")
    assert judged(own, text.format(code)) and not judged(own, text.format(code.replace("    ", "  ")))


@pytest.mark.parametrize(("text", "found"), [
    ('{"a": 1}', '{"a": 1}'),
    ('Sure:\n```json\n{"a": {"b": "}"}}\n```\nDone.', '{"a": {"b": "}"}}'),
    ('{"a": 1} or {"a": 2}', '{"a": 2}'),
    ('{"a": "\\""}', '{"a": "\\""}'),
    ('<answer>{"a": 3}</answer>', '{"a": 3}'),
    ('5" of {"a": 3}', '{"a": 3}'),
    ('{"it\n} or {"a": 3}', '{"a": 3}'),
    ('In the set {1, 2: {"a": 3}', '{"a": 3}'),
    ('```json\n{"a": {"b": 1}\n```\nAgain:\n```json\n{"a": {"b": 2}}\n```', '{"a": {"b": 2}}'),
    ('{"a": 1} or {{"a": {"b": 2}, "c": 3}', '{"a": {"b": 2}, "c": 3}'),
])  # fmt: skip
def test_the_last_object_counts(text: str, found: str) -> None:
    assert read("json", text) == (found,)
    assert read("json", text.replace("}", "")) == ()


@fails_without("tasks/readings.py", "completion[-MAX_ANSWER_CHARACTERS:]", "completion")
@fails_without("tasks/readings.py", '.encode("utf-8", "surrogatepass").decode("utf-8", "replace")')
@fails_without("tasks/readings.py", '.replace("\\0", "\\N{REPLACEMENT CHARACTER}")')
@given(st.text(), st.sampled_from(READINGS))
@example("x" * 9000, "line")
@example("1" * 9000, "number")
@example("-.0", "number")
@example("\ud800", "line")
@example("\0", "line")
def test_no_text_gives_more_than_four_answers_of_bounded_length(text: str, reading: str) -> None:
    answers = read(reading, text, question="What is it?")
    assert len(answers) <= 4
    assert all(len(answer) <= MAX_ANSWER_CHARACTERS and "\0" not in answer for answer in answers)
    assert all(answer.encode() for answer in answers)


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize(
    "piece", ["1", "1,", "1,111", "-", "{", '{"', "}", "\\", "**", "`a", '"', "\u201c", "answer ", "answer is", "=",
     " ", "\n", "<answer>", "1e", ".", " is ", "a is "],
)  # fmt: skip
def test_reading_takes_time_linear_in_the_text(reading: str, piece: str) -> None:
    begin = time.process_time()
    for _ in range(20):
        read(reading, piece * (8192 // len(piece)), question=piece * 100)
    # A quadratic way through 4096 characters takes ten times as long.
    assert time.process_time() - begin < 1.0


def test_each_question_is_read_as_fits_its_check() -> None:
    questions = (
        OwnQuestion("2 + 2?", "4", Number(), "train"),
        OwnQuestion("Capital of France?", "Paris", Exact(), "train"),
        OwnQuestion("Which? A or B", "B", Choice(("A", "B")), "train"),
    )
    source = TaskSource(Manifest("own", (TaskEntry("mine", questions=questions, reading=FIT),)))
    tasks = {task.question: task for task in source.training_tasks(1, 0, 3)[0]}
    assert source.judge(tasks["2 + 2?"], "2 and 2 make 4.") == OTHERWISE
    assert source.judge(tasks["2 + 2?"], "4") == FORMED
    assert source.judge(tasks["Capital of France?"], "It is **Paris**.") == OTHERWISE
    assert source.judge(tasks["Capital of France?"], "Paris or Rome") == WRONG
    assert source.judge(tasks["Which? A or B"], "The answer is (b).") == OTHERWISE


CAPITAL = "What is the capital of France?"


@fails_without(
    "tasks/readings.py", "return new[0] if len(new) == 1 else sentence", "return new[0] if new else sentence"
)
@pytest.mark.parametrize(("question", "answer", "text", "right"), [
    (CAPITAL, "Paris", "Paris is the capital of France.", True),
    (CAPITAL, "Paris", "The capital of France is Paris.", True),
    (CAPITAL, "Paris", "I know it.\nIt is Paris", True),
    (CAPITAL, "The capital is Paris", "The capital is Paris.", True),
    (CAPITAL, "Paris", "Paris is Rome", False),
    (CAPITAL, "Rome", "Paris is Rome", False),
    (CAPITAL, "Paris", "Paris Rome Berlin is the capital of France", False),
    (CAPITAL, "Paris", "Paris is the capital of France, Rome is the capital of France", False),
    ("Is it A or B?", "A", "A is B", False),
    ("Which is larger, A or B?", "B", "B is larger", False),
])  # fmt: skip
def test_a_sentence_gives_what_the_question_did_not_say(question: str, answer: str, text: str, right: bool) -> None:
    assert judged(OwnQuestion(question, answer, Exact(fold=True), "train"), text) == right


LAW, MIXTURE, WHICH = "What is Newton's second law?", "What is salt in water?", "Which is it, Paris or Rome?"
ONE_OF_TWO = Choice(("Paris", "Rome"))


@pytest.mark.parametrize(("question", "answer", "check", "text", "right"), [
    (CAPITAL, "Paris", Exact(), "Paris is the answer.", True),
    (CAPITAL, "Paris", Exact(), "The answer to your question is Paris.", True),
    (CAPITAL, "Paris", Exact(), "The answer is: Paris.", True),
    (CAPITAL, "Paris", Exact(), "**Answer:** Paris", True),
    (CAPITAL, "Paris", Exact(), "The **final answer**: Paris.", True),
    (CAPITAL, "Paris", Exact(), "**Paris**: it lies on the Seine.", True),
    (WHICH, "Paris", ONE_OF_TWO, "**Answer:** Paris **Rome**", False),
    (CAPITAL, "Paris", Exact(), "Paris =", False),
    (MIXTURE, "saline solution", Exact(fold=True), "Saline solution.", True),
    (LAW, "F = ma", Exact(), "F = ma.", True),
    (LAW, "F = ma", Exact(), "The law is F = ma.", True),
    (LAW, "ma", Exact(), "The law is F = ma.", True),
    (WHICH, "Paris", ONE_OF_TWO, "Paris is the answer.", True),
    (WHICH, "Rome", ONE_OF_TWO, "Paris is the answer.", False),
    (WHICH, "Paris", ONE_OF_TWO, "Paris, Rome is the answer.", False),
    (WHICH, "Paris", ONE_OF_TWO, "Paris is the answer, the answer is Rome.", False),
])  # fmt: skip
def test_a_word_leads_to_an_answer_only_if_one_stands_behind_it(
    question: str, answer: str, check: Check, text: str, right: bool
) -> None:
    assert judged(OwnQuestion(question, answer, check, "train"), text) == right


@pytest.mark.parametrize("question", [CAPITAL, WHICH, "Is Paris the answer?"])
@given(text=st.lists(st.sampled_from(["Paris", "Rome", "is", "the answer", "the answer is", "it", ":", "=", "."])))
def test_no_text_gives_two_answers_by_words_that_lead_to_one(question: str, text: list[str]) -> None:
    answers = read("line", " ".join(text), question=question)
    assert sum(any(ONE_OF_TWO.score(city, answer) for answer in answers) for city in ONE_OF_TWO.choices) <= 1


def test_a_set_may_stand_in_a_sentence() -> None:
    colours = OwnQuestion("Name the primary colours.", "red, blue, yellow", Set(), "train")
    for text in ("Red, blue and yellow.", "The primary colours are yellow, red, and blue.", "blue, red, yellow"):
        assert judged(colours, text), text
    everything = "red, blue, yellow, green and black"
    assert not judged(colours, everything) and not judged(colours, f"The primary colours are {everything}.")
    bread = OwnQuestion("What is on the list?", "bread and butter, jam", Set(), "train")
    assert judged(bread, "jam, bread and butter") and not judged(bread, "jam, bread, butter")


@given(
    st.lists(st.sampled_from(["Paris", "Rome", "is", "the capital of France", "it", ",", ".", "\n", '"', "**", "="]))
)
def test_no_text_gives_two_answers(words: list[str]) -> None:
    both = (OwnQuestion(CAPITAL, city, Exact(fold=True), "train") for city in ("Paris", "Rome"))
    assert sum(judged(question, " ".join(words)) for question in both) <= 1


def judged(question: OwnQuestion, text: str) -> bool:
    source = TaskSource(Manifest("own", (TaskEntry("mine", questions=(question,), reading=FIT),)))
    (task,) = source.own_tasks()
    return source.judge(task, text) != WRONG


def test_rewards_of_tags_are_those_of_the_paper_and_content_is_counted_beside_them() -> None:
    source = TaskSource(load_manifest("arithmetic"))
    (task,), _ = source.training_tasks(3, 0, 1)
    right = task.ground_truth
    assert source.score(task, f"<answer>{right}</answer>") == 1.0
    assert source.score(task, f"It is {right}") == 0.0
    assert source.judge(task, f"It is {right}") == OTHERWISE
    assert source.judge(task, f"<answer>{right}</answer>") == FORMED
    assert source.judge(task, f"<answer>{right}0</answer> no, {right}") == WRONG, "what stands in tags was said"
    entry = TaskEntry("sums", "chain_sum", {"max_terms": 2}, reading="number", form=0.25)
    source = TaskSource(Manifest("form", (entry,)))
    (task,), _ = source.training_tasks(3, 0, 1)
    scores = [source.score(task, text) for text in (task.ground_truth, f"It is {task.ground_truth}", "It is 123456")]
    assert scores == [1.0, 0.75, 0.0]
    tagged = TaskSource(Manifest("form", (TaskEntry("sums", "chain_sum", reading="tags", form=0.25),)))
    (task,), _ = tagged.training_tasks(3, 0, 1)
    assert tagged.score(task, f"<answer>{task.ground_truth}</answer>") == 1.0, "tags are the form that is asked for"


@pytest.mark.parametrize("answer", ["1,000", "1000.0", "+1000", "1e3"])
def test_a_number_alone_is_bare_however_it_is_written(answer: str) -> None:
    own = OwnQuestion("10 * 100?", answer, Number(), "train")
    source = TaskSource(Manifest("form", (TaskEntry("mine", questions=(own,), reading="fit", form=0.25),)))
    (task,), _ = source.training_tasks(3, 0, 1)
    assert source.right_answer(task) == answer and source.judge(task, answer) == FORMED
    assert [source.score(task, text) for text in ("1000", "10 * 100 = 1000", "10 1000")] == [1.0, 0.75, 0.75]


def test_a_persons_answer_is_shared_in_the_form_that_is_asked_for() -> None:
    for name, shared in (("starter", "7"), ("arithmetic", "<answer>7</answer>")):
        source = TaskSource(load_manifest(name))
        (task,), _ = source.training_tasks(3, 0, 1)
        assert source.as_asked(task, "<answer>7</answer>") == shared
        assert source.as_asked(task, "seven") == "seven"
