"""The skill `home`: held-out words and names, credit by fields, languages, and what it takes to load."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from importlib import resources
from typing import Any

import pytest

from sapo_edge.errors import ManifestError
from sapo_edge.tasks.manifest import TaskEntry
from sapo_edge.tasks.skills.home import LANGUAGES, Home


@pytest.mark.parametrize("code", LANGUAGES)
def test_parts_share_no_sentence_and_no_name(code: str) -> None:
    file = resources.files("sapo_edge.tasks.skills") / f"data/{code}.json"
    content: dict[str, Any] = json.loads(file.read_text("utf-8"))
    sentences: list[set[str]] = [set(), set(), set()]
    for _, part, _, _, texts in content["templates"]:
        # Without what their slots agree with.
        sentences[part] |= {re.sub(r"\{(\w+)=\w+/[^}]*\}", r"{\1}", text) for text in texts}
    names = [{name for kind in content["names"].values() for _, name in kind[part]} for part in range(3)]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert not sentences[one] & sentences[other] and not names[one] & names[other]
    intents = [{row[0] for row in content["templates"] if row[1] == part} for part in range(3)]
    assert intents[1] | intents[2] <= intents[0] and len(intents[2]) >= len(intents[0]) / 2


def test_languages_are_checked() -> None:
    assert TaskEntry("home", "home", {"languages": ("pt", "en")}).config == {"languages": ("pt", "en")}
    wrongs: tuple[str | tuple[str, ...], ...] = (("it",), (), "en", ("en", "en"))
    for wrong in wrongs:
        with pytest.raises(ManifestError):
            TaskEntry("home", "home", {"languages": wrong})
    assert {Home(("de", "fr")).generate(seed)["metadata"]["language"] for seed in range(50)} == {"de", "fr"}


def test_a_task_takes_less_than_a_millisecond_and_loading_less_than_a_tenth_of_a_second() -> None:
    code = (
        "import time\nfrom sapo_edge.tasks.skills import version_of\nfrom sapo_edge.tasks.skills.home import Home\n"
        "start = time.process_time()\nversion_of('home'); Home().generate(0)\nprint(time.process_time() - start)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 0.1
    home = Home(LANGUAGES)
    home.generate(0)
    start = time.process_time()
    for seed in range(1000):
        home.generate(seed)
    assert time.process_time() - start < 1.0
