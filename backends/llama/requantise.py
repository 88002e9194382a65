"""Choosing the file that llama.cpp samples from: the smallest is not the fastest, so each host measures once.

Sampling many answers in parallel is bound by arithmetic, and processors differ in the number format that they multiply
fastest. Only formats that keep the model's values to within their own rounding are tried, because the policy that
samples must stay the one that learns. Q4_0 would be the fastest on some hosts; it is left out because it moves the
distribution. In F16 llama.cpp also computes with what a layer is given, which is too large for that format in some
models: a format that moves this model's distribution is not sampled from.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil

from sapo_edge.backends.adapter.merged import write_gguf
from sapo_edge.backends.llama.runtime import LlamaContext, LlamaModel
from sapo_edge.backends.machine.disk import nearest_existing, replacing
from sapo_edge.backends.machine.measured import Measured, is_quiet
from sapo_edge.backends.model.gguf_header import GgufHeader, file_digest, read_header
from sapo_edge.backends.model.llama_library import library_version
from sapo_edge.errors import ModelError

BYTES_PER_WEIGHT = {"bf16": 2.0, "f16": 2.0, "q8_0": 34 / 32}
CANDIDATES = ("original", *BYTES_PER_WEIGHT)
SMALL = 20_000_000
"""Weights. Smaller models are sampled from as they are: another format gains nothing."""
LARGE = 1_500_000_000
"""Weights. Larger models too: a second copy would fill the disk."""
ROWS = 32
"""Sequences decoded together in a measurement."""
STEPS = 3
"""Decode steps of a measurement, after one that pages the file in."""
MOVED = 0.1
"""Nats. Mean KL divergence of the next token from that of the model's own file, from which on a format is not faithful.
Of the embedded model's formats the farthest is at 0.007."""


@dataclass(frozen=True, slots=True)
class SamplerChoice:
    """The file to sample from, the format's name, and the reason in words."""

    path: Path
    format: str
    reason: str


def weights_of(header: GgufHeader) -> int:
    return sum(int(np.prod(info.shape)) for info in header.tensors.values())


def own_file(header: GgufHeader, reason: str) -> SamplerChoice:
    return SamplerChoice(header.path, "original", f"the model's own file: {reason}")


def derived_directory(header: GgufHeader, cache: Path) -> Path:
    """Of what is made of a model, and of what is measured with it."""
    return cache / "sampler" / file_digest(header.path)[:16]


def choose_sampler(header: GgufHeader, cache: Path, threads: int, narrate: Callable[[str], None]) -> SamplerChoice:
    """The fastest faithful file on this host: made and measured in the first call, remembered in `cache`."""
    weights = weights_of(header)
    if not SMALL <= weights <= LARGE:
        return own_file(header, "its size leaves nothing to gain from another format")
    directory = derived_directory(header, cache)
    remembered = _measured(directory).read(lambda record: _choice(directory, header, record["format"], record["rates"]))
    if remembered is not None and _is_sound(remembered.path):
        return remembered
    # The fastest so far, and the one that is being made.
    needed = int(2 * max(BYTES_PER_WEIGHT.values()) * weights)
    if shutil.disk_usage(nearest_existing(directory)).free < 2 * needed:
        return own_file(header, "too little disk space to try faster formats")
    narrate("trying number formats, to sample in the fastest (once for this model; minutes on a busy processor)")
    try:
        return _measure(header, directory, threads, narrate)
    except OSError as error:
        # Another user's cache, or a full disk: that need not end the run.
        return own_file(header, f"{directory} can't be written ({error.strerror})")


def fixed_sampler(header: GgufHeader, cache: Path, name: str, narrate: Callable[[str], None]) -> SamplerChoice:
    """The file in one of `BYTES_PER_WEIGHT`, whichever is the fastest: results then don't depend on a measurement."""
    if not SMALL <= weights_of(header) <= LARGE:
        return own_file(header, "its size leaves nothing to gain from another format")
    # Apart from the file that was measured to be the fastest: another process removes those that are not.
    directory = derived_directory(header, cache) / "fixed"
    path = directory / f"{name}.gguf"
    if not _is_sound(path):
        narrate(f"converting the model to {name}, to sample from")
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            path = convert(header, directory, name).path
        except OSError as error:
            raise ModelError(
                f"{directory} can't be written ({error.strerror})", "free some disk space, or give another --home"
            ) from error
    return SamplerChoice(path, name, f"{name}, as asked for")


