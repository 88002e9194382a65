"""The methods that a node offers on its control socket, with their parameters checked before the node sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast, get_args

from sapo_edge.config.settings import SETTINGS
from sapo_edge.control.journal_view import Origin, RolloutQuery
from sapo_edge.control.protocol import ControlError
from sapo_edge.control.server import Handler, History
from sapo_edge.events import Event
from sapo_edge.person import Given, given_from
from sapo_edge.rollout import MAX_INTEGER, MAX_NAME_BYTES
from sapo_edge.state.journal import Journal

DEFAULT_POINTS = 400
"""Points of a history if nothing else is asked for."""
POINTS = (10, 1000)
"""Fewest and most of them."""
DEFAULT_ROLLOUTS = 20
"""Rollouts of a reply if nothing else is asked for."""
MAX_ROLLOUTS = 50
"""Most rollouts of one reply."""
MAX_SEARCH_CHARACTERS = 200
"""Longest text that is searched for."""


class Controlled(Protocol):
    """What a node must offer to be controlled. Called from other threads, several at once; each returns soon."""

    def status(self) -> Mapping[str, Any]:
        """The object of `sapo status --json`, as `docs/control.md` has it."""
        ...

    def peers(self) -> Sequence[Mapping[str, Any]]:
        """One object for each connected peer."""
        ...

    def history(self, points: int) -> Mapping[str, Any]:
        """The course of the whole run, in at most so many points."""
        ...

    def rollouts(self, query: RolloutQuery) -> Mapping[str, Any]:
        """Rollouts, newest first, and from where to go on."""
        ...

    def rollout(self, round: int, position: int) -> Mapping[str, Any] | None:
        """One rollout with all its answers; None if there is none."""
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

    def all_settings(self) -> Mapping[str, Any]:
        """Every setting by name, as the node has it now."""
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
        "history": lambda params: node.history(_points(params)),
        "rollouts": lambda params: node.rollouts(_query(params)),
        "rollout": lambda params: _rollout(node, params),
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


def _points(params: Mapping[str, Any]) -> int:
    _only(params, "points")
    return _integer("points", params.get("points", DEFAULT_POINTS), *POINTS)


def _query(params: Mapping[str, Any]) -> RolloutQuery:
    _only(params, "limit", "before", "origin", "author", "informative", "search", "entry")
    limit = _integer("limit", params.get("limit", DEFAULT_ROLLOUTS), 1, MAX_ROLLOUTS)
    before: tuple[int, int] | None = None
    match params.get("before"):
        case None:
            pass
        case [round, position]:
            before = (_integer("before", round, 0, MAX_INTEGER), _integer("before", position, 0, MAX_INTEGER))
        case _:
            raise _bad("before", "give [round, position], or null")
    origin, informative = params.get("origin", "any"), params.get("informative")
    if not isinstance(origin, str) or origin not in get_args(Origin):
        raise _bad("origin", "give any, own or external")
    if informative is not None and not isinstance(informative, bool):
        raise _bad("informative", "give true, false or null")
    author = None if params.get("author") is None else _text("author", params["author"], MAX_NAME_BYTES)
    search = _text("search", params.get("search", ""), MAX_SEARCH_CHARACTERS)
    entry = None if params.get("entry") is None else _text("entry", params["entry"], MAX_NAME_BYTES)
    return RolloutQuery(limit, before, cast(Origin, origin), author, informative, search, entry)


def _rollout(node: Controlled, params: Mapping[str, Any]) -> object:
    _only(params, "round", "position")
    round, position = (_integer(name, params.get(name), 0, MAX_INTEGER) for name in ("round", "position"))
    found = node.rollout(round, position)
    if found is None:
        raise ControlError("that rollout is not kept (any more)", "ask for `rollouts` again")
    return found


def _only(params: Mapping[str, Any], *known: str) -> None:
    """Refuse parameters of another name: one that was left out of a question would change its answer."""
    for name in params:
        if name not in known:
            raise _bad(name[:40], f"give {', '.join(known)} alone")


def _integer(name: str, value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _bad(name, f"give an integer from {low} to {high}")
    return value


def _text(name: str, value: object, longest: int) -> str:
    if not isinstance(value, str) or len(value) > longest:
        raise _bad(name, f"give a text of at most {longest} characters")
    return value


def _bad(name: str, remedy: str) -> ControlError:
    return ControlError(f"{name} is not as it should be", remedy, "bad_request")


def _settings(node: Controlled, params: Mapping[str, Any]) -> object:
    for name, value in params.items():
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ControlError(f"the value of {name[:40]!r} is neither text nor number", "give one", "bad_request")
        node.set_live(name, value)
    values = node.all_settings()
    return {"settings": {name: value for name, value in values.items() if SETTINGS[name].live}, "all": dict(values)}
