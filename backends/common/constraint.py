"""Answers that obey a JSON schema: before a token is drawn, llguidance says which ones can still lead to one.

Constrained decoding, as in Willard and Louf (arXiv 2307.09702). llguidance's README says what it takes of JSON Schema.
"""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sapo_edge.errors import BackendError, ModelError
from sapo_edge.installing import how_to_install

if TYPE_CHECKING:
    from sapo_edge.backends.model.vocabularies import Vocabulary

MAX_SCHEMA_BYTES = 16 * 1024
"""Longest schema, as JSON in UTF-8: one of this size compiles in a fraction of a second."""
KEPT = 16
"""Compiled schemas that are kept: programs ask with the same one again and again."""
WRITTEN = {"whitespace_flexible": True, "whitespace_pattern": "[ ]?"}
"""At most one space where JSON takes any: a small model would write spaces and line ends up to the token limit."""
LARGEST = 2**53 - 1
"""Bound of integers that have none of their own, as of those that other programs read exactly (RFC 8259, 6): a small
model may write digits up to the token limit."""
LARGEST_MULTIPLE = 10_000
"""Bound of the least common multiple of all `multipleOf` in a schema, without zeros at their ends: llguidance keeps a
state for each remainder, and has no bound of its own for that."""
_DATA = frozenset({"enum", "const", "default", "examples"})
_MULTIPLE = re.compile(r'"multipleOf": ([-+.\de]+)')
_CLOSED = _DATA | {"exclusiveMinimum", "exclusiveMaximum"}
REMEDY = "simplify it: types, properties, required, enum, items, anyOf, minimum and maximum are understood"


class Constraint:
    """What one answer obeys, and how far it has come.

    Args:
        matcher: llguidance's, at the beginning of an answer.
        ends: (vocabulary,) which tokens end an answer.
    """

    def __init__(self, matcher: Any, ends: npt.NDArray[np.bool_]) -> None:
        self._matcher, self._ends = matcher, ends

    def copy(self) -> Constraint:
        return Constraint(self._matcher.deep_copy(), self._ends)

    def allowed(self) -> npt.NDArray[np.bool_]:
        """(vocabulary,) which tokens may come next: at least one."""
        if self._matcher.is_stopped():
            self._check()
            return self._ends
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        return np.unpackbits(bits, count=len(self._ends), bitorder="little").astype(np.bool_)

    def append(self, token: int) -> None:
        """Go on with a token that is allowed."""
        if not self._matcher.is_stopped():
            self._matcher.consume_token(token)
            self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            # Of a bound that llguidance has for the work of a step.
            raise ModelError(f"a JSON schema can't be followed ({_first_line(self._matcher.get_error())})", REMEDY)


class Grammars:
    """Compiles schemas for one vocabulary; a BackendError without llguidance.

    Args:
        size: columns of the logits; models may have more of them than tokens.
    """

    def __init__(self, vocabulary: Vocabulary, size: int) -> None:
        library = _library()
        self._ends = np.array([vocabulary.ends(token) for token in range(size)])
        tokens = library.TokenizerWrapper(_Tokens(vocabulary, size))
        self._tokenizer = library.LLTokenizer(tokens, n_vocab=size, eos_token=np.flatnonzero(self._ends).tolist())
        self.constraint = lru_cache(KEPT)(self._compile)

    def _compile(self, schema: str) -> Constraint:
        matcher = _library().LLMatcher(self._tokenizer, grammar_of(schema), log_level=0)
        if matcher.is_error():
            raise ModelError(f"a JSON schema can't be obeyed ({_first_line(matcher.get_error())})", REMEDY)
        return Constraint(matcher, self._ends)


class _Tokens:
    """A vocabulary as llguidance reads it."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, size: int) -> None:
        pieces = [vocabulary.piece(token) for token in range(size)]
        # Control tokens have no bytes. llguidance wants some, and never takes special tokens for text.
        self.special_token_ids = [token for token, piece in enumerate(pieces) if not piece]
        self.tokens = [piece or f"<|{token}|>".encode() for token, piece in enumerate(pieces)]
        self.eos_token_id = vocabulary.end_token
        self._vocabulary = vocabulary

    def __call__(self, text: str) -> list[int]:
        if not isinstance(text, str):
            raise TypeError("texts only")
        return self._vocabulary.tokenize(text, special=False)


def grammar_of(schema: str) -> str:
    """llguidance's grammar of a schema, not checked for validity; a ModelError if it is no JSON object or too long."""
    if len(schema.encode()) > MAX_SCHEMA_BYTES:
        raise ModelError(f"a JSON schema has more than {MAX_SCHEMA_BYTES} bytes", "shorten it")
    try:
        read = json.loads(schema)
        if not isinstance(read, dict):
            raise ValueError("it is not an object")
        bounded = json.dumps(_bound_integers(read))
        multiples = [Decimal(number).normalize().as_tuple().digits for number in _MULTIPLE.findall(bounded)]
        if math.lcm(*(int("".join(map(str, digits))) for digits in multiples)) > LARGEST_MULTIPLE:
            problem = f"a JSON schema can't be obeyed (the least common multipleOf is above {LARGEST_MULTIPLE})"
            raise ModelError(problem, "take smaller ones, or ones that divide each other")
        return str(_library().LLMatcher.grammar_from_json_schema(bounded, overrides=WRITTEN))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"a JSON schema can't be read ({_first_line(error)})", "give a JSON object") from error


def _bound_integers(schema: Any) -> Any:
    """A part of a schema, whose integers have bounds."""
    if isinstance(schema, list):
        return [_bound_integers(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    kinds = schema.get("type")
    free = not _CLOSED & schema.keys() and (kinds == "integer" or (isinstance(kinds, list) and "integer" in kinds))
    parts = {name: part if name in _DATA else _bound_integers(part) for name, part in schema.items()}
    return {"minimum": -LARGEST, "maximum": LARGEST, **parts} if free else parts


def check_schema(schema: str) -> None:
    """Make sure that answers can obey a schema; a ModelError if they can't, a BackendError without llguidance.

    Needs no model, and takes at most about a second, without Python's lock.
    """
    problem = _library().LLMatcher.validate_grammar(grammar_of(schema))
    if problem and not problem.startswith("WARNING"):
        raise ModelError(f"a JSON schema can't be obeyed ({_first_line(problem)})", REMEDY)


def _library() -> Any:
    try:
        import llguidance
    except ModuleNotFoundError as error:
        raise BackendError(
            "answers that obey a JSON schema need llguidance, which is not installed", how_to_install("llguidance")
        ) from error
    return llguidance


def _first_line(error: object) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
