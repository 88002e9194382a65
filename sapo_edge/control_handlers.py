"""The methods that a node offers on its control socket, with their parameters checked before the node sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from sapo_edge.control import Handler, History
from sapo_edge.control_protocol import ControlError
from sapo_edge.events import Event
from sapo_edge.journal import Journal
from sapo_edge.person import Given, given_from


class Controlled(Protocol):
    """What a node must offer to be controlled. Called from other threads, several at once; each returns soon."""

    def status(self) -> Mapping[str, Any]:
        """The object of `sapo status --json`, as `docs/control.md` has it."""
        ...

    def peers(self) -> Sequence[Mapping[str, Any]]:
        """One object for each connected peer."""
        ...

    def pause(self) -> None:
        """Rest between two steps until resumed; it goes on receiving."""
        ...

    def resume(self) -> None:
        """Go on."""
        ...

    def stop_after_round(self) -> None:
        """Finish the round, save, and end."""
        ...

    def stop_at_once(self) -> None:
        """End now; the round in progress is lost."""
        ...

    def live_settings(self) -> Mapping[str, Any]:
        """The settings that may change while it runs, by name."""
        ...

    def set_live(self, name: str, value: str | int | float) -> None:
        """Change one of them.

        Raises:
            ConfigError: if it can't be changed while the node runs, or the value is not allowed.
        """
        ...

    def question(self) -> Mapping[str, Any]:
        """A question for a person: `person.Question.as_dict()`."""
        ...

    def share_answers(self, given: Given) -> Mapping[str, Any]:
        """Verify a person's answers and share them: `person.Verdict.as_dict()`.

        Raises:
            UnknownTaskError: if the question is none of this node's manifest.
        """
        ...


def handlers(node: Controlled) -> dict[str, Handler]:
    """The methods for a `ControlServer`, by name."""
    return {
        "status": lambda params: node.status(),
        "peers": lambda params: {"peers": list(node.peers())},
        "pause": lambda params: _done(node.pause),
        "resume": lambda params: _done(node.resume),
        "stop": lambda params: _stop(node, params),
        "settings": lambda params: _settings(node, params),
        "question": lambda params: node.question(),
        "share_answers": lambda params: node.share_answers(given_from(params)),
    }


def journal_history(journal: Journal) -> History:
    """Past events from the journal, for a `ControlServer`; thread-safe as the journal is."""

    def history(count: int) -> list[Event]:
        tables: list[list[Event]] = [
            list(journal.rounds(count)),
            list(journal.held_out(count)),
            [event for _, event in journal.events(count)],
        ]
        found = sorted((event for table in tables for event in table), key=lambda event: event.time)
        return found[-count:]

    return history


def _done(action: Callable[[], None]) -> object:
    action()
    return {}


def _stop(node: Controlled, params: Mapping[str, Any]) -> object:
    when = params.get("when", "after_round")
    if when == "after_round":
        node.stop_after_round()
    elif when == "at_once":
        node.stop_at_once()
    else:
        raise ControlError("when is not a time to stop", "give after_round or at_once", "bad_request")
    return {}


def _settings(node: Controlled, params: Mapping[str, Any]) -> object:
    for name, value in params.items():
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ControlError(f"the value of {name[:40]!r} is neither text nor number", "give one", "bad_request")
        node.set_live(name, value)
    return {"settings": dict(node.live_settings())}
