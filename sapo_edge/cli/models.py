"""`sapo models`: the models on this machine, and those of the Hugging Face hub."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sapo_edge.cli.options import Backend, Home, Json
from sapo_edge.cli.output import ask_yes, emit, print_json, report
from sapo_edge.cli.workspace import open_workspace
from sapo_edge.errors import ModelError, SapoError
from sapo_edge.library.progress import DownloadReport
from sapo_edge.library.workspace import Workspace
from sapo_edge.plain import narrate, printable, size, table

if TYPE_CHECKING:
    from sapo_edge.backends.hub.cache import KeptModel
    from sapo_edge.backends.hub.name import HubName

app = typer.Typer(no_args_is_help=True, help="List, download, show and remove models.")
Name = Annotated[str, typer.Argument(help="hf:ORGANISATION/MODEL, or hf:ORGANISATION/MODEL:FILE for a GGUF file.")]
EMBEDDED = "embedded"
"""What the embedded model is called in lists; as a setting its name is empty."""
MAX_LICENCE = 40
"""Characters of a licence that are shown."""


@dataclass(frozen=True, slots=True)
class Described:
    """A model as the lists show it.

    Attributes:
        name: as the setting `model` takes it.
        architecture, weights, context: of the model; 0 or "" if it can't be used here.
        licence: its name; "" if it is not known.
        backend: that would run it; "" if none can.
        needed, free: bytes of memory that a round needs and that are available; 0 where that can't be told.
        problem: why it can't be used; "" if it can.
    """

    name: str
    path: Path
    bytes: int
    architecture: str = ""
    weights: int = 0
    context: int = 0
    licence: str = ""
    backend: str = ""
    needed: int = 0
    free: int = 0
    problem: str = ""

    @property
    def fits(self) -> str:
        """Whether a round fits into the free memory, in a word."""
        if self.problem or not self.needed:
            return "no" if self.problem else "unknown"
        return "yes" if self.needed <= self.free else "too large"


@app.command("list")
def list_models(backend: Backend = None, home: Home = None, json: Json = False) -> None:
    """List the models on this machine: size, licence, and whether a round of training fits into the free memory."""
    from sapo_edge.backends.hub.cache import kept_models
    from sapo_edge.backends.model.find import embedded_model

    workspace = open_workspace(home, {"backend": backend}, needs_manifest=False)
    embedded = embedded_model()
    models = []
    if embedded is not None:
        models.append(describe(workspace, EMBEDDED, embedded, embedded.stat().st_size, "apache-2.0"))
    models += [_kept(workspace, model) for model in kept_models()]
    if not models and not json:
        narrate("no model is here; download one with: sapo models pull hf:ORGANISATION/MODEL")
        return
    # The name last, because names of the hub are as long as a line of a small terminal.
    cells = [("disk", "weights", "memory", "fits", "licence", "model")]
    for model in models:
        weights = f"{model.weights / 1e6:.0f} M" if model.weights else "-"
        name = printable(f"{model.name}{f': {model.problem}' if model.problem else ''}")
        memory = size(model.needed) if model.needed else "-"
        cells.append((size(model.bytes), weights, memory, model.fits, _licence(model) or "-", name))
    emit({"models": [_record(model) for model in models]}, table(cells, {0, 1, 2}), json)


@app.command()
def pull(name: Name, home: Home = None, json: Json = False) -> None:
    """Download a model, or what is missing of it; `sapo run --model NAME` does it, too."""
    from sapo_edge.backends.hub.find import hub_model

    with closing(DownloadReport(name, narrate)) as progress:
        path = hub_model(_hub_name(name), fetch=True, progress=progress)
    model = _at(open_workspace(home, needs_manifest=False), name, path)
    if json:
        print_json(_record(model))
        return
    print(path)
    how = f"train it with: sapo run --model {name}"
    narrate(f"it can't be trained here: {model.problem}" if model.problem else how)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A model of the list, a GGUF file, or a directory.")] = EMBEDDED,
    backend: Backend = None, home: Home = None, json: Json = False,
) -> None:  # fmt: skip
    """Show what a model is, which backend would run it, and the memory that it needs."""
    from sapo_edge.backends.model.find import find_model

    path = find_model("" if name == EMBEDDED else name, download=False)
    model = _at(open_workspace(home, {"backend": backend}, needs_manifest=False), name, path)
    free = f" of {size(model.free)} available" if model.free else ""
    rows = {
        "path": str(model.path), "on disk": size(model.bytes), "architecture": model.architecture,
        "weights": f"{model.weights / 1e6:.0f} million" if model.weights else "",
        "context": f"{model.context} tokens" if model.context else "", "licence": _licence(model) or "not known",
        "backend": model.backend, "memory": f"{size(model.needed)}{free}" if model.needed else "",
        "problem": model.problem,
    }  # fmt: skip
    emit(_record(model), (f"{key:12} {printable(value)}" for key, value in rows.items() if value), json)


@app.command()
def remove(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
    json: Json = False,
) -> None:
    """Remove a model of the hub from this machine; other programs that use the hub's cache lose it as well."""
    from sapo_edge.backends.hub.cache import remove_model

    if not yes and not json and not ask_yes(f"Remove {name} from this machine?"):
        narrate("nothing was removed")
        return
    freed = remove_model(_hub_name(name))
    report({"done": "remove", "model": name, "bytes": freed}, f"removed {name}: {size(freed)}", json)


