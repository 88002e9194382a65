"""Checks of decoded values: JSON, msgpack and TOML give any type where the code needs one.

Every check returns the value, or raises a ValueError that names the field and never quotes the value.
"""

from __future__ import annotations

import math
from typing import Any


def check_text(name: str, value: object, max_bytes: int | None = None) -> str:
    """Text; with `max_bytes`, valid Unicode of at most so many bytes in UTF-8."""
    if not isinstance(value, str):
        raise ValueError(f"{name} is not text")
    if max_bytes is not None:
        try:
            size = len(value.encode("utf-8"))
        except UnicodeEncodeError as error:
            raise ValueError(f"{name} is not valid Unicode: {error.reason}") from error
        if size > max_bytes:
            raise ValueError(f"{name} has {size} bytes, more than {max_bytes}")
    return value


def check_integer(name: str, value: object, low: float = -math.inf, high: float = math.inf) -> int:
    """An integer from `low` to `high`; a boolean is none."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{name} is not an integer{_bounds(low, high)}")
    return value


def check_number(name: str, value: object, low: float = -math.inf, high: float = math.inf) -> float:
    """A finite number from `low` to `high`, as a float; a boolean is none."""
    if isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high:
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    raise ValueError(f"{name} is not a finite number{_bounds(low, high)}")


def check_flag(name: str, value: object) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} is not true or false")
    return value


def check_list(name: str, value: object) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{name} is not a list")
    return value


def check_map(name: str, value: object) -> dict[str, Any]:
    """A map; its keys are text in JSON and TOML."""
    if not isinstance(value, dict):
        raise ValueError(f"{name} is not a map")
    return value


def _bounds(low: float, high: float) -> str:
    if low == -math.inf:
        return "" if high == math.inf else f" of at most {high}"
    return f" of at least {low}" if high == math.inf else f" from {low} to {high}"
