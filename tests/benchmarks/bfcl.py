"""Calls of other people's tools: the simple Python cases of bfcl-eval (Apache-2.0), asked as the skill `tools` asks.

Nothing of that package is in this repository, and nothing is trained on it. Its data is read from an installed package
(`pip install --no-deps bfcl-eval`), of which no code runs. Answers are scored by our check `calls`, which is stricter
with texts than that of the leaderboard: the figures are no entries of it.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sapo_edge.cli.workspace import open_workspace
from sapo_edge.evaluate import Evaluation, evaluate, evaluate_base, paired_gain
from sapo_edge.events import FORMED, OTHERWISE, WRONG
from sapo_edge.library.adapters import find_adapter
from sapo_edge.rollout import Task, TaskRef
from sapo_edge.tasks.checks import Calls
from sapo_edge.tasks.manifest import load_manifest
from sapo_edge.tasks.readings import is_bare, read
from sapo_edge.tasks.skills.tools import ask, describe
from sapo_edge.tasks.source import TaskSource

TOKENS = 128
"""Longest answer: some calls are longer than those of the skill."""
TYPES = {"string": "string", "integer": "integer", "float": "number", "boolean": "boolean"}
"""The types that the skill has, by their names there."""


class Cases(TaskSource):
    """The prompt and the worked examples of the skill, with the cases' own possible answers."""

    def judge(self, task: Task, text: str) -> str:
        """Whether a completion is one of the possible calls."""
        right = [answer for answer in read("json", text) if is_possible(task.generated, answer)]
        return WRONG if not right else FORMED if is_bare(text, right[0]) else OTHERWISE


def is_possible(possible: Mapping[str, Mapping[str, list[Any]]], answer: str) -> bool:
    """Whether an answer is a call of the tool with possible values; a value of "" may be left out."""
    ((name, parameters),) = possible.items()
    arguments: dict[str, Any] = {}

    def score(more: dict[str, Any]) -> float:
        return Calls().score(json.dumps({"name": name, "arguments": {**arguments, **more}}), answer)

    # One parameter after the other: a right value adds to the share of right ones, whatever the others are.
    for key, values in parameters.items():
        # Left out first: what is not in the answer can't add to the share.
        candidates: list[dict[str, Any]] = sorted(({} if value == "" else {key: value} for value in values), key=len)
        best = max(candidates, key=score)
        arguments.update(best)
    return score({}) == 1.0


def lines(path: Path) -> Iterator[dict[str, Any]]:
    return map(json.loads, path.read_text("utf-8").splitlines())


def render(tool: Mapping[str, Any]) -> str | None:
    """A tool as the skill shows its own; None if it has a parameter of a type that the skill lacks."""
    schema = tool["parameters"]
    parameters = {}
    for name, parameter in schema["properties"].items():
        if parameter["type"] not in TYPES:
            return None
        optional = "" if name in schema["required"] else "?"
        options = parameter.get("enum")
        parameters[name + optional] = "|".join(map(str, options)) if options else TYPES[parameter["type"]]
    return describe(tool["name"], parameters, " ".join(tool["description"].split()))


def cases(shown: int) -> tuple[list[Task], int]:
    """The cases that can be rendered, each with `shown` tools, and the number of the others.

    The other tools of a case are those of other cases, the same ones in each run.
    """
    spec = find_spec("bfcl_eval")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("bfcl-eval is not installed: pip install --no-deps bfcl-eval")
    data, name = Path(spec.submodule_search_locations[0]) / "data", "BFCL_v4_simple_python.json"
    answers = {record["id"]: record["ground_truth"] for record in lines(data / "possible_answer" / name)}
    records = list(lines(data / name))
    tools = {record["id"]: (record["function"][0]["name"], render(record["function"][0])) for record in records}
    tasks = []
    for index, record in enumerate(records):
        called, line = tools[record["id"]]
        if line is None:
            continue
        draw = random.Random(index)
        others = sorted({other for other_name, other in tools.values() if other and other_name != called})
        drawn = [line, *draw.sample(others, shown - 1)]
        draw.shuffle(drawn)
        ((message,),) = record["question"]
        (possible,) = answers[record["id"]]
        ref = TaskRef("tools", "bfcl", 0, index)
        tasks.append(Task(ref, ask(drawn, message["content"]), json.dumps(possible), possible))
    return tasks, len(records) - len(tasks)


def run(home: Path) -> None:
    """Print the table: base model and the run's best adapter, with the case's own tool alone and among four."""
    workspace = open_workspace(home)
    source = Cases(load_manifest("tools"))
    print("\n### The simple Python cases of bfcl-eval, never trained on\n")
    print("| tools shown | cases | base | adapter | became right | became wrong |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        policy, _ = workspace.open_policy(Path(temporary), trainable=False, seed=0)
        policy.load(find_adapter(workspace, None))
        for shown in (1, 4):
            tasks, left_out = cases(shown)
            base, examples = evaluate_base(policy, source, tasks, TOKENS)
            adapter = evaluate(policy, tasks, source.manifest.prompt_for, source.judge, TOKENS)
            gain = paired_gain(base.marks, adapter.marks)
            shares = f"{_share(base)}, {examples} examples | {_share(adapter)}"
            print(f"| {shown} | {len(tasks)} | {shares} | {gain.gained} | {gain.lost} |", flush=True)
        policy.close()
    print(f"\n{left_out} cases have a parameter of a type that the skill lacks and are left out.")


def _share(result: Evaluation) -> str:
    low, high = result.interval
    return f"{result.accuracy:.2f} ({low:.2f} to {high:.2f})"
