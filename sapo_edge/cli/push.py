"""`sapo push` and `sapo pull`: publish an adapter on the Hugging Face hub, and go on training one from there."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from sapo_edge.care.signals import tidying
from sapo_edge.cli.options import Adapter, Home, Json, ManifestName, Model
from sapo_edge.cli.output import ask_yes, print_json, report
from sapo_edge.cli.runs import unset_others
from sapo_edge.cli.workspace import open_workspace
from sapo_edge.control.client import explained_lock
from sapo_edge.errors import CheckpointError, ConfigError
from sapo_edge.library.adapters import find_adapter, find_record
from sapo_edge.plain import counted, narrate, printable, size, table
from sapo_edge.state.durable import make_private_directory, reported

RepositoryName = Annotated[str, typer.Argument(metavar="REPOSITORY", help="OWNER/NAME on the Hugging Face hub.")]


def push(
    repository: RepositoryName,
    merged: Annotated[
        bool, typer.Option("--merged", help="Send model and adapter as one GGUF file with a Modelfile, too.")
    ] = False,
    with_questions: Annotated[
        bool, typer.Option("--with-questions", help="Send own questions of the manifest, and their answers, too.")
    ] = False,
    public: Annotated[bool, typer.Option("--public", help="For everybody to see; private without it.")] = False,
    dry_run: Annotated[Path | None, typer.Option(metavar="DIR", help="Write what would be sent; send nothing.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Send without a question.")] = False,
    adapter: Adapter = None, model: Model = None, home: Home = None, json: Json = False,
) -> None:  # fmt: skip
    """Publish the best adapter on the Hugging Face hub, with a model card and its manifest. Asks before it sends."""
    from sapo_edge.backends.hub.upload import check_login, check_repository, upload
    from sapo_edge.library.publish import REPLACED, gather, write_files

    repository = check_repository(repository)
    workspace = open_workspace(home, {"model": model}, needs_manifest=False)
    directory = find_adapter(workspace, adapter)
    checkpoint = find_record(directory)
    if checkpoint is None:
        problem = f"{directory} is no checkpoint, so nothing is known of its training"
        raise CheckpointError(problem, "give the directory of a checkpoint")
    if dry_run is None:
        check_login()
    facts = gather(workspace, checkpoint, with_questions=with_questions)
    if merged:
        narrate("merging: this takes some seconds for each gigabyte")
    make_private_directory(workspace.paths.cache)
    with tidying(), _place(dry_run, workspace.paths.cache) as place:
        files = write_files(workspace, facts, repository, place, merged=merged)
        record = {
            "repository": repository, "public": public, "adapter": str(directory),
            "files": [{"name": name, "bytes": count} for name, count in files],
        }  # fmt: skip
        audience = "PUBLIC: for everybody to see" if public else "private: for those whom its owner lets in"
        narrate(f"{repository} on the Hugging Face hub, {audience}")
        for text in table((f"  {name}", size(count)) for name, count in files):
            narrate(text)
        if facts.manifest is not None and facts.manifest.own_questions:
            what = "in it" if with_questions else "left out, and so are the worked examples"
            narrate(f"{counted(facts.manifest.own_questions, 'own question')} with the answers: {what}")
        if dry_run is not None:
            report({"done": "dry run", "directory": str(place), **record}, f"nothing was sent: see {place}", json)
            return
        narrate("What was published can't be taken back from those who have copied it (docs/privacy.md).")
        if not yes and not ask_yes("Send?"):
            report({"done": "nothing", **record}, "nothing was sent", json)
            return
        message = f"sapo push: {counted(checkpoint.round, 'round')}"
        address = upload(place, repository, public=public, message=message, replaced=REPLACED)
    if json:
        print_json({"done": "push", "address": address, **record})
        return
    print(address)
    narrate(f"go on from it elsewhere with: sapo pull {repository}")


def pull(
    repository: RepositoryName,
    model: Model = None, manifest: ManifestName = None, home: Home = None, json: Json = False,
) -> None:  # fmt: skip
    """Begin a run with an adapter that `sapo push` published; `sapo run` then continues it. Needs a stopped node."""
    from sapo_edge.backends.hub.upload import check_repository
    from sapo_edge.library.pull import begin_with

    repository = check_repository(repository)
    workspace = open_workspace(home, {"model": model, "manifest": manifest})
    with explained_lock(workspace.paths):
        run, checkpoint, published = begin_with(workspace, repository)
    record = {
        "done": "pull", "run": run, "adapter": str(checkpoint.directory), "round": published.round,
        "manifest": published.manifest_digest, "base": published.base_digest,
    }  # fmt: skip
    if json:
        print_json(record)
    else:
        after = counted(published.round, "round")
        narrate(f"the next `sapo run` continues {repository}, published after {after}, as the run {run}")
        narrate("its optimizer was not published: the moments begin at zero, and the learning rate with its warm-up")
        print(checkpoint.directory)
    unset_others(workspace.paths, checkpoint)


@contextmanager
def _place(dry_run: Path | None, cache: Path) -> Iterator[Path]:
    """The directory for what is sent: the one of a dry run, which stays, or one that is removed afterwards."""
    if dry_run is None:
        with reported("write", cache):
            temporary = tempfile.TemporaryDirectory(dir=cache, prefix="push-")
        with temporary:
            yield Path(temporary.name)
        return
    with reported("write", dry_run, "name another directory"):
        if dry_run.exists() and (not dry_run.is_dir() or any(dry_run.iterdir())):
            raise ConfigError(f"{printable(dry_run)} is not empty", "name a new directory for --dry-run")
        dry_run.mkdir(parents=True, exist_ok=True)
    yield dry_run
