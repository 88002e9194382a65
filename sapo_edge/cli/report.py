"""`sapo report` and `sapo history`: what a run did and learned, and each round of it, whether or not a node runs."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sapo_edge.cli.options import Home, Json
from sapo_edge.cli.output import as_typed, emit
from sapo_edge.errors import ConfigError, NoNodeError
from sapo_edge.plain import line, narrate
from sapo_edge.state.paths import Paths

if TYPE_CHECKING:
    from sapo_edge.control.report import Report
    from sapo_edge.control.run_report import RunReport

WIDTH = 76
"""Most columns of a question or an answer."""
COLUMNS = (
    "round", "time", "reward_own", "reward_external", "groups", "informative", "own", "external", "shared", "received",
    "tokens", "seconds_generate", "seconds_update", "held_out", "held_out_questions",
    "question_set",
)  # fmt: skip
"""The columns. `held_out` is the validation accuracy after that round, then number and mark of the questions; all three
are empty without an evaluation. Only accuracies with the same number and mark can be compared."""


def report(
    run: Annotated[
        str | None, typer.Option("--run", metavar="NAME", help="A run of `sapo runs list`; default: the current one.")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also draw the run, into a .png or .svg file.")
    ] = None,
    home: Home = None,
    json: Json = False,
) -> None:
    """Say what a run did and learned, and what comes next."""
    from sapo_edge.control.run_report import read_run_report
    from sapo_edge.state.runs import check_run_exists

    paths = Paths.default(home)
    name = run or paths.run_name
    if run is not None:
        check_run_exists(paths, run)
    _check_has_run(paths.run_of(name).journal)
    result = read_run_report(paths, name)
    if picture is not None:
        _draw(result, paths, picture)
    emit(result.as_dict(), _lines(result, paths.home), json)


def history(home: Home = None) -> None:
    """Print every round of the run as CSV."""
    from sapo_edge.control.journal_view import JournalReader

    journal = Paths.default(home).journal
    _check_has_run(journal)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(COLUMNS)
    for event, evaluation in JournalReader(journal).rounds():
        moment = datetime.fromtimestamp(event.time, UTC).isoformat(timespec="seconds")
        figures = [getattr(event, name) for name in COLUMNS[2:-3]]
        writer.writerow([event.round, moment, *figures, *(evaluation or ("", "", ""))])


def _check_has_run(journal: Path) -> None:
    if not journal.exists():
        raise NoNodeError("no node has run here yet", "start one with `sapo run`")


def _lines(report: RunReport, home: Path | None) -> Iterator[str]:
    from sapo_edge.control.report_words import describe_work

    yield line("run", ", ".join(filter(None, (report.run.name, report.manifest, report.run.model))))
    if report.origin:
        # The test questions are asked of the base model itself.
        is_first = report.learned is not None and report.learned.split != "test"
        means = ', which "before training" means' if is_first else ""
        yield line("", f"began with the adapter of {report.origin}{means}")
    for text in describe_work(report):
        yield line("", text)
    if report.learned is None:
        yield line("learned", "nothing can be compared yet")
    else:
        yield from _learned(report.learned)
    if report.adapter:
        yield line("adapter", report.adapter)
    for number, step in enumerate(report.steps):
        yield line("" if number else "next", step.reason)
        if step.command:
            yield f"{'':14}{as_typed(step.command, home)}"


def _learned(report: Report) -> Iterator[str]:
    from sapo_edge.control import report_words as words
    from sapo_edge.control.event_words import describe_place
    from sapo_edge.control.run_report import changed

    name = f"{report.split} questions".strip()
    yield line("learned", f"after {describe_place(report.round)}, by {report.questions} held-out {name}")
    for text in (*words.spoken(report), words.FAIR if report.split == "test" else words.CHOSEN):
        yield line("", text)
    if report.tasks:
        yield "by task, before training -> now"
        yield from words.task_lines(report.tasks)
    for title, pairs in zip(("became right", "became wrong"), changed(report.examples), strict=True):
        for number, (before, now) in enumerate(pairs):
            if not number:
                yield title
            yield f"  {words.one_line(before.question, WIDTH)}"
            yield f"    before  {words.said(before, WIDTH - 36)}"
            yield f"    now     {words.said(now, WIDTH - 36)}"


def _draw(report: RunReport, paths: Paths, file: Path) -> None:
    from sapo_edge.control.journal_view import JournalReader
    from sapo_edge.installing import how_to_install_extra
    from sapo_edge.state.durable import reported
    from sapo_edge.tui.node.history import MAX_POINTS
    from sapo_edge.tui.screens.results.picture import draw_run, to_png, to_svg

    if file.suffix.lower() not in (".png", ".svg"):
        raise ConfigError(f"{file} is neither a .png nor a .svg file", "name one, such as report.png")
    history = JournalReader(paths.run_of(report.run.name).journal).history(MAX_POINTS)
    shapes = draw_run(report, report.learned, history)
    data = to_svg(shapes).encode() if file.suffix.lower() == ".svg" else to_png(shapes)
    if data is None:
        raise ConfigError("a PNG file needs matplotlib", f"{how_to_install_extra('experiment')}; or name a .svg file")
    with reported("write", file, "name another file"):
        file.write_bytes(data)
    narrate(f"drawn: {file}")
