"""Checks of decoded values: what passes, and that an error names the field but never quotes the value."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from sapo_edge.fields import check_flag, check_integer, check_list, check_map, check_number, check_text


@pytest.mark.parametrize(("check", "value", "bounds"), [
    (check_text, "", ()), (check_text, "\ud800", ()), (check_text, "éé", (4,)),
    (check_integer, -(10**30), ()), (check_integer, 3, (3, 3)),
    (check_number, 0.5, (0, 1)), (check_number, 1, (0, 1)),
    (check_flag, False, ()), (check_list, [1, 2], ()), (check_map, {}, ()),
])  # fmt: skip
def test_a_value_within_its_bounds_is_returned(check: Callable[..., Any], value: object, bounds: tuple[int]) -> None:
    assert check("field", value, *bounds) == value
    assert isinstance(check_number("field", 1), float)


@pytest.mark.parametrize(("check", "value", "bounds"), [
    (check_text, b"secret", ()), (check_text, None, ()), (check_text, "secret", (5,)), (check_text, "\ud800", (9,)),
    (check_integer, True, ()), (check_integer, 1.0, ()), (check_integer, 2, (3, 5)), (check_integer, 6, (3, 5)),
    (check_number, math.nan, ()), (check_number, math.inf, ()), (check_number, 10**400, ()),
    (check_number, True, ()), (check_number, "secret", ()), (check_number, -0.1, (0, 1)),
    (check_flag, 1, ()), (check_flag, None, ()), (check_list, (1,), ()),
    (check_map, [], ()),
])  # fmt: skip
def test_an_error_names_the_field_not_the_value(check: Callable[..., Any], value: object, bounds: tuple[int]) -> None:
    with pytest.raises(ValueError, match=r"^field ") as caught:
        check("field", value, *bounds)
    assert "secret" not in str(caught.value)
