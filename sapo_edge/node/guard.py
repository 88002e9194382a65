"""The node's use of `balance.py`: its state is in the journal, and the user is told of each change."""

from __future__ import annotations

from collections.abc import Mapping

from sapo_edge.config.settings import Settings
from sapo_edge.control.event_words import format_share
from sapo_edge.events import HeldOut, Notice
from sapo_edge.node.balance import rebalanced
from sapo_edge.state.checkpoint import Checkpoint
from sapo_edge.state.journal import Journal

HALVINGS = "guard_halvings"
"""The journal's counter for how often J is halved."""
STEADY = "guard_steady"
"""The journal's counter for evaluations in a row without a fall."""


class Guard:
    """Takes fewer external rollouts while the accuracy on the validation set falls; the journal holds this state."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._halvings = journal.counter(HALVINGS)

    def external(self, settings: Settings) -> int:
        """J of the next round; `settings.external` unless it is reduced: then 4, 2, 1, 0."""
        return settings.external >> self._halvings if settings.protect == "on" else settings.external

    def judge(
        self, event: HeldOut, settings: Settings, best: Checkpoint | None
    ) -> tuple[Mapping[str, int], Notice | None]:
        """Judge an evaluation that the journal does not have yet, beside the best checkpoint so far.

        Returns what it changes: counters of the journal, and a notice if the number of external rollouts changes.
        """
        if settings.protect == "off" or settings.network == "solo":
            return {}, None
        compared, earlier = self._journal.best_held_out(event.asked)
        before, took = self.external(settings), self._journal.external_since_evaluation(event.split)
        best_answers, steady = "" if earlier is None else earlier.answers, self._journal.counter(STEADY)
        self._halvings, steady = rebalanced(
            settings.external, self._halvings, steady, event.answers, best_answers, compared, took > 0
        )
        now = self.external(settings)
        text = ""
        if now < before and earlier is not None:
            fall = f"validation accuracy fell from {format_share(earlier.accuracy)} to {format_share(event.accuracy)}"
            share = f"up to {took} of {settings.own + settings.external} rollouts in each update came from peers"
            text = f"{fall} while {share}: taking {now or 'none'} from now on{_way_back(event, best)}"
        elif now > before:
            text = f"validation accuracy holds: taking up to {now} of {settings.external} rollouts from peers again"
        notice = Notice(level="warning" if now < before else "info", text=text) if text else None
        return {HALVINGS: self._halvings, STEADY: steady}, notice


def _way_back(event: HeldOut, best: Checkpoint | None) -> str:
    """How to return to the best checkpoint, if there is a better one than that of this evaluation."""
    if best is None or best.round >= event.round or (best.accuracy or 0.0) <= event.accuracy:
        return ""
    return f"; `sapo rollback` returns to round {best.round}, the best checkpoint so far"
