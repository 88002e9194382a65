"""`sapo tasks`: people's own questions, from the first file to what a model makes of them."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from importlib import resources
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sapo_edge.cli.importing import import_questions
from sapo_edge.cli.options import Backend, Home, Json, Model, Set, Threads
from sapo_edge.cli.output import emit, print_json, say_next
from sapo_edge.cli.workspace import open_workspace
from sapo_edge.errors import ConfigError, ManifestError, ModelError
from sapo_edge.library.progress import answering
from sapo_edge.library.workspace import Workspace
from sapo_edge.plain import counted, narrate, printable

if TYPE_CHECKING:
    from sapo_edge.backends.model.vocabularies import Vocabulary
    from sapo_edge.policy import Sample
    from sapo_edge.rollout import Task

FILES = ("manifest.toml", "tasks.jsonl")
"""What `sapo tasks new` writes."""
MAX_REMARKS = 20_000
SHOWN = 20
"""Most remarks that are printed."""
PREVIEW_SEED = 0
"""Of the questions and of the sampling of a preview, so that two previews can be compared."""

app = typer.Typer(no_args_is_help=True, help="Your own questions: write, check and preview them.")
File = Annotated[
    Path, typer.Argument(help="A manifest's TOML file, its directory, or a file of questions (.jsonl, .csv, .parquet).")
]

app.command("import")(import_questions)


@app.command()
def new(
    directory: Annotated[Path, typer.Argument(help="Where to write; it is created.")],
    json: Json = False,
) -> None:
    """Write a small manifest and a file of questions, to edit."""
    from sapo_edge.tasks.manifest import name_like

    template = resources.files("sapo_edge.tasks").joinpath("template")
    name = name_like(directory.resolve().name)
    paths = [directory / file for file in FILES]
    try:
        for path in paths:
            if path.exists():
                raise ConfigError(f"{path} is there already", "give another directory; nothing was written")
        directory.mkdir(parents=True, exist_ok=True)
        for path in paths:
            text = template.joinpath(path.name).read_text("utf-8").replace("NAME", name, 1)
            path.write_text(text, "utf-8")
    except OSError as error:
        raise ConfigError(f"{directory} can't be written: {error.strerror}", "give another directory") from error
    emit({"manifest": str(paths[0]), "questions": str(paths[1])}, map(str, paths), json)
    if not json:
        narrate("write your own questions, one a line; then:")
        say_next(paths[0])


@app.command()
def check(
    file: File,
    model: Model = None,
    home: Home = None,
    json: Json = False,
) -> None:
    """Check a manifest and its questions: mistakes with their lines, and what may be wrong."""
    from sapo_edge.state.paths import Paths
    from sapo_edge.tasks.review import Room, read_own, remarks
    from sapo_edge.tasks.source import TaskSource

    file = _in_directory(file)
    try:
        manifest, placed = read_own(file, Paths.default(home).questions)
    except ManifestError as error:
        raise _with_all_mistakes(error, file, as_json=json) from error
    workspace = open_workspace(home, {"manifest": str(file), "model": model})
    try:
        with _tokenizer(workspace) as (vocabulary, context):
            room: Room | None = Room(
                lambda prompt: len(vocabulary.encode_prompt(prompt)),
                lambda text: len(vocabulary.tokenize(text, special=False)),
                context,
                workspace.own_max_tokens or manifest.max_tokens,
            )
            found = list(islice(remarks(manifest, placed, room), MAX_REMARKS))
    except ModelError as error:
        room, found = None, list(islice(remarks(manifest, placed, None), MAX_REMARKS))
        narrate(f"lengths are not checked: {printable(error.message)}")
    # Nothing is judged here, so no code of the owner's runs.
    splits = TaskSource(manifest, dict.fromkeys(manifest.functions, lambda *_: 0.0)).own
    if json:
        tasks = [
            {"name": name, "train": len(split.train), "validation": len(split.validation), "test": len(split.test)}
            for name, split in splits.items()
        ]
        warnings = [{"where": where, "text": text} for where, text in found]
        record = {"manifest": manifest.name, "digest": manifest.digest, "bytes": len(manifest.to_bytes())}
        lengths = {"examples": len(manifest.examples), "lengths": room is not None}
        print_json({**record, **lengths, "tasks": tasks, "warnings": warnings})
        return
    _print_first([f"{where}: {text}" for where, text in found])
    for name, split in splits.items():
        held_out = f"{len(split.validation)} for validation, {len(split.test)} for the test"
        print(f"{name}: {counted(len(split.train), 'question')} to train on, {held_out}")
    if not splits:
        narrate("it has no questions of your own")
    elif any(not split.test for split in splits.values()):
        narrate("with fewer than 6 questions there is no test set, so no gain can be reported")
    following = "mend that first" if found else f"next: sapo tasks preview {shlex.quote(str(file))}"
    narrate(f"{counted(len(found), 'warning')}; {following}")


@app.command()
def preview(
    file: File,
    questions: Annotated[int, typer.Option(min=1, max=200, help="Questions to ask, of those to train on.")] = 8,
    answers: Annotated[int, typer.Option(min=2, max=32, help="Answers to each, sampled as in training.")] = 8,
    model: Model = None, backend: Backend = None, threads: Threads = None, settings: Set = None, home: Home = None,
    json: Json = False,
) -> None:  # fmt: skip
    """Show a prompt as the model gets it, what the model answers now, and whether there is anything to learn."""
    from sapo_edge.cli.code import judging
    from sapo_edge.tasks.source import TaskSource

    file = _in_directory(file)
    if not os.path.isfile(file):
        raise ManifestError(f"there is no file {file}", "give the path of a manifest's TOML file")
    flags = {"manifest": str(file), "model": model, "backend": backend, "threads": threads}
    workspace = open_workspace(home, flags, settings)
    manifest = workspace.require_manifest()
    with judging(workspace.paths, manifest) as functions:
        source = TaskSource(manifest, functions)
        source.held_out("validation", 0)
        own = sum(len(split.train) for split in source.own.values())
        # A pass over own questions asks each once.
        count = min(questions, own) if own and all(entry.questions for entry in manifest.tasks) else questions
        tasks, _ = source.training_tasks(PREVIEW_SEED, 0, count)
        with _tokenizer(workspace) as (vocabulary, _):
            shown = vocabulary.prompt_text(manifest.prompt_for(tasks[0].question))
        if not json:
            print("the prompt of the first question, as the model gets it:\n")
            print(printable(shown, lines=True), flush=True)
        samples = _answers(workspace, tasks, answers)
        answered = zip(tasks, samples, strict=True)
        rewards = [[source.score(task, sample.text) for sample in group] for task, group in answered]
        corrects = workspace.settings.corrections == "on"
        known = [corrects and source.right_answer(task) is not None for task in tasks]
    result, records = _result(rewards, known), _records(tasks, samples, rewards)
    if json:
        advice = _advice(result, len(tasks))
        print_json({"manifest": manifest.name, "prompt": shown, **result, "advice": advice, "questions": records})
        return
    for record in records:
        print(f"\n{printable(record['question'], lines=True)}")
        print(f"expected     {printable(record['expected'])}")
        kinds = Counter((answer["text"], answer["reward"]) for answer in record["answers"])
        for (text, reward), number in kinds.most_common():
            print(f"{number:3} x  {reward:4.2f}  {printable(text)}")
    asked = counted(len(tasks), "question")
    print(f"\nright        {result['success']:.0%} of {counted(len(tasks) * answers, 'answer')}")
    more = f", {result['corrected']} more by their known answer" if result["corrected"] else ""
    print(f"to learn     {result['informative']} of {asked} with both better and worse answers{more}")
    narrate(_advice(result, len(tasks)))


@app.command("list")
def list_manifests(home: Home = None, json: Json = False) -> None:
    """List the shipped manifests, those that are kept of swarms and runs, and the one that is used."""
    from sapo_edge.tasks.about import SKILL_WORDS
    from sapo_edge.tasks.manifest import load_manifest, shipped_manifests

    workspace = open_workspace(home, needs_manifest=False)
    rows = [("shipped", name, load_manifest(name)) for name in shipped_manifests()]
    rows += [("kept", manifest.digest[:12], manifest) for manifest in workspace.membership.manifests()]
    setting = workspace.settings.manifest
    if os.path.isfile(os.path.expanduser(setting)) and workspace.manifest is not None:
        rows.append(("file", setting, workspace.manifest))
    used = None if workspace.manifest is None else workspace.manifest.digest
    records, lines = [], []
    for kind, use, manifest in rows:
        is_used = manifest.digest == used
        records.append({
            "from": kind, "use": use, "name": manifest.name, "digest": manifest.digest, "tasks": len(manifest.tasks),
            "own_questions": manifest.own_questions, "used": is_used,
        })  # fmt: skip
        own = f", {counted(manifest.own_questions, 'question')} of your own" if manifest.own_questions else ""
        named = "" if use == manifest.name else f"{manifest.name}, "
        about = SKILL_WORDS.get(use) or counted(len(manifest.tasks), "task")
        mark = "*" if is_used else " "
        lines.append(f"{mark} {kind:8} {printable(use)}  {named}{about}{own}")
    emit({"manifests": records}, lines, json)
    if used is None:
        narrate("no *: the manifest in use can't be read (`sapo config validate`), or its swarm has not sent it yet")
    if not json:
        narrate("* is what `sapo run` trains on; another one: sapo run --manifest NAME")


def _in_directory(file: Path) -> Path:
    """The manifest of a directory that `new` made; any other path as it is."""
    inside = file / FILES[0]
    return inside if os.path.isfile(inside) else file


def _with_all_mistakes(error: ManifestError, file: Path, *, as_json: bool) -> ManifestError:
    """Print all mistakes if there are several; returns the error to end with."""
    from sapo_edge.tasks.review import find_mistakes

    mistakes = find_mistakes(file)
    if error.message not in [mistake.message for mistake in mistakes]:
        mistakes.insert(0, error)
    if as_json:
        print_json({"mistakes": [{"text": mistake.message, "remedy": mistake.remedy} for mistake in mistakes]})
    if len(mistakes) == 1:
        return error
    if not as_json:
        _print_first([printable(mistake) for mistake in mistakes])
    return ManifestError(f"{file} has {counted(len(mistakes), 'mistake')}", "mend them, then check it again")


def _print_first(lines: Sequence[str]) -> None:
    for text in lines[:SHOWN]:
        print(text)
    if len(lines) > SHOWN:
        print(f"and {len(lines) - SHOWN} more")


@contextmanager
def _tokenizer(workspace: Workspace) -> Iterator[tuple[Vocabulary, int]]:
    """A model's tokenizer and chat template, without its weights, and its context; a ModelError if it can't be used."""
    from sapo_edge.backends.model.find import find_model
    from sapo_edge.backends.model.source import open_source, shape_of
    from sapo_edge.backends.model.vocabularies import open_vocabulary

    source = open_source(find_model(workspace.settings.model, download=False), mlx=True)
    context = shape_of(source).context
    with closing(open_vocabulary(source, thinking=workspace.settings.thinking == "on")) as vocabulary:
        yield vocabulary, context


def _answers(workspace: Workspace, tasks: tuple[Task, ...], answers: int) -> list[list[Sample]]:
    """Answers of the base model, sampled as in training."""
    settings, manifest = workspace.settings, workspace.require_manifest()
    prompts = [manifest.prompt_for(task.question) for task in tasks]
    with workspace.answering_policy("preview", seed=PREVIEW_SEED) as policy, answering("preview") as handle:
        return policy.generate(
            prompts, answers, settings.max_tokens, settings.temperature, PREVIEW_SEED, handle, use_adapter=False
        )


def _result(rewards: list[list[float]], known: list[bool]) -> dict[str, Any]:
    """Share of right answers, mean reward, and number of groups that teach, by themselves or by a known answer."""
    from sapo_edge.advantage import informative

    every = [reward for group in rewards for reward in group]
    return {
        "success": sum(reward == 1.0 for reward in every) / len(every),
        "reward": sum(every) / len(every),
        "informative": sum(informative(group) for group in rewards),
        "corrected": sum(
            is_known and group[0] < 1.0 and not informative(group)
            for group, is_known in zip(rewards, known, strict=True)
        ),
    }


def _records(tasks: tuple[Task, ...], samples: list[list[Sample]], rewards: list[list[float]]) -> list[dict[str, Any]]:
    return [
        {
            "question": task.question, "expected": task.ground_truth, "entry": task.ref.entry,
            "answers": [
                {"text": sample.text, "ended": sample.ended, "reward": reward}
                for sample, reward in zip(group, scores, strict=True)
            ],
        }
        for task, group, scores in zip(tasks, samples, rewards, strict=True)
    ]  # fmt: skip


def _advice(result: dict[str, Any], groups: int) -> str:
    if result["success"] == 1.0:
        return "the model is always right: there is nothing to learn; ask harder questions"
    if not result["reward"]:
        if result["corrected"]:
            return "the model is never right yet; a run begins with the right answers: train on it"
        remedy = "ask easier questions or show more worked examples"
        return f"the model is never right, and no right answer is known: nothing teaches it; {remedy}"
    if not (teaching := result["informative"] + result["corrected"]):
        return "all answers to a question earn the same: nothing is learned from them; ask more questions to be sure"
    if 4 * teaching < groups:
        return "few questions have both better and worse answers: it will learn slowly; worked examples may help"
    return "there is something to learn: train on it"