def _measure(header: GgufHeader, directory: Path, threads: int, narrate: Callable[[str], None]) -> SamplerChoice:
    """Make each format, keep the fastest, and remember it; an OSError if the directory can't be written."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    rates: dict[str, float] = {}
    best, own, quiet = "", None, is_quiet()
    for name in CANDIDATES:
        try:
            rate, logits = _decode(convert(header, directory, name), threads)
            own = logits if name == "original" else own
            if own is not None and not (moved := _divergence(own, logits)) <= MOVED:
                raise ModelError(f"it moves the model's probabilities by {moved:.2g} nats", "")
        except ModelError as error:
            narrate(f"not sampling from {name}: {error.message}")
            _remove(directory, name)
            continue
        narrate(f"  {name}: {rate:.0f} tokens/s")
        rates[name] = round(rate, 1)
        # One copy of the model stays, and no more than two are there at a time.
        best, slower = (name, best) if rates[name] > rates.get(best, 0.0) else (best, name)
        _remove(directory, slower)
    if not rates:
        return own_file(header, "no other format could be made")
    _measured(directory).write({"format": best, "rates": rates}, quiet=quiet)
    choice = _choice(directory, header, best, rates)
    if not choice.path.exists():
        # Another process that measured at the same time found another one faster, and removed this one.
        convert(header, directory, best)
    return choice


def _remove(directory: Path, name: str) -> None:
    (directory / f"{name}.gguf").unlink(missing_ok=True)


def _measured(directory: Path) -> Measured:
    # An earlier version tried fewer formats.
    return Measured(directory / "choice.json", {"tried": list(CANDIDATES), "llama.cpp version": library_version()})


def _is_sound(path: Path) -> bool:
    """Whether a file that was made before is whole: making it again takes seconds."""
    try:
        read_header(path)
    except ModelError:
        return False
    return True


def _choice(directory: Path, header: GgufHeader, name: str, rates: dict[str, float]) -> SamplerChoice:
    if name not in CANDIDATES:
        raise ValueError(f"a record names the format {name}")
    path = header.path if name == "original" else directory / f"{name}.gguf"
    measured = ", ".join(f"{key} {rate:.0f}" for key, rate in rates.items())
    return SamplerChoice(path, name, f"{name} was fastest on this host (tokens/s: {measured})")


def convert(header: GgufHeader, directory: Path, name: str) -> GgufHeader:
    """Convert the model to another format, in a temporary file that is renamed when complete."""
    if name == "original":
        return header
    path = directory / f"{name}.gguf"
    for part in directory.glob(f".{name}.gguf.*.part"):
        # Of a process that was killed, or lost power.
        if not psutil.pid_exists(int(part.suffixes[-2][1:])):
            part.unlink(missing_ok=True)
    try:
        # Named after this process: `sapo eval` may be measuring at the same time.
        with replacing(path, f".{os.getpid()}") as part:
            write_gguf(header, part, name)
    except NotImplementedError as error:
        raise ModelError(f"{header.path} can't be converted to {name}: {error}", "use another model file") from error
    return read_header(path)


def _decode(header: GgufHeader, threads: int) -> tuple[float, npt.NDArray[np.float32]]:
    """Decode `ROWS` sequences together, a few steps.

    Returns tokens/s of the fastest step, as other programs may be busy, and the last one's (rows, vocabulary) logits.
    """
    with (
        closing(LlamaModel(header)) as model,
        closing(LlamaContext(model, cells=1024, sequences=ROWS, threads=threads, batch=ROWS)) as context,
    ):
        times = []
        for step in range(STEPS + 1):
            for sequence in range(ROWS):
                context.add([sequence + 3], step, [sequence], logits=True)
            begin = time.perf_counter()
            logits = context.decode()
            times.append(time.perf_counter() - begin)
        # The first step pages the file in.
        return ROWS / min(times[1:]), logits.copy()


def _divergence(own: npt.NDArray[np.float32], other: npt.NDArray[np.float32]) -> float:
    """Mean KL divergence of distributions with these (rows, vocabulary) logits, in nats; NaN or infinite if one is."""
    with np.errstate(invalid="ignore"):
        return float(np.mean([_divergence_of(*rows) for rows in zip(own, other, strict=True)]))


def _divergence_of(own: npt.NDArray[np.float32], other: npt.NDArray[np.float32]) -> float:
    first, second = (row.astype(np.float64) - np.logaddexp.reduce(row, dtype=np.float64) for row in (own, other))
    return float(np.exp(first) @ (first - second))
