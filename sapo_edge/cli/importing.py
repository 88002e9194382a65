"""`sapo tasks import`: a data set's rows become own questions, shown before anything is used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sapo_edge.backends.hub.name import HUB
from sapo_edge.cli.options import Home, Json
from sapo_edge.cli.output import print_json, say_next
from sapo_edge.cli.workspace import parse_assignments
from sapo_edge.errors import ConfigError
from sapo_edge.library.progress import DownloadReport
from sapo_edge.plain import counted, narrate, printable, reasons

if TYPE_CHECKING:
    from sapo_edge.tasks.importing import Importer

SHOWN = 600
"""Most characters of a question that are shown."""


def import_questions(
    source: Annotated[
        str,
        typer.Argument(
            help="A file (.parquet, .jsonl, .csv), a data set of the hub (hf:OWNER/NAME), or an installed environment "
            "of the package verifiers (env:NAME)."
        ),
    ],
    directory: Annotated[Path, typer.Argument(help="Where to write; it is created.")],
    question: Annotated[
        str | None, typer.Option("--question", metavar="COLUMN", help="Column of the question; default: guessed.")
    ] = None,
    answer: Annotated[
        str | None, typer.Option("--answer", metavar="COLUMN", help="Column of the answer; default: guessed.")
    ] = None,
    check: Annotated[
        str | None, typer.Option("--check", metavar="KIND", help="How answers are checked; default: what fits each.")
    ] = None,
    split: Annotated[
        str | None, typer.Option("--split", metavar="NAME", help="Split of a data set of the hub; default: train.")
    ] = None,
    configuration: Annotated[
        str | None, typer.Option("--configuration", metavar="NAME", help="Configuration of a data set of the hub.")
    ] = None,
    arguments: Annotated[
        list[str] | None, typer.Option("--argument", metavar="NAME=VALUE", help="Of an environment; repeatable.")
    ] = None,
    agree_code: Annotated[
        bool, typer.Option("--agree-code", help="Let the environment run on this machine, without a question.")
    ] = False,
    home: Home = None,
    json: Json = False,
) -> None:
    """Make a manifest and questions of a data set or environment, and show how they will be asked and judged."""
    from sapo_edge.library.environments import ENVIRONMENT, code_of
    from sapo_edge.tasks.importing import Importer, write_import
    from sapo_edge.tasks.manifest import name_like

    is_environment = source.startswith(ENVIRONMENT)
    if not source.startswith(HUB) and (split is not None or configuration is not None):
        raise ConfigError("only a data set of the hub has splits here", "leave out --split and --configuration")
    if is_environment and any(flag is not None for flag in (question, answer, check)):
        raise ConfigError("an environment has its own questions and rewards", "leave out --question, --answer, --check")
    if not is_environment and (arguments or agree_code):
        raise ConfigError("only an environment has arguments and code", "leave out --argument and --agree-code")
    if source.lower().endswith(".csv"):
        # A spreadsheet's columns are whatever their case.
        question, answer = (name and name.lower() for name in (question, answer))
    values = parse_assignments(arguments or (), "--argument")
    code = code_of(source.removeprefix(ENVIRONMENT), values) if is_environment else None
    importer = Importer(question, answer, check, code)
    with ExitStack() as stack:
        if code is not None:
            what, records = source, _rows_of_environment(code, home, stack, agree=agree_code)
        else:
            what, records = _open(source, configuration, split, importer, stack)
        name = name_like(directory.resolve().name)
        manifest, lines = write_import(directory, name, importer.questions(records, what), importer)
    if json:
        print_json({"manifest": str(manifest), "questions": str(lines), "source": what, **_record(importer)})
        return
    print(manifest)
    print(lines)
    for text in _describe(what, importer):
        narrate(text)
    narrate("look at them, then:")
    say_next(manifest)


def _rows_of_environment(code: str, home: Path | None, stack: ExitStack, *, agree: bool) -> Iterator[object]:
    from sapo_edge.cli.code import agrees_to_code
    from sapo_edge.library.environments import Environments
    from sapo_edge.state.paths import Paths

    agreed = partial(agrees_to_code, Paths.default(home), agree=agree)
    environments = Environments(frozenset({code}), agreed, narrate)
    stack.callback(environments.close)
    return environments[code].rows()


def _open(
    source: str, configuration: str | None, split: str | None, importer: Importer, stack: ExitStack
) -> tuple[str, Iterator[object]]:
    """What is imported, in words, and its rows."""
    from sapo_edge.tasks.columns import KEYS, NAMES
    from sapo_edge.tasks.question_file import SUFFIXES

    # With both columns named, others of those names may hold anything.
    names = (*importer.names, *KEYS[2:]) if len(importer.names) == 2 else (*importer.names, *NAMES, *KEYS)
    if source.startswith(HUB):
        from sapo_edge.backends.hub.data import fetch_files, find_split

        found = find_split(source, configuration, split)
        progress = stack.enter_context(closing(DownloadReport(source, narrate)))
        return str(found), _rows(fetch_files(found, progress), names)
    path = Path(source).expanduser()
    if path.suffix.lower() not in SUFFIXES:
        remedy = f"give a file ({', '.join(SUFFIXES)}), hf:OWNER/NAME, or env:NAME"
        raise ConfigError(f"{source} is nothing that can be imported", remedy)
    return str(path), _rows([path], names)


def _rows(paths: Iterable[Path], names: Sequence[str]) -> Iterator[object]:
    from sapo_edge.backends.hub.data import MAX_FILE_BYTES
    from sapo_edge.tasks.question_file import scan_records

    for path in paths:
        yield from scan_records(path, MAX_FILE_BYTES, names)


def _record(importer: Importer) -> dict[str, Any]:
    from sapo_edge.tasks.importing import as_record

    return {
        "kept": importer.kept, "rows": importer.rows,
        "left_out": dict(importer.left_out), "checks": dict(importer.checks),
        "columns": None if importer.columns is None else [importer.columns.question, importer.columns.answer],
        "system": importer.system, "first": [as_record(question) for question in importer.first],
        "remarks": importer.said,
    }  # fmt: skip


def _describe(what: str, importer: Importer) -> Iterator[str]:
    yield f"from {printable(what)}: {printable(importer.columns)}"
    kept, rows = counted(importer.kept, "question"), counted(importer.rows, "row")
    yield f"{kept} of {rows}, by check: {reasons(importer.checks)}"
    for reason, count in importer.left_out.most_common():
        yield f"  left out {count}: {printable(reason)}"
    yield from (printable(text) for text in importer.said)
    if importer.system:
        yield f"the system text is\n  {_shorten(importer.system)}"
    yield "the first ones, as they will be asked and judged:"
    for question in importer.first:
        yield f"\n  {_shorten(question.question)}"
        option = question.check.value
        more = f", {question.check.option}: {printable(option)}" if option else ""
        yield f"  expected     {_shorten(question.answer)} (check {question.check_name}{more})"
    yield ""


def _shorten(text: str) -> str:
    cut = text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
    return printable(cut, lines=True).replace("\n", "\n  ")
