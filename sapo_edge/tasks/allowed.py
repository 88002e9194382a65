"""The allow-list: which generators a manifest may name, and the bounds of their settings.

A manifest may come from a stranger, so everything that is not listed here is rejected: generators, settings, and values
that would make a task expensive. Defaults are ReasoningGYM's own (0.1.25); they serve to compare a minimum with a
maximum when a manifest gives only one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from sapo_edge.errors import ManifestError
from sapo_edge.plain import did_you_mean

ConfigValue: TypeAlias = bool | int | float | str | tuple[str, ...]

_SHOWN = 64


@dataclass(frozen=True, slots=True)
class Integer:
    """An integer from `low` to `high`."""

    low: int
    high: int
    default: int

    def check(self, where: str, value: object) -> int:
        remedy = f"write an integer from {self.low} to {self.high}"
        if isinstance(value, bool) or not isinstance(value, int):
            raise ManifestError(f"{where} is not an integer", remedy)
        if not self.low <= value <= self.high:
            raise ManifestError(f"{where} is out of bounds", remedy)
        return value


@dataclass(frozen=True, slots=True)
class Real:
    """A finite number from `low` to `high`; integers become floats, so that 1 and 1.0 give the same digest."""

    low: float
    high: float
    default: float

    def check(self, where: str, value: object) -> float:
        remedy = f"write a number from {self.low:g} to {self.high:g}"
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ManifestError(f"{where} is not a number", remedy)
        if not self.low <= value <= self.high:
            raise ManifestError(f"{where} is out of bounds", remedy)
        return float(value)


@dataclass(frozen=True, slots=True)
class Flag:
    default: bool

    def check(self, where: str, value: object) -> bool:
        if not isinstance(value, bool):
            raise ManifestError(f"{where} is not a boolean", "write true or false")
        return value


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several texts."""

    options: tuple[str, ...]
    default: str

    def check(self, where: str, value: object) -> str:
        if not isinstance(value, str) or value not in self.options:
            raise ManifestError(f"{where} has a value that is not allowed", f"choose one of {', '.join(self.options)}")
        return value


@dataclass(frozen=True, slots=True)
class Choices:
    """A list of at least one of several texts, each once; the default is all of them, or the first few."""

    options: tuple[str, ...]
    first: int | None = None

    @property
    def default(self) -> tuple[str, ...]:
        return self.options[: self.first]

    def check(self, where: str, value: object) -> tuple[str, ...]:
        remedy = f"list some of {', '.join(self.options)}, each once"
        if not isinstance(value, list | tuple) or not 1 <= len(value) <= len(self.options):
            raise ManifestError(f"{where} is not a list of 1 to {len(self.options)} texts", remedy)
        texts = tuple(item for item in value if isinstance(item, str) and item in self.options)
        if len(texts) != len(value) or len(set(texts)) != len(texts):
            raise ManifestError(f"{where} has an item that is not allowed, or one twice", remedy)
        return texts


Bound: TypeAlias = Integer | Real | Flag | Choice | Choices


def _between(name: str, low: int, high: int, defaults: tuple[int, int]) -> dict[str, Bound]:
    return {f"min_{name}": Integer(low, high, defaults[0]), f"max_{name}": Integer(low, high, defaults[1])}


_CALENDAR_TASKS = (
    "weekday_offset", "weekday_of_date", "weekday_of_date_from_first_date", "recurring_event_day",
    "count_days", "count_business_days", "is_leap_year",
)  # fmt: skip

