"""The methods of the control socket: which parameters they accept, and what they ask of the node."""

from __future__ import annotations

from typing import Any

import pytest

from sapo_edge.control.journal_view import RolloutQuery
from sapo_edge.control.protocol import ControlError
from sapo_edge.errors import ConfigError
from sapo_edge.node.methods import handlers
from tests.cli.inprocess import FakeNode


def test_methods_check_their_parameters() -> None:
    node = FakeNode({"v": 1, "round": 3}, [{"name": "amber-otter-041"}])
    methods = handlers(node)
    assert methods["status"]({}) == {"v": 1, "round": 3}
    assert methods["peers"]({}) == {"peers": [{"name": "amber-otter-041"}]}
    for method, params in (("pause", {}), ("resume", {}), ("stop", {}), ("stop", {"when": "at_once"})):
        assert methods[method](params) == {}
    assert node.requests == ["pause", "resume", "after_round", "at_once"]
    assert methods["settings"]({}) == {"settings": {"own": 4}, "all": {"rank": 16, "own": 4}}
    assert methods["settings"]({"own": 8}) == {"settings": {"own": 8}, "all": {"rank": 16, "own": 8}}
    assert methods["rollback"]({}) == methods["rollback"]({"round": None}) == {"from": 50, "to": 40}
    assert methods["rollback"]({"round": 7}) == {"from": 50, "to": 7}
    assert node.requests[4:] == ["rollback None", "rollback None", "rollback 7"]
    with pytest.raises(ConfigError, match="can't change"):
        methods["settings"]({"rank": 4})
    good = {"ref": ["sums", "1", 1, 2], "answers": ["x"], "manifest": "0" * 64}
    for name, value in (
        ("ref", ["sums", "1", -1, 2]), ("ref", None), ("ref", [1]), ("answers", []), ("answers", ["x"] * 33),
        ("answers", [1]), ("answers", ["x" * 9000]), ("answers", ["\ud800"]), ("manifest", 1),
    ):  # fmt: skip
        with pytest.raises(ConfigError):
            methods["share_answers"]({**good, name: value})
    assert node.answers == []


def test_queries_reach_the_node_as_they_were_sent() -> None:
    node = FakeNode()
    methods = handlers(node)
    methods["history"]({})
    methods["history"]({"points": 10})
    methods["rollouts"]({})
    methods["rollouts"]({
        "limit": 50, "before": [3, 4], "origin": "external", "author": "peer", "informative": False, "search": "50%",
    })  # fmt: skip
    methods["rollouts"]({"before": None, "author": None, "informative": None, "search": ""})
    assert methods["rollout"]({"round": 7, "position": 0}) == {"round": 7, "position": 0}
    with pytest.raises(ControlError, match="not kept") as missing:
        methods["rollout"]({"round": 0, "position": 9})
    assert missing.value.code == "failed"
    assert node.queries == [
        400, 10, RolloutQuery(), RolloutQuery(50, (3, 4), "external", "peer", False, "50%"), RolloutQuery(), (7, 0),
        (0, 9),
    ]  # fmt: skip


WRONG: dict[tuple[str, str], tuple[Any, ...]] = {
    ("history", "points"): (9, 1001, True, 10.0, "10", None, [], -1, 10**30),
    ("rollouts", "limit"): (0, 51, True, 1.5, "1", None),
    ("rollouts", "before"): (
        1, [], [1], [1, 2, 3], [1, -1], [1, True], [1, None], "12", {"0": 1, "1": 2}, [1, 2**63], [1.0, 2],
    ),
    ("rollouts", "origin"): ("mine", None, 1, ["own"], {}),
    ("rollouts", "author"): (1, [], "x" * 129, True),
    ("rollouts", "informative"): (0, 1, "true", []),
    ("rollouts", "entry"): (1, [], "x" * 129, True),
    ("rollouts", "search"): (None, 1, "x" * 201, ["x"]),
}  # fmt: skip
MALFORMED: list[tuple[str, dict[str, Any]]] = [
    *((method, {name: value}) for (method, name), values in WRONG.items() for value in values),
    ("history", {"point": 10}), ("stop", {"when": []}), ("settings", {"own": [1]}),
    *(("rollback", params) for params in ({"round": -1}, {"round": "7"}, {"round": True}, {"to": 7})),
    ("rollouts", {"order": "oldest"}),
    ("rollout", {}), ("rollout", {"round": 1}), ("rollout", {"round": 1, "position": "0"}),
    ("rollout", {"round": -1, "position": 0}), ("rollout", {"round": 1, "position": 0, "limit": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("method", "params"), MALFORMED)
def test_malformed_requests_are_rejected(method: str, params: dict[str, Any]) -> None:
    node = FakeNode()
    with pytest.raises(ControlError) as error:
        handlers(node)[method](params)
    assert error.value.code == "bad_request" and error.value.remedy and node.queries == node.requests == []
