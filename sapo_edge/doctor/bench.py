"""Benchmarks one backend: `python -m sapo_edge.doctor.bench`, a `Benchmark` as JSON on stdin, figures on stdout.

Each backend runs in a separate process, so that its memory can be measured and a crash does not end the others.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sapo_edge.care.sensors import peak_memory
from sapo_edge.config.settings import Settings
from sapo_edge.errors import SapoError
from sapo_edge.policy import LoraSettings, Policy, Prompt, Sample, TrainingAnswer, TrainingGroup, UpdateSettings

QUESTIONS, TOKENS = 4, 32
"""Questions of a measured round, and tokens of an answer: fixed, so that figures can be compared."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """What to measure.

    Attributes:
        manifest: whose prompts are used, its bytes as hexadecimal digits.
        store: directory of the questions that the manifest names by digest.
        quantise: number format to which a directory's matrices are quantised; "" for none.
        settings: of a node, by name.
    """

    backend: str
    model: str
    manifest: str
    store: str
    cache: str
    repeats: int
    quantise: str
    settings: Mapping[str, Any]


def measure(benchmark: Benchmark, narrate: Callable[[str], None]) -> dict[str, Any]:
    """Sample and update for `repeats` rounds; the figures of `docs/interface.md`, without medians."""
    from sapo_edge.backends.backend import PROMPT_TOKENS, OpenOptions, RoundShape
    from sapo_edge.backends.choose import detect
    from sapo_edge.tasks.manifest import Manifest
    from sapo_edge.tasks.source import TaskSource

    manifest = replace(Manifest.from_bytes(bytes.fromhex(benchmark.manifest)), store=Path(benchmark.store))
    prompts = [manifest.prompt_for(task.question) for task in TaskSource(manifest).held_out("validation", QUESTIONS)]
    model = Path(benchmark.model)
    with tempfile.TemporaryDirectory(prefix="sapo-bench-") as workspace:
        begin = time.perf_counter()
        cache, quantise, settings = Path(benchmark.cache), benchmark.quantise, Settings(**benchmark.settings)
        # As a node opens it, which keeps more in memory where there is room.
        size = RoundShape(
            settings.rank, QUESTIONS, settings.answers, PROMPT_TOKENS, TOKENS, quantise=quantise,
            precision=settings.precision, cache=cache,
        )  # fmt: skip
        options = OpenOptions(
            model, cache, Path(workspace), LoraSettings(rank=settings.rank), settings.threads, narrate=narrate,
            quantise=quantise, precision=settings.precision, sampler=settings.sampler, size=size,
        )  # fmt: skip
        policy, reasons = detect.open_policy(detect.detect(benchmark.backend, model), options)
        load_seconds = time.perf_counter() - begin
        with closing(policy):
            # The first calls also set things up, and are not measured.
            _measure_round(policy, prompts[:1], 2, 4, 0)
            rounds = []
            for number in range(1, benchmark.repeats + 1):
                narrate(f"{benchmark.backend}: round {number} of {benchmark.repeats}")
                rounds.append(_measure_round(policy, prompts, settings.answers, TOKENS, number))
            speeds, update_seconds, update_tokens = zip(*rounds, strict=True)
            longest = max(len(policy.encode("".join(message.content for message in prompt))) for prompt in prompts)
            estimated = policy.memory_estimate(len(prompts), settings.answers, longest, TOKENS)
            return {
                "load_seconds": load_seconds, "tokens_per_second": speeds, "update_seconds": update_seconds,
                "update_tokens": update_tokens, "peak_bytes": peak_memory(), "device_bytes": _device_peak(),
                "estimated_bytes": estimated, "reasons": reasons,
            }  # fmt: skip


def _measure_round(
    policy: Policy, prompts: list[Prompt], answers: int, tokens: int, seed: int
) -> tuple[float, float, int]:
    """Tokens per second of sampling, seconds of the update, tokens trained on."""
    begin = time.perf_counter()
    # Without stop text, so that answers are long.
    sampled = policy.generate(prompts, answers, tokens, 1.0, seed, stop_text="")
    middle = time.perf_counter()
    groups = [
        TrainingGroup(prompt, tuple(_answer(sample, index) for index, sample in enumerate(group)))
        for prompt, group in zip(prompts, sampled, strict=True)
    ]
    trained_tokens = policy.update(groups, UpdateSettings(learning_rate=1e-6)).tokens
    end = time.perf_counter()
    sampled_tokens = sum(len(sample.token_ids) for group in sampled for sample in group)
    return sampled_tokens / (middle - begin), end - middle, trained_tokens


def _answer(sample: Sample, index: int) -> TrainingAnswer:
    return TrainingAnswer(sample.text, sample.ended, 1.0 - 2.0 * (index % 2), sample.token_ids, sample.logprobs)


def _device_peak() -> int:
    """The highest memory on a GPU, from the library that this process has loaded."""
    torch, mlx = sys.modules.get("torch"), sys.modules.get("mlx.core")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        return int(torch.cuda.max_memory_reserved())
    if mlx is not None and mlx.default_device() == mlx.gpu:
        return int(mlx.get_peak_memory())
    return 0


def main() -> int:
    benchmark = Benchmark(**json.load(sys.stdin))
    try:
        figures = measure(benchmark, lambda text: print(text, file=sys.stderr, flush=True))
    except SapoError as error:
        print(json.dumps({"error": error.message, "remedy": error.remedy}))
        return 1
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