ALLOWED: Mapping[str, Mapping[str, Bound]] = {
    "arc_1d": {
        # From size 44 on, one of its puzzles may need a tenth colour of nine and loops forever.
        **_between("size", 10, 30, (10, 30)),
        "num_train": Integer(1, 5, 3),
    },
    "base_conversion": {**_between("base", 2, 36, (2, 16)), **_between("value", 0, 10**12, (0, 1000))},
    "basic_arithmetic": {
        **_between("terms", 1, 8, (2, 6)),
        **_between("digits", 1, 4, (1, 4)),
        "operators": Choices(("+", "-", "*", "/")),
        "allow_parentheses": Flag(True),
        "allow_negation": Flag(True),
        "format_style": Choice(("simple", "natural"), "simple"),
        "whitespace": Choice(("no_space", "single", "random"), "single"),
    },
    # At difficulty 2 a task can take half a second; at 3 some compare 8-bit cells with numbers above 255 forever.
    "bf": {},
    "binary_alternation": {**_between("n", 1, 60, (10, 30)), "p_solvable": Real(0.0, 1.0, 0.8)},
    "binary_matrix": {**_between("n", 1, 12, (3, 10)), "p_zero": Real(0.01, 1.0, 0.25)},
    "bitwise_arithmetic": {"difficulty": Integer(1, 3, 2)},
    "caesar_cipher": {**_between("words", 3, 20, (3, 20)), **_between("rotation", 1, 25, (1, 25))},
    "calendar_arithmetic": {
        "year": Integer(1900, 2100, 2022),
        "tasks": Choices(_CALENDAR_TASKS),
        "offset_upper_bound": Integer(1, 1000, 100),
        "leap_year_range": Integer(2, 1000, 200),
    },
    "chain_sum": {
        **_between("terms", 1, 12, (2, 6)),
        **_between("digits", 1, 12, (1, 4)),
        "allow_negation": Flag(False),
    },
    "count_bits": _between("n", 1, 2**53, (1, 2**31 - 1)),
    "count_primes": _between("n", 1, 10_000, (1, 10_000)),
    "decimal_arithmetic": {
        **_between("num_decimal_places", 1, 6, (3, 3)),
        **_between("terms", 2, 8, (2, 6)),
        "precision": Integer(8, 28, 12),
    },
    "decimal_chain_sum": {
        **_between("terms", 1, 12, (2, 6)),
        **_between("digits", 1, 8, (1, 4)),
        **_between("decimal_places", 0, 6, (1, 4)),
        "allow_negation": Flag(False),
    },
    "extract": {"kinds": Choices(("appointment", "complaint", "invitation", "invoice", "notice", "order", "request"))},
    "fraction_simplification": {
        **_between("value", 1, 10**6, (1, 1000)),
        **_between("factor", 1, 10**4, (1, 100)),
        "styles": Choices(("plain", "latex_inline", "latex_frac", "latex_dfrac")),
    },
    "gcd": {**_between("numbers", 2, 8, (2, 2)), **_between("value", 1, 10**9, (1, 1000))},
    "home": {"languages": Choices(("en", "de", "fr", "es", "pt"), first=1)},
    "lcm": {**_between("numbers", 2, 6, (2, 2)), **_between("value", 1, 10**6, (1, 100))},
    "leg_counting": {**_between("animals", 1, 20, (3, 10)), **_between("instances", 1, 50, (1, 15))},
    "letter_counting": _between("words", 1, 60, (5, 15)),
    "number_filtering": {
        **_between("numbers", 1, 20, (3, 10)),
        **_between("decimals", 0, 6, (0, 4)),
        "min_value": Real(-1e6, 1e6, -100.0),
        "max_value": Real(-1e6, 1e6, 100.0),
    },
    "prime_factorization": _between("value", 2, 10**6, (2, 1000)),
    "products": {
        **_between("terms", 1, 6, (2, 2)),
        **_between("digits", 1, 8, (1, 5)),
        "allow_negation": Flag(False),
    },
    "propositional_logic": {
        **_between("vars", 1, 5, (2, 4)),
        **_between("statements", 1, 5, (2, 4)),
        **_between("complexity", 1, 4, (1, 3)),
    },
    "rotate_matrix": {**_between("n", 2, 12, (2, 10)), **_between("rotations", 0, 10, (0, 10))},
    "spell_backward": _between("word_len", 3, 10, (3, 10)),
    "tools": {},
    "word_sequence_reversal": _between("words", 1, 20, (3, 8)),
    "word_sorting": {**_between("words", 1, 20, (3, 10)), **_between("word_length", 1, 12, (3, 12))},
}
"""Generators by name, each with the settings that a manifest may give it: no seeds, no sizes, no file names."""

