"""JSON objects in answers: parsed within bounds, compared by content. Nothing is evaluated."""

from __future__ import annotations

import decimal
import json
import math
import unicodedata
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, NoReturn

MAX_CHARACTERS = 4096
MAX_VALUES = 256
"""Most values of an object, nested ones included; also most opening brackets in its text, those in strings included."""
MAX_DEPTH = 8
_MAX_DIGITS = 15
"""Longest integer: all of them are exact as floats, too."""
# More digits than two such numbers of like size have; where they differ in size, no tolerance is near the difference.
_DIGITS = 128


def parse_object(text: str) -> dict[str, Any] | None:
    """The JSON object that the text is, white space around it aside; None if it is anything else.

    Refuses what JSON leaves open or Python adds: repeated keys, NaN and infinities, integers of more than 15 digits,
    numbers beyond a float's range, lone surrogates; and what exceeds the bounds above. Takes time linear in the text.
    """
    # Counting the brackets bounds how deep the parser recurses.
    if len(text) > MAX_CHARACTERS or text.count("{") + text.count("[") > MAX_VALUES:
        return None
    try:
        value = json.loads(
            text, object_pairs_hook=_without_repetitions, parse_constant=_refuse, parse_float=_finite, parse_int=_short
        )
    except ValueError:
        return None
    return value if isinstance(value, dict) and _is_bounded(value) else None


def same(expected: object, given: object, tolerance: float = 0.0) -> bool:
    """Whether two values of JSON mean the same.

    Keys may have any order; items of a list have theirs. Numbers are equal if they differ by at most `tolerance`;
    strings by their letters, whatever their case and white space. True is no number, and "20" is none either.
    """
    if isinstance(expected, Mapping) and isinstance(given, Mapping):
        return expected.keys() == given.keys() and all(same(expected[key], given[key], tolerance) for key in expected)
    if isinstance(expected, list | tuple) and isinstance(given, list | tuple):
        return len(expected) == len(given) and all(map(same, expected, given, [tolerance] * len(given)))
    if isinstance(expected, str) and isinstance(given, str):
        return _fold(expected) == _fold(given)
    if _is_number(expected) and _is_number(given):
        return expected == given or is_near(Decimal(repr(expected)), Decimal(repr(given)), tolerance)
    return type(expected) is type(given) and expected == given


def field_share(expected: Mapping[str, Any], given: Mapping[str, Any], tolerance: float = 0.0) -> float:
    """The share of fields that are right, in [0, 1]: 1 exactly if both are the `same`.

    Counts over all fields that either has, so missing ones and extra ones cost alike. A field of a nested object counts
    by itself; a list counts as one.
    """
    wanted, found = dict(_leaves(expected)), dict(_leaves(given))
    fields = wanted.keys() | found.keys()
    right = sum(same(wanted[path], found[path], tolerance) for path in wanted.keys() & found.keys())
    return right / len(fields) if fields else 1.0


def is_near(expected: Decimal, given: Decimal, tolerance: float) -> bool:
    # `repr`: a tolerance of 0.3 is three tenths, not the nearest binary fraction below.
    return abs(context().subtract(given, expected)) <= Decimal(repr(tolerance))


def context() -> decimal.Context:
    return decimal.Context(prec=_DIGITS, rounding=decimal.ROUND_HALF_EVEN, traps=[decimal.InvalidOperation])


def _leaves(value: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    if isinstance(value, Mapping) and (value or not path):
        for key in value:
            yield from _leaves(value[key], (*path, key))
    else:
        yield path, value


def _without_repetitions(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a key stands twice")
    return table


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("the number is too large")
    return number


def _short(text: str) -> int:
    if len(text.removeprefix("-")) > _MAX_DIGITS:
        raise ValueError("the integer is too long")
    return int(text)


def _is_bounded(value: object) -> bool:
    layer, count = [value], 0
    for _ in range(MAX_DEPTH):
        below: list[object] = []
        for item in layer:
            if isinstance(item, dict):
                if not all(map(_is_text, item)):
                    return False
                below += item.values()
            elif isinstance(item, list):
                below += item
            elif isinstance(item, str) and not _is_text(item):
                return False
        count += len(below)
        if count > MAX_VALUES:
            return False
        layer = below
    return not layer


def _is_text(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _fold(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())
