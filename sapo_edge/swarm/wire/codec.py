"""Bytes that strangers send, as maps of text, numbers and bytes: bounded before anything is allocated for them.

The library that decodes msgpack bounds lengths, but neither the depth nor the number of values, and it makes objects of
fields that nobody knows. So the headers are walked first (`check_structure`), which allocates nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import msgpack

from sapo_edge.errors import SapoError
from sapo_edge.rollout import MAX_INTEGER, MAX_QUESTION_BYTES
from sapo_edge.swarm.wire.rejection import Rejection

PROTOCOL = 1
"""Version of every map on the wire; it stands first in each."""
MAX_DEPTH = 4
"""Maps and arrays within each other; known fields need three."""
MAX_VALUES = 1024
"""Most values of a map, keys and those of inner maps and arrays included; known fields need less than 300."""
MAX_ENTRIES = 32
"""Most entries of a map."""
MAX_ELEMENTS = 64
"""Most elements of an array."""
MAX_TEXT_BYTES = MAX_QUESTION_BYTES
"""Longest text, in bytes of UTF-8."""
DIGEST_BYTES = 32
"""Length of a SHA-256, and so of a rollout's and a swarm's id."""

_PLAIN, _ZLIB = 0, 1
_LEVEL = 6
_VERSION_KEY = b"\xa1v"

# Bytes of the number that follows a value's first byte.
_NUMBER = {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8} | {first: 1 << (first & 3) for first in range(0xCC, 0xD4)}
# Bytes of the length that follows it, the largest length, and how many values each of it stands for; 0 for plain bytes.
_LONG = {
    **{0xC4 + power: (1 << power, 2**32, 0) for power in range(3)},
    **{0xD9 + power: (1 << power, MAX_TEXT_BYTES, 0) for power in range(3)},
    **{0xDB + power: (1 << power, MAX_ELEMENTS, 1) for power in (1, 2)},
    **{0xDD + power: (1 << power, MAX_ENTRIES, 2) for power in (1, 2)},
}


class WireError(SapoError):
    """What arrived, or what was to be sent, is not what the protocol allows.

    Args:
        reason: under which it is counted.
        detail: what is wrong, in words of ours; never a peer's text.

    Attributes:
        reason, detail: as given.
    """

    def __init__(self, reason: Rejection, detail: str) -> None:
        remedy = "update sapo-edge" if reason is Rejection.VERSION else "whoever made it has to correct it"
        super().__init__(detail, remedy)
        self.reason = reason
        self.detail = detail


def encode(fields: Mapping[str, Any]) -> bytes:
    """A map as msgpack: keys in the order given, integers and lengths in their shortest form, floats of 64 bits."""
    return bytes(msgpack.packb(fields))


def decode(data: bytes, limit: int, what: str) -> dict[str, Any]:
    """Decode a map of this version of the protocol.

    Args:
        data: msgpack.
        limit: most bytes of it.
        what: how a `WireError` calls it.

    Raises:
        WireError: SIZE, VERSION or SHAPE.
    """
    if len(data) > limit:
        raise WireError(Rejection.SIZE, f"{what} has more than {limit} bytes")
    check_version(data, what)
    check_structure(data, what)
    try:
        # The walk bounded every length; what is left to refuse is text that is not UTF-8 and keys that occur twice.
        decoded = msgpack.unpackb(data, object_pairs_hook=_fields)
    except (ValueError, msgpack.UnpackException) as error:
        raise WireError(Rejection.SHAPE, f"{what} has text that is not UTF-8, or a field twice") from error
    return dict(decoded)


def check_version(data: bytes, what: str) -> int:
    """Read the version, which stands first, without looking at anything behind it.

    Returns:
        Where the second entry begins.

    Raises:
        WireError: SHAPE if there is no version, VERSION if it is another one.
    """
    first = data[0] if data else 0
    at = {0xDE: 3, 0xDF: 5}.get(first, 1)
    if not (0x81 <= first <= 0x8F or first in (0xDE, 0xDF)) or data[at : at + 2] != _VERSION_KEY or len(data) < at + 3:
        raise WireError(Rejection.SHAPE, f"{what} is no map that begins with its version")
    version = data[at + 2]
    if version > 0x7F and not 0xCC <= version <= 0xCF:
        raise WireError(Rejection.SHAPE, f"the version of {what} is no number")
    if version != PROTOCOL:
        raise WireError(Rejection.VERSION, f"{what} is of another version than {PROTOCOL}")
    return at + 3


def check_structure(data: bytes, what: str) -> None:
    """Walk the headers of a msgpack value; every bound of this module is kept, and nothing follows the value.

    Raises:
        WireError: SHAPE.
    """
    # How many values are still to come at each depth.
    open_values = [1]
    position = values = 0
    while open_values:
        if not open_values[-1]:
            open_values.pop()
            continue
        open_values[-1] -= 1
        values += 1
        inside, position = _header(data, position, what)
        if inside:
            open_values.append(inside)
        if len(open_values) > MAX_DEPTH + 1 or values > MAX_VALUES:
            raise WireError(Rejection.SHAPE, f"{what} is nested too deep or has too many values")
    if position != len(data):
        raise WireError(Rejection.SHAPE, f"{what} is followed by something")


def _header(data: bytes, position: int, what: str) -> tuple[int, int]:
    """Number of values inside the one at `position`, and where it ends or the first of those begins."""
    if position >= len(data):
        raise WireError(Rejection.SHAPE, f"{what} is cut off")
    first = data[position]
    inside, end = 0, position + 1
    if 0x80 <= first <= 0x8F:
        inside = 2 * (first & 0x0F)
    elif 0x90 <= first <= 0x9F:
        inside = first & 0x0F
    elif 0xA0 <= first <= 0xBF:
        end += first & 0x1F
    elif first in _NUMBER:
        end += _NUMBER[first]
    elif first in _LONG:
        size, most, values = _LONG[first]
        length = int.from_bytes(data[end : end + size], "big")
        if length > most:
            raise WireError(Rejection.SHAPE, f"{what} has a value that is too long")
        inside, end = values * length, end + size + (0 if values else length)
    elif 0x7F < first < 0xE0:
        raise WireError(Rejection.SHAPE, f"{what} has a value of a kind that is not allowed")
    if end > len(data):
        raise WireError(Rejection.SHAPE, f"{what} is cut off")
    return inside, end


def _fields(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs) or not all(isinstance(key, str) for key in found):
        raise ValueError("a key occurs twice, or is no text")
    return found


def compress(plain: bytes) -> bytes:
    """One byte that says how, and the data: compressed if that makes it smaller."""
    packed = zlib.compress(plain, _LEVEL)
    return bytes([_ZLIB]) + packed if len(packed) < len(plain) else bytes([_PLAIN]) + plain


def decompress(data: bytes, limit: int, what: str) -> bytes:
    """What `compress` was given; never more than `limit` bytes and one are made of it.

    Raises:
        WireError: SIZE or SHAPE.
    """
    if not data or data[0] not in (_PLAIN, _ZLIB):
        raise WireError(Rejection.SHAPE, f"{what} is empty, or compressed in an unknown way")
    if data[0] == _PLAIN:
        return data[1:]
    unpacker = zlib.decompressobj()
    try:
        plain = unpacker.decompress(data[1:], limit + 1)
    except zlib.error as error:
        raise WireError(Rejection.SHAPE, f"{what} can't be decompressed") from error
    if len(plain) > limit:
        raise WireError(Rejection.SIZE, f"{what} has more than {limit} bytes when it is decompressed")
    if not unpacker.eof or unpacker.unused_data:
        raise WireError(Rejection.SHAPE, f"{what} is cut off, or followed by something")
    return plain


class Packer:
    """How much of a message is full, as values are added to it.

    Args:
        packed: most bytes when compressed.
        unpacked: most bytes before.
    """

    def __init__(self, packed: int, unpacked: int) -> None:
        self._packed, self._unpacked = packed, unpacked
        self._compressor = zlib.compressobj(_LEVEL)
        self._written = self._taken = 0

    def take(self, value: object) -> bool:
        """Add a value if it still fits."""
        part = msgpack.packb(value)
        if self._taken + len(part) > self._unpacked:
            return False
        trial = self._compressor.copy()
        written = self._written + len(trial.compress(part))
        if written + len(trial.copy().flush()) > self._packed:
            return False
        self._compressor, self._written = trial, written
        self._taken += len(part)
        return True


def text_of(fields: Mapping[str, Any], name: str) -> str:
    """A field that is text; its length is left to whoever knows it."""
    value = fields.get(name)
    if not isinstance(value, str):
        raise WireError(Rejection.SHAPE, f"{name} is no text")
    return value


def integer_of(fields: Mapping[str, Any], name: str, most: int = MAX_INTEGER) -> int:
    """A field that is an integer from 0 to `most`."""
    value = fields.get(name)
    if type(value) is not int or not 0 <= value <= most:
        raise WireError(Rejection.SHAPE, f"{name} is no integer from 0 to {most}")
    return value


def list_of(fields: Mapping[str, Any], name: str, most: int) -> list[Any]:
    """A field that is an array of at most `most` elements."""
    value = fields.get(name)
    if not isinstance(value, list) or len(value) > most:
        raise WireError(Rejection.SHAPE, f"{name} is no array of at most {most} elements")
    return value


def digest_of(value: object, name: str) -> bytes:
    """A value that is a digest."""
    if not isinstance(value, bytes) or len(value) != DIGEST_BYTES:
        raise WireError(Rejection.SHAPE, f"{name} has not {DIGEST_BYTES} bytes")
    return value