_STRICTLY_BETWEEN: Mapping[str, frozenset[str]] = {
    "base_conversion": frozenset({"base", "value"}),  # with one base, the generator looks for a second one forever
    "fraction_simplification": frozenset({"value"}),
    "gcd": frozenset({"value"}),
    "lcm": frozenset({"value"}),
    "number_filtering": frozenset({"value"}),
}

EVALUATING = frozenset(
    {
        "codeio", "countdown", "intermediate_integration", "n_queens", "number_sorting", "polynomial_multiplication",
        "puzzle24", "simple_integration", "spiral_matrix", "string_insertion",
    }
)  # fmt: skip
"""Generators of ReasoningGYM that evaluate text as code, most of them the answer."""

IRREPRODUCIBLE: Mapping[str, str] = {
    "isomorphic_strings": "its questions depend on Python's hash seed, which differs between nodes",
    "ransom_note": "its questions depend on Python's hash seed, which differs between nodes",
    "power_function": "the last digit of its ground truth depends on the C library",
    "simple_equations": "its questions depend on the version of sympy",
    "time_intervals": "its questions depend on the current day",
}
"""Generators whose tasks a peer can't regenerate from seed and index, with the reason."""


def shorten(key: object) -> str:
    """An untrusted key as a message may show it: printable and short."""
    text = str(key)
    return text if text.isprintable() and len(text) <= _SHOWN else repr(text[:_SHOWN])


def nearest(name: str, options: Iterable[str]) -> str:
    """A remedy that names the nearest match of a mistyped name, or all options."""
    options = sorted(options)
    return did_you_mean(name, options, f"choose one of {', '.join(options)}" if options else "leave it out")


def check_generator(name: str) -> None:
    """A ManifestError if the name is not on the allow-list, with the reason if there is a special one."""
    if name in ALLOWED:
        return
    remedy = nearest(name, ALLOWED)
    if name in EVALUATING:
        raise ManifestError(f"generator {name} evaluates text as code and never runs here", remedy)
    if name in IRREPRODUCIBLE:
        raise ManifestError(f"generator {name} can't be verified by others: {IRREPRODUCIBLE[name]}", remedy)
    raise ManifestError(f"generator {name} is not on the allow-list", remedy)


def check_config(where: str, generator: str, config: Mapping[str, object]) -> dict[str, ConfigValue]:
    """The settings of an allowed generator, checked and in canonical form: sorted, each with its own type."""
    bounds = ALLOWED[generator]
    for key in config:
        if key not in bounds:
            raise ManifestError(f"{where}: {generator} has no setting {shorten(key)}", nearest(str(key), bounds))
    checked = {key: bounds[key].check(f"{where}: {key}", config[key]) for key in sorted(config)}
    _check_order(where, generator, checked)
    if generator == "basic_arithmetic" and checked.get("allow_parentheses") is False:
        operators = checked.get("operators", bounds["operators"].default)
        # The library reckons from left to right, and asks for another quotient than it divided by.
        if operators != ("*",) and not {"+", "-"}.issuperset(operators):  # type: ignore[arg-type]
            what = "without parentheses the library's answers are wrong with these operators"
            raise ManifestError(f"{where}: {what}", 'list of "+" and "-", or "*" alone; or allow parentheses')
    return checked


def _check_order(where: str, generator: str, config: Mapping[str, ConfigValue]) -> None:
    bounds = ALLOWED[generator]
    strict = _STRICTLY_BETWEEN.get(generator, frozenset())
    for key in bounds:
        name = key.removeprefix("min_")
        if name == key:
            continue
        low = config.get(f"min_{name}", bounds[f"min_{name}"].default)
        high = config.get(f"max_{name}", bounds[f"max_{name}"].default)
        assert isinstance(low, int | float) and isinstance(high, int | float)
        if low > high or (low == high and name in strict):
            relation = "below" if name in strict else "at most"
            raise ManifestError(
                f"{where}: min_{name} is {low:g} and max_{name} is {high:g}", f"keep min_{name} {relation} max_{name}"
            )
