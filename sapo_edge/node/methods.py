"""The methods of a node's control socket: each checks its parameters and calls `NodeControl`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast, get_args

from sapo_edge.config.settings import SETTINGS
from sapo_edge.control.journal_view import Origin, RolloutQuery
from sapo_edge.control.protocol import ControlError
from sapo_edge.control.server import Handler
from sapo_edge.node.person import PersonAnswers
from sapo_edge.rollout import MAX_INTEGER, MAX_NAME_BYTES

if TYPE_CHECKING:
    from sapo_edge.node.controlled import NodeControl


def handlers(node: NodeControl) -> dict[str, Handler]:
    """The methods for a `ControlServer`, by name."""
    return {
        "status": lambda params: node.status(),
        "peers": lambda params: {"peers": list(node.peers())},
        "history": lambda params: node.history(_points(params)),
        "rollouts": lambda params: node.rollouts(_query(params)),
        "rollout": lambda params: _rollout(node, params),
        "pause": lambda params: _empty_reply(node.pause),
        "resume": lambda params: _empty_reply(node.resume),
        "stop": lambda params: _stop(node, params),
        "rollback": lambda params: node.roll_back(_rollback_round(params)),
        "settings": lambda params: _settings(node, params),
        "question": lambda params: node.question(),
        "share_answers": lambda params: node.share_answers(PersonAnswers.from_dict(params)),
    }


def _empty_reply(action: Callable[[], None]) -> object:
    action()
    return {}


def _stop(node: NodeControl, params: Mapping[str, Any]) -> object:
    when = params.get("when", "after_round")
    if when == "after_round":
        return _empty_reply(node.stop_after_round)
    if when == "at_once":
        return _empty_reply(node.stop_immediately)
    raise _bad("when", "give after_round or at_once")


def _rollback_round(params: Mapping[str, Any]) -> int | None:
    _allow_only(params, "round")
    return None if params.get("round") is None else _integer("round", params["round"], 0, MAX_INTEGER)


def _settings(node: NodeControl, params: Mapping[str, Any]) -> object:
    for name, value in params.items():
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise _bad(name[:40], "give a text or a number")
    values = node.change_settings(params)
    return {"settings": {name: value for name, value in values.items() if SETTINGS[name].live}, "all": dict(values)}


def _points(params: Mapping[str, Any]) -> int:
    _allow_only(params, "points")
    return _integer("points", params.get("points", 400), 10, 1000)


def _query(params: Mapping[str, Any]) -> RolloutQuery:
    _allow_only(params, "limit", "before", "origin", "author", "informative", "search", "entry", "gave")
    limit = _integer("limit", params.get("limit", 20), 1, 50)
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
    search = _text("search", params.get("search", ""), 200)
    entry = None if params.get("entry") is None else _text("entry", params["entry"], MAX_NAME_BYTES)
    gave = params.get("gave", False)
    if not isinstance(gave, bool):
        raise _bad("gave", "give true or false")
    return RolloutQuery(limit, before, cast(Origin, origin), author, informative, search, entry, gave)


def _rollout(node: NodeControl, params: Mapping[str, Any]) -> object:
    _allow_only(params, "round", "position")
    round, position = (_integer(name, params.get(name), 0, MAX_INTEGER) for name in ("round", "position"))
    rollout = node.rollout(round, position)
    if rollout is None:
        raise ControlError("that rollout is not kept (any more)", "ask for `rollouts` again")
    return rollout


def _allow_only(params: Mapping[str, Any], *allowed: str) -> None:
    """Reject other parameters: ignoring a misspelled one would change the answer."""
    for name in params:
        if name not in allowed:
            raise _bad(name[:40], f"give only {', '.join(allowed)}")


def _integer(name: str, value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _bad(name, f"give an integer from {low} to {high}")
    return value


def _text(name: str, value: object, longest: int) -> str:
    if not isinstance(value, str) or len(value) > longest:
        raise _bad(name, f"give a text of at most {longest} characters")
    return value


def _bad(name: str, remedy: str) -> ControlError:
    return ControlError(f"the parameter {name!r} is not allowed or has a wrong value", remedy, "bad_request")
