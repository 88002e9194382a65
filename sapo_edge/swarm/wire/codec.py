"""Maps on the wire: msgpack within bounds that are checked before anything is allocated.

The msgpack library bounds lengths, but neither the depth nor the number of values, and allocates objects for unknown
fields. So `check_structure` walks the headers first, which allocates nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgpack

from sapo_edge.errors import SapoError
from sapo_edge.rollout import MAX_QUESTION_BYTES
from sapo_edge.swarm.wire.rejection import Rejection

VERSION = 1
"""Version of the protocol, the first entry of every map."""
MAX_DEPTH = 4
"""Most levels of nested maps and arrays; known fields need three."""
MAX_VALUES = 1024
"""Most values of a document, including keys and containers; known fields need less than 300."""
MAX_ENTRIES = 32
"""Most entries of a map."""
MAX_ELEMENTS = 64
"""Most elements of an array."""
MAX_TEXT_BYTES = MAX_QUESTION_BYTES
"""Longest text, in bytes of UTF-8."""
DIGEST_BYTES = 32
"""Length of a SHA-256 digest: ids of rollouts and swarms."""

_PLAIN, _ZLIB = 0, 1
_LEVEL = 6
_VERSION_KEY = b"\xa1v"

# Kinds by their first byte. Numbers: how many bytes follow.
_NUMBER = {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8} | {first: 1 << (first & 3) for first in range(0xCC, 0xD4)}
# Bytes, texts, arrays and maps: bytes of the length that follows, the largest length, and values per unit of length.
_LONG = {
    **{0xC4 + power: (1 << power, 2**32, 0) for power in range(3)},
    **{0xD9 + power: (1 << power, MAX_TEXT_BYTES, 0) for power in range(3)},
    **{0xDB + power: (1 << power, MAX_ELEMENTS, 1) for power in (1, 2)},
    **{0xDD + power: (1 << power, MAX_ENTRIES, 2) for power in (1, 2)},
}


class WireError(SapoError):
    """Received data, or data to send, that the protocol does not allow; `detail` never contains a peer's text."""

    def __init__(self, reason: Rejection, detail: str) -> None:
        remedy = "update sapo-edge" if reason is Rejection.VERSION else "its sender has to correct it"
        super().__init__(detail, remedy)
        self.reason = reason


def encode(fields: Mapping[str, Any]) -> bytes:
    """Encode a map as msgpack: keys in their order, integers and lengths in the shortest form, floats with 64 bits."""
    return bytes(msgpack.packb(fields))


def decode(data: bytes, limit: int, what: str) -> dict[str, Any]:
    """Decode a map of at most `limit` bytes, which a `WireError` of SIZE, VERSION or SHAPE calls `what`."""
    if len(data) > limit:
        raise WireError(Rejection.SIZE, f"{what} has more than {limit} bytes")
    check_version(data, what)
    check_structure(data, what)
    try:
        # The walk bounded every length. A last value that is cut off, data after it, invalid UTF-8, repeated keys and
        # keys that are not text are found here.
        decoded = msgpack.unpackb(data, object_pairs_hook=_unique_fields)
    except (ValueError, msgpack.UnpackException) as error:
        raise WireError(Rejection.SHAPE, f"{what} has invalid text or keys, or another end") from error
    return dict(decoded)


def check_version(data: bytes, what: str) -> int:
    """Check the version, the first entry of a map, and return the position of the second; read nothing else.

    Raises:
        WireError: SHAPE if there is no version, VERSION if it is not `VERSION`.
    """
    first = data[0] if data else 0
    key = {0xDE: 3, 0xDF: 5}.get(first, 1)
    is_map = 0x81 <= first <= 0x8F or first in (0xDE, 0xDF)
    if not is_map or data[key : key + 2] != _VERSION_KEY or len(data) < key + 3:
        raise WireError(Rejection.SHAPE, f"{what} is not a map that begins with its version")
    version = data[key + 2]
    if version > 0x7F and not 0xCC <= version <= 0xCF:
        raise WireError(Rejection.SHAPE, f"the version of {what} is not a number")
    if version != VERSION:
        raise WireError(Rejection.VERSION, f"{what} has another version than {VERSION}")
    return key + 3


