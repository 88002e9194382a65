from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapo_edge.tasks.objects import MAX_CHARACTERS, MAX_DEPTH, MAX_VALUES, field_share, parse_object, same
from tests.defences.defence import fails_without

CALL = {"intent": "LightSet", "name": "bedroom lamp", "brightness": 40}

_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**15) + 1, 10**15 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("text", [
    "", "40", "[1]", '"{}"', "null", '{"a": 1} {"a": 1}', '{"a": 1} and more', "{'a': 1}", '{"a": 1,}', '{"a": NaN}',
    '{"a": -Infinity}', '{"a": 1e999}', '{"a": 1, "a": 1}', '{"b": {"a": 1, "a": 2}}', '{"a": ' + "9" * 16 + "}",
    '{"a": -' + "9" * 4000 + "}", '{"a": "\\ud800"}', '{"\\udfff": 1}', '{"a": "\ud800"}',
    '{"a": "' + "x" * MAX_CHARACTERS + '"}', '{"a":' * 800 + "1" + "}" * 800, '{"a":' + "[" * 2000,
    '{"a": ' + "[" * MAX_DEPTH + "]" * MAX_DEPTH + "}", json.dumps({str(key): 0 for key in range(MAX_VALUES + 1)}),
    '{"a": [' + "0," * MAX_VALUES + "0]}", '{"a": __import__("os")}', "\ufeff{}",
])  # fmt: skip
def test_what_is_not_one_bounded_json_object_is_refused(text: str) -> None:
    assert parse_object(text) is None


def test_an_object_within_the_bounds_is_parsed() -> None:
    assert parse_object(" \n" + json.dumps(CALL, indent=4) + "\t") == CALL
    assert parse_object('{"a": ' + "[" * (MAX_DEPTH - 2) + "]" * (MAX_DEPTH - 2) + "}") is not None
    assert parse_object('{"a": "\\ud83d\\ude00"}') == {"a": "\N{GRINNING FACE}"}
    assert parse_object("{}") == {}


@given(st.text(alphabet='{}[]",:0e-\\u d8', max_size=200) | st.text(max_size=200))
def test_no_text_raises(text: str) -> None:
    parse_object(text)


@given(st.dictionaries(st.text(), _values, max_size=4), st.dictionaries(st.text(), _values, max_size=4))
def test_the_share_is_one_exactly_for_the_same_object(expected: dict[str, object], given: dict[str, object]) -> None:
    share = field_share(expected, given)
    assert 0.0 <= share <= 1.0
    assert (share == 1.0) == same(expected, given)
    assert share == field_share(given, expected)
    back = parse_object(json.dumps(expected))
    assert back is None or (same(expected, back) and field_share(expected, back) == 1.0)


@pytest.mark.parametrize("text", [
    '{"brightness": 40, "intent": "LightSet", "name": "bedroom lamp"}',
    '{"intent":"lightset","name":" Bedroom\\n lamp ","brightness":40.0}',
    '{"intent":"LightSet","name":"bedroom lamp","brightness":4e1}',
])  # fmt: skip
def test_order_case_white_space_and_the_form_of_numbers_do_not_matter(text: str) -> None:
    given = parse_object(text)
    assert given is not None and same(CALL, given)
    assert field_share(CALL, given) == 1.0


@pytest.mark.parametrize(("given", "share"), [
    ({}, 0), ({"intent": "LightSet"}, 1 / 3), ({**CALL, "brightness": 41}, 2 / 3),
    ({**CALL, "brightness": "40"}, 2 / 3), ({**CALL, "brightness": True}, 2 / 3), ({**CALL, "area": "hall"}, 3 / 4),
    ({**CALL, **{str(key): key for key in range(97)}}, 3 / 100),
])  # fmt: skip
def test_missing_wrong_and_extra_fields_cost(given: dict[str, object], share: float) -> None:
    assert not same(CALL, given) and field_share(CALL, given) == pytest.approx(share)


@fails_without("tasks/objects.py", "len(expected) == len(given) and ")
def test_truth_is_no_number_and_an_accent_may_be_composed() -> None:
    unlike = ((1, True), (0, False), (None, False), ([1, 2], [2, 1]), ([1, 2], [1]), ([1], [1, 2]), ([1], list[int]()))
    assert not any(same(one, other) for one, other in unlike)
    assert same("caf\N{LATIN SMALL LETTER E WITH ACUTE}", "CAFE\N{COMBINING ACUTE ACCENT}")
    assert same({"a": [{"b": 1.5}]}, {"a": [{"b": 1.6}]}, tolerance=0.11)
    tenth, more = parse_object('{"t": 20.1}'), parse_object('{"t": 20.11}')
    assert same({"t": 20.0}, tenth, tolerance=0.1) and not same({"t": 20.0}, more, tolerance=0.1), "by decimals"
    expected = {"call": {"name": "get", "arguments": {"city": "Rome", "days": 3}}}
    assert field_share(expected, {"call": {"name": "get", "arguments": {"city": "Rome", "days": 4}}}) == 2 / 3
    assert field_share(expected, {"call": {}}) == 0


def test_the_longest_text_takes_little_time() -> None:
    texts = ['{"a":"' + "\\u0130" * 680 + '"}', "{" * MAX_CHARACTERS, " " * MAX_CHARACTERS, '{"a":' + "1" * 4000 + "}"]
    start = time.process_time()
    for text in texts:
        value = parse_object(text)
        assert value is None or same(value, value)
    assert time.process_time() - start < 0.1
