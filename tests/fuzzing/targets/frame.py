"""A frame of a request is read whole and within its bound, or is a RequestError, however its bytes arrive."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, cast

from sapo_edge.swarm.host.requests import RequestError, read_frame
from tests.fuzzing.target import KIB, Target
from tests.fuzzing.targets.wire import field

LIMIT = 4 * KIB


class Stream:
    """The reading end of a stream that delivers at most so many bytes at a time, then ends."""

    def __init__(self, data: bytes, portion: int) -> None:
        self.data, self.portion = data, portion

    async def read(self, size: int) -> bytes:
        assert 0 < size <= LIMIT, "more is asked for than a frame may have"
        part = self.data[: min(size, self.portion)]
        self.data = self.data[len(part) :]
        return part


def run(coroutine: Coroutine[Any, Any, bytes]) -> bytes:
    """The result of a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return cast(bytes, ended.value)
    raise AssertionError("it waits")


def check(data: bytes) -> None:
    """The first byte says how many arrive at a time."""
    portion, content = 1 + (data[0] if data else 0), data[1:]
    size = int.from_bytes(content[:4], "big")
    is_whole = len(content) >= 4 and size <= LIMIT and 4 + size <= len(content)
    try:
        frame = run(read_frame(cast(Any, Stream(content, portion)), LIMIT))
    except RequestError:
        assert not is_whole
        return
    assert is_whole and frame == content[4 : 4 + size]


def seeds() -> list[bytes]:
    frames = [*field("requests.json", "frame"), *field("responses.json", "frame")]
    return [*(bytes([portion]) + frame for frame in frames for portion in (0, 255)), b"\xff" * 5, b"\x01\x00\x00"]


TARGET = Target(check, seeds, 2 * LIMIT, 64 * KIB, 16)
