"""Rounds on a GPU that torch uses: speed, recorded steps, 4 bits, and the memory of smaller cards.

`python -m pytest tests/contract -k torch-cuda` tests what it computes. A smaller card is played by a limit on torch's
allocator, in a process of its own.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sapo_edge.backends.backend import RoundShape
from sapo_edge.backends.machine.host import is_installed
from sapo_edge.backends.model.source import open_source, shape_of
from sapo_edge.backends.pytorch import policy as policies
from sapo_edge.backends.pytorch import runtime
from sapo_edge.backends.pytorch.place import DEVICE_RUNTIME_BYTES, estimate_memory
from sapo_edge.errors import ModelError
from sapo_edge.policy import Sample, UpdateSettings
from tests.benchmarks.measure import seconds
from tests.benchmarks.sampling import prompts
from tests.benchmarks.work import embedded
from tests.contract.training import alternating

SHAPES = ((8, 64), (8, 256), (32, 256))
"""Answers to each of eight questions, and their tokens."""
CARDS = (4, 8, 12)
"""GB of smaller cards."""
TAKEN = 900_000_000
"""Bytes of a card that a driver, a desktop and CUDA itself take."""
STILL = UpdateSettings(learning_rate=1e-6)
COUNTED = 100
"""Tokens of the prompts, about."""


def run(path: Path) -> None:
    for format_, recorded in itertools.product(("", "nf4") if is_installed("bitsandbytes") else ("",), (False, True)):
        with tempfile.TemporaryDirectory() as workspace:
            _speed(path, Path(workspace), format_, recorded)
    for gigabytes in CARDS:
        command = [sys.executable, "-c", "import sys; from tests.benchmarks.gpu import card; card(*sys.argv[1:])"]
        done = subprocess.run([*command, str(path), str(gigabytes)], capture_output=True, text=True)
        print(done.stdout or f"{gigabytes} GB: {done.stderr[-300:]}", end="", flush=True)


def _speed(path: Path, workspace: Path, weights: str, recorded: bool) -> None:
    chosen = runtime.choose_place(shape_of(open_source(path)), "cuda")
    chosen = replace(chosen, weights=weights or chosen.weights, graphs=recorded)
    policy = policies.TorchPolicy(embedded(workspace, path), "cuda", place=chosen)
    print(f"{policy.place.weights}, steps {'recorded' if recorded else 'computed'}: {policy.place.reason}")
    for answers, tokens in SHAPES:
        samples: list[Sequence[Sample]] = []
        # The first call records the steps.
        policy.generate(prompts(), answers, tokens, 1.0, 0, stop_text="")
        took = seconds(lambda: samples.extend(policy.generate(prompts(), answers, tokens, 1.0, 1, stop_text="")))  # noqa: B023
        made = sum(len(one.token_ids) for group in samples for one in group)
        groups = list(map(alternating, prompts(), samples))
        first = policy.update(groups, STILL)
        update = seconds(lambda: policy.update(groups, STILL))  # noqa: B023
        apart = f"sampler against learner {first.mismatch_kl:.1e} nats"
        print(f"  8 x {answers} x {tokens}: {made / took:.0f} tokens/s, update {update:.2f} s, {apart}", flush=True)
    policy.close()


def card(path: str, gigabytes: str) -> None:
    """Print how a round that is planned for a smaller card stays within its memory."""
    import torch

    usable = int(float(gigabytes) * 1e9) - TAKEN
    torch.ones(1, device="cuda")
    torch.cuda.set_per_process_memory_fraction(min(1.0, usable / torch.cuda.get_device_properties(0).total_memory))

    def free(_device: str) -> int:
        return usable - int(torch.cuda.memory_allocated())

    for module in (runtime, policies):
        vars(module)["free_memory"] = free
    with tempfile.TemporaryDirectory() as workspace:
        try:
            policy = policies.TorchPolicy(embedded(workspace, Path(path)), "cuda")
        except ModelError as error:
            print(f"{gigabytes} GB: {error.message}; {error.remedy}")
            return
        for answers, tokens in SHAPES:
            planned = estimate_memory(policy.shape, RoundShape(16, 8, answers, COUNTED, tokens), policy.place)
            torch.cuda.reset_peak_memory_stats()
            try:
                sampled = policy.generate(prompts(), answers, tokens, 1.0, 0, stop_text="")
                policy.update(list(map(alternating, prompts(), sampled)), STILL)
                end = ""
            except ModelError as error:
                end = f", then {error.message}"
            held, estimate = torch.cuda.max_memory_reserved(), planned - DEVICE_RUNTIME_BYTES
            print(
                f"{gigabytes} GB, {policy.place.weights}, 8 x {answers} x {tokens}: {held / 1e9:.2f} GB of "
                f"{usable / 1e9:.2f}, estimated {estimate / 1e9:.2f}{end}"
            )
        policy.close()