def check_structure(data: bytes, what: str) -> None:
    """Check the headers of a msgpack value; WireError of SHAPE beyond the module's bounds. What is cut off may pass."""
    # Values still to be read at each depth.
    remaining = [1]
    position = values = 0
    while remaining:
        if not remaining[-1]:
            remaining.pop()
            continue
        remaining[-1] -= 1
        values += 1
        children, position = _read_header(data, position, what)
        if children:
            remaining.append(children)
        if len(remaining) > MAX_DEPTH + 1 or values > MAX_VALUES:
            raise WireError(Rejection.SHAPE, f"{what} is nested too deep or has too many values")


def _read_header(data: bytes, position: int, what: str) -> tuple[int, int]:
    """Number of values inside the value at `position`, and the position of the next header."""
    if position >= len(data):
        raise WireError(Rejection.SHAPE, f"{what} is cut off")
    first = data[position]
    children, end = 0, position + 1
    if 0x80 <= first <= 0x8F:
        children = 2 * (first & 0x0F)
    elif 0x90 <= first <= 0x9F:
        children = first & 0x0F
    elif 0xA0 <= first <= 0xBF:
        end += first & 0x1F
    elif first in _NUMBER:
        end += _NUMBER[first]
    elif first in _LONG:
        size, limit, values = _LONG[first]
        length = int.from_bytes(data[end : end + size], "big")
        if length > limit:
            raise WireError(Rejection.SHAPE, f"{what} has a value that is too long")
        children, end = values * length, end + size + (0 if values else length)
    elif 0x7F < first < 0xE0:
        raise WireError(Rejection.SHAPE, f"{what} has a value of a kind that is not allowed")
    return children, end


def _unique_fields(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs) or not all(isinstance(key, str) for key in fields):
        raise ValueError("a key occurs twice, or is not text")
    return fields


def compress(plain: bytes) -> bytes:
    """One byte for the format, and the data: compressed if that makes it smaller."""
    packed = zlib.compress(plain, _LEVEL)
    return bytes([_ZLIB]) + packed if len(packed) < len(plain) else bytes([_PLAIN]) + plain


def decompress(data: bytes, limit: int, what: str) -> bytes:
    """Undo `compress`; WireError of SIZE or SHAPE. Decompression stops at `limit` + 1 bytes."""
    if not data or data[0] not in (_PLAIN, _ZLIB):
        raise WireError(Rejection.SHAPE, f"{what} is empty or has an unknown format")
    if data[0] == _PLAIN:
        return data[1:]
    unpacker = zlib.decompressobj()
    try:
        plain = unpacker.decompress(data[1:], limit + 1)
    except zlib.error as error:
        raise WireError(Rejection.SHAPE, f"{what} can't be decompressed") from error
    if len(plain) > limit:
        raise WireError(Rejection.SIZE, f"{what} decompresses to more than {limit} bytes")
    if not unpacker.eof or unpacker.unused_data:
        raise WireError(Rejection.SHAPE, f"{what} is cut off or has data after its end")
    return plain


def which_fit(values: Iterable[object], max_packed: int, max_unpacked: int) -> Iterator[bool]:
    """Tell of each value whether it fits in a message beside earlier ones that do, by its bytes with compression and
    without."""
    compressor, packed, unpacked = zlib.compressobj(_LEVEL), 0, 0
    for value in values:
        data, trial = msgpack.packb(value), compressor.copy()
        size = packed + len(trial.compress(data))
        fits = unpacked + len(data) <= max_unpacked and size + len(trial.copy().flush()) <= max_packed
        if fits:
            compressor, packed, unpacked = trial, size, unpacked + len(data)
        yield fits


def get_integer(fields: Mapping[str, Any], name: str, limit: int) -> int:
    """A field that must be an integer from 0 to `limit`."""
    value = fields.get(name)
    if type(value) is not int or not 0 <= value <= limit:
        raise WireError(Rejection.SHAPE, f"{name} is not an integer from 0 to {limit}")
    return value


def get_list(fields: Mapping[str, Any], name: str, limit: int) -> list[Any]:
    """A field that must be an array of at most `limit` elements."""
    value = fields.get(name)
    if not isinstance(value, list) or len(value) > limit:
        raise WireError(Rejection.SHAPE, f"{name} is not an array of at most {limit} elements")
    return value


def check_digest(value: object, name: str) -> bytes:
    """A value that must be a digest."""
    if not isinstance(value, bytes) or len(value) != DIGEST_BYTES:
        raise WireError(Rejection.SHAPE, f"{name} is not {DIGEST_BYTES} bytes")
    return value
