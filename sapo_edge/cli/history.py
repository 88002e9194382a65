"""`sapo history`: every round of a run as CSV, whether or not a node runs."""

from __future__ import annotations

import csv
import sys
from datetime import UTC, datetime
from pathlib import Path

from sapo_edge.cli.options import Home
from sapo_edge.errors import NoNodeError
from sapo_edge.state.paths import Paths

COLUMNS = (
    "round", "time", "reward_own", "reward_external", "groups", "informative", "own", "external", "shared", "received",
    "tokens", "seconds_generate", "seconds_update", "held_out", "held_out_questions",
    "question_set",
)  # fmt: skip
"""The columns. `held_out` is the validation accuracy after that round, then number and mark of the questions; all three
are empty without an evaluation. Only accuracies with the same number and mark can be compared."""


def history(home: Home = None) -> None:
    """Print every round of the run as CSV."""
    from sapo_edge.control.journal_view import JournalReader

    journal = Paths.default(home).journal
    check_has_run(journal)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(COLUMNS)
    for event, evaluation in JournalReader(journal).rounds():
        moment = datetime.fromtimestamp(event.time, UTC).isoformat(timespec="seconds")
        figures = [getattr(event, name) for name in COLUMNS[2:-3]]
        writer.writerow([event.round, moment, *figures, *(evaluation or ("", "", ""))])


def check_has_run(journal: Path) -> None:
    """Check that a run has begun.

    Raises:
        NoNodeError: if it has not.
    """
    if not journal.exists():
        raise NoNodeError("no node has run here yet", "start one with `sapo run`")
