"""The skill `home`: the same tasks everywhere, held-out words and names, and one call for each request."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import time
from importlib import resources
from itertools import pairwise
from typing import Any

import pytest

from sapo_edge.errors import ManifestError, UnknownTaskError
from sapo_edge.rollout import TaskRef
from sapo_edge.tasks.library import generator_version
from sapo_edge.tasks.manifest import Manifest, TaskEntry, load_manifest
from sapo_edge.tasks.skills import Part
from sapo_edge.tasks.skills.home import LANGUAGES, Home, version
from sapo_edge.tasks.source import TaskSource

DIGESTS = {
    "en": "3fb526dffb29ce354fd62214d36b6f28e96e3dccffa9ad7d819cbe7128bb57af",
    "de": "9326b41a5e567cc37f66517b8abe1cbb74d96f3a1af037d2b9f0e48a4fa8c694",
    "fr": "ffb06fcc140906c1d392c594b1b03198a9eeba6859a01c72d0de62090163aa92",
    "es": "7e156e66fda642064aa2f07a603710a0909e48625f89d0e241a92a6fae3e7b7e",
    "pt": "0bf0173b6b1a00da5ae9c0be76725f6bd2e91c8950cab8159ec4d3098fc571c9",
}
"""Of 50 tasks of each part. Renew them after a deliberate change, which is also a new `version`."""
VERSION = "home-445eb2a31121"
PARTS: tuple[Part, ...] = ("train", "validation", "test")
SOURCE = TaskSource(load_manifest("home"))


def data(code: str) -> dict[str, Any]:
    file = resources.files("sapo_edge.tasks.skills").joinpath("data", f"{code}.json")
    content: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return content


def bare(sentence: str) -> str:
    """A sentence without what its slots agree with."""
    return re.sub(r"\{(\w+)=\w+/[^}]*\}", r"{\1}", sentence)


@pytest.mark.parametrize("code", LANGUAGES)
def test_tasks_are_the_same_on_every_system_and_version_of_python(code: str) -> None:
    home = Home((code,))
    made = [home.generate(seed, part) for part in PARTS for seed in range(50)]
    text = json.dumps([(task["question"], task["answer"]) for task in made])
    assert hashlib.sha256(text.encode()).hexdigest() == DIGESTS[code]


def test_the_version_names_data_and_code() -> None:
    assert version() == generator_version("home") == VERSION


@pytest.mark.parametrize("code", LANGUAGES)
def test_parts_share_no_sentence_and_no_name(code: str) -> None:
    content = data(code)
    sentences: list[set[str]] = [set(), set(), set()]
    for _, part, _, _, texts in content["templates"]:
        sentences[part] |= set(map(bare, texts))
    names = [{name for kind in content["names"].values() for _, name in kind[part]} for part in range(3)]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert not sentences[one] & sentences[other]
        assert not names[one] & names[other]
    intents = [{row[0] for row in content["templates"] if row[1] == part} for part in range(3)]
    assert intents[1] | intents[2] <= intents[0]
    assert len(intents[2]) >= len(intents[0]) / 2


@pytest.mark.parametrize("code", LANGUAGES)
def test_no_request_has_two_answers(code: str) -> None:
    home, answers = Home((code,)), dict[str, str]()
    for seed in range(5000):
        task = home.generate(seed, PARTS[seed % 3])
        assert (
            answers.setdefault(task["question"].lower().rstrip(".!?"), task["answer"].lower()) == task["answer"].lower()
        )


def test_every_answer_is_right_for_its_own_request_alone() -> None:
    tasks = [*SOURCE.training_tasks(3, 0, 200)[0], *SOURCE.held_out("test", 200), *SOURCE.held_out("validation", 200)]
    assert len({task.question for task in tasks[200:]}) == 400
    for task, other in pairwise(tasks):
        assert SOURCE.score(task, f"<answer>{task.ground_truth}</answer>") == 1.0
        reordered = json.dumps(dict(reversed(json.loads(task.ground_truth).items())), indent=1)
        assert SOURCE.score(task, f"<answer>{reordered}</answer>") == 1.0
        same = task.ground_truth == other.ground_truth
        assert SOURCE.score(task, f"<answer>{other.ground_truth}</answer>") == float(same)
    assert SOURCE.verifier_errors == 0


def test_partial_credit_counts_the_fields() -> None:
    source = TaskSource(Manifest("one", (TaskEntry("home", "home", partial_credit=True),)))
    task = next(task for task in source.training_tasks(1, 0, 200)[0] if len(json.loads(task.ground_truth)) == 3)
    call = json.loads(task.ground_truth)
    assert source.score(task, f"<answer>{json.dumps({**call, 'intent': 'Nothing'})}</answer>") == pytest.approx(2 / 3)
    assert source.score(task, f"<answer>{json.dumps({**call, 'more': 1})}</answer>") == pytest.approx(3 / 4)


def test_what_a_reference_gives_is_a_task_for_training() -> None:
    held_out = {task.generated["metadata"]["template"] for task in SOURCE.held_out("test", 200)}
    held_out |= {task.generated["metadata"]["template"] for task in SOURCE.held_out("validation", 200)}
    for task in (*SOURCE.held_out("test", 20), *SOURCE.training_tasks(1, 0, 200)[0]):
        made = SOURCE.regenerate(task.ref)
        assert made.generated["metadata"]["template"] not in held_out
    with pytest.raises(UnknownTaskError, match="another version of sapo-edge"):
        SOURCE.regenerate(TaskRef("home", "home-000000000000", 1, 1))


def test_languages_are_checked() -> None:
    assert TaskEntry("home", "home", {"languages": ("pt", "en")}).config == {"languages": ("pt", "en")}
    wrongs: tuple[str | tuple[str, ...], ...] = (("it",), (), "en", ("en", "en"))
    for wrong in wrongs:
        with pytest.raises(ManifestError):
            TaskEntry("home", "home", {"languages": wrong})
    seen = {Home(("de", "fr")).generate(seed)["metadata"]["language"] for seed in range(50)}
    assert seen == {"de", "fr"}


def test_a_task_takes_less_than_a_millisecond_and_loading_less_than_a_tenth_of_a_second() -> None:
    code = (
        "import time\nfrom sapo_edge.tasks.skills.home import Home, version\nstart = time.process_time()\n"
        "version(); Home().generate(0)\nprint(time.process_time() - start)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 0.1
    home = Home(LANGUAGES)
    home.generate(0)
    start = time.process_time()
    for seed in range(1000):
        home.generate(seed)
    assert time.process_time() - start < 1.0


def test_the_data_is_read_only_when_a_task_is_made() -> None:
    code = (
        "import sys\nfrom sapo_edge.tasks.manifest import load_manifest\n"
        "from sapo_edge.tasks.source import TaskSource\n"
        "TaskSource(load_manifest('home'))\nassert 'sapo_edge.tasks.skills.home' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