def describe(workspace: Workspace, name: str, path: Path, bytes: int, licence: str = "") -> Described:
    """What a model of so many bytes is and whether it fits, without loading it."""
    from sapo_edge.backends.choose import detect
    from sapo_edge.backends.model.hf_directory import HfDirectory
    from sapo_edge.backends.model.source import open_source, shape_of
    from sapo_edge.doctor.backends import memory_need

    model = Described(name, path, bytes, licence=licence)
    try:
        source = open_source(path, mlx=True)
        sizes = shape_of(source)
        if not licence and not isinstance(source, HfDirectory):
            model = replace(model, licence=str(source.metadata.get("general.license", "")))
        model = replace(
            model, architecture=source.architecture, weights=sizes.block_weights + sizes.table_weights,
            context=sizes.context, backend=detect.detect(workspace.settings.backend, path).name,
        )  # fmt: skip
    except SapoError as error:
        return replace(model, problem=error.message)
    shape = workspace.round_shape()
    memory = None if shape is None else memory_need(path, workspace.settings, shape)
    return model if memory is None else replace(model, needed=memory.needed, free=memory.free)


def _licence(model: Described) -> str:
    """Its name for a terminal: whoever made the model wrote it."""
    return printable(model.licence)[:MAX_LICENCE]


def _kept(workspace: Workspace, model: KeptModel) -> Described:
    if not model.complete:
        problem = f"it is not complete; go on with: sapo models pull {model.name}"
        return Described(model.name, model.path, model.bytes, licence=model.licence, problem=problem)
    return describe(workspace, model.name, model.path, model.bytes, model.licence)


def _at(workspace: Workspace, name: str, path: Path) -> Described:
    from sapo_edge.backends.hub.cache import kept_models

    # A directory of the hub's cache also holds GGUF files, which are models by themselves, and what belongs to none.
    kept = next((model for model in kept_models() if model.path == path), None)
    if kept is not None:
        return describe(workspace, name, path, kept.bytes, kept.licence)
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return describe(workspace, name, path, sum(file.stat().st_size for file in files))


def _record(model: Described) -> dict[str, object]:
    return {**asdict(model), "path": str(model.path), "fits": model.fits}


def _hub_name(name: str) -> HubName:
    from sapo_edge.backends.hub.name import FORM, HUB, HubName

    if not name.startswith(HUB):
        remedy = f"did you mean {HUB}{name}? The form is {FORM}" if "/" in name else f"give {FORM}"
        raise ModelError(f"{name} is no name of a model on the hub", remedy)
    return HubName.parse(name)
