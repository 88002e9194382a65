"""What llama.cpp is asked for; its answers are tested with the backend."""

from __future__ import annotations

import _thread
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sapo_edge.backends.llama.runtime import LlamaContext, LlamaModel
from sapo_edge.backends.model.llama_library import llama_library
from sapo_edge.errors import Cancelled, ModelError
from tests.models import Headers


def test_nothing_is_computed_on_a_gpu_and_windows_keep_what_sequences_share() -> None:
    requests: list[Any] = []
    library = SimpleNamespace(
        llama_context_default_params=llama_library().llama_context_default_params,
        llama_init_from_model=lambda _model, parameters: requests.append(parameters),
    )
    model = cast(LlamaModel, SimpleNamespace(library=library, pointer=None))
    with pytest.raises(ModelError, match="could not make a context"):
        LlamaContext(model, cells=256, sequences=2, threads=1, batch=32)
    (parameters,) = requests
    assert (parameters.op_offload, parameters.offload_kqv, parameters.swa_full) == (False, False, True)


class Slow:
    """llama.cpp, whose decodes begin once they are aborted; keeps the status that each returned."""

    def __init__(self, context: LlamaContext) -> None:
        self._context, self._library = context, context.library
        self.returned: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)

    def llama_decode(self, pointer: Any, batch: Any) -> int:
        deadline = time.monotonic() + 60
        while self._context._aborts[0] == b"\0" and time.monotonic() < deadline:
            time.sleep(0.01)
        self.returned.append(self._library.llama_decode(pointer, batch))
        return self.returned[-1]


@pytest.fixture
def context(headers: Headers) -> Iterator[LlamaContext]:
    with (
        closing(LlamaModel(headers["llama-gqa"])) as model,
        closing(LlamaContext(model, cells=256, sequences=2, threads=1, batch=32)) as context,
    ):
        context.add([1, 2, 3], 0, [0], logits=True)
        yield context


def test_a_decode_is_cancelled_while_it_is_computed(context: LlamaContext, capfd: pytest.CaptureFixture[str]) -> None:
    slow = context.library = Slow(context)
    with pytest.raises(Cancelled):
        context.decode(lambda: True)
    assert slow.returned == [2] and capfd.readouterr() == ("", "")


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt: whoever starts the tests in the background has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
def test_a_signal_is_handled_while_llama_cpp_computes(context: LlamaContext) -> None:
    slow = context.library = Slow(context)

    def interrupt() -> bool:
        # As the system does at Ctrl-C: the handler runs in the main thread, which waits for the decode.
        _thread.interrupt_main()
        return False

    with pytest.raises(KeyboardInterrupt):
        context.decode(interrupt)
    assert slow.returned == [2], "the decode ended before the error was raised"
