"""An evaluation of 200 questions of `starter` beside a round of 8 x 8 on it, with the embedded model."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable

from sapo_edge.backends.backend import PROMPT_TOKENS, RoundShape
from sapo_edge.backends.llama.policy import LlamaCppPolicy
from sapo_edge.backends.machine.threads import available_cores
from sapo_edge.policy import LoraSettings, UpdateSettings
from sapo_edge.state.paths import Paths
from sapo_edge.tasks.manifest import load_manifest
from sapo_edge.tasks.source import TaskSource
from tests.benchmarks.measure import seconds
from tests.benchmarks.work import embedded
from tests.contract.training import alternating

ROUND, ANSWERS, QUESTIONS = 8, 8, 200


def run(repeats: int, threads: int = 0) -> None:
    """Print both for each sampler, by the clock and by the processor; `threads` 0 takes one a core."""
    manifest = load_manifest("starter")
    tasks = TaskSource(manifest)
    held_out = [manifest.prompt_for(task.question) for task in tasks.held_out("validation", QUESTIONS)]
    prompts = [manifest.prompt_for(tasks.draw(1, index).question) for index in range(ROUND)]
    shape = LoraSettings().rank, ROUND, ANSWERS, PROMPT_TOKENS, manifest.max_tokens
    size = RoundShape(*shape, precision="auto", cache=Paths.default().cache)
    cores = threads or available_cores()
    print(f"\n### An evaluation of {len(held_out)} questions beside a round of {ROUND} x {ANSWERS}\n")
    print("| sampler | measured by | round (s) | evaluation (s) | rounds |\n|---|---|---|---|---|")
    for sampler in ("llama_cpp", "torch"):
        with tempfile.TemporaryDirectory() as workspace:
            policy = LlamaCppPolicy(embedded(workspace, threads=cores, precision="auto", sampler=sampler, size=size))

            def train(policy: LlamaCppPolicy = policy) -> None:
                sampled = policy.generate(prompts, ANSWERS, manifest.max_tokens, 1.0, 0)
                # So slow that the model, and with it the length of its answers, stays as it is.
                settings = UpdateSettings(learning_rate=1e-9, max_tokens=manifest.max_tokens)
                policy.update(list(map(alternating, prompts, sampled)), settings)

            def evaluate(policy: LlamaCppPolicy = policy) -> None:
                policy.generate(held_out, 1, manifest.max_tokens, 0.0, 0)

            pairs = [(_timed(train), _timed(evaluate)) for _ in range(repeats)]
            policy.close()
        for index, clock in enumerate(("clock", "processor time")):
            rounds, evaluations = ([one[index] for one in column] for column in zip(*pairs, strict=True))
            ratio = statistics.median(second / first for first, second in zip(rounds, evaluations, strict=True))
            medians = " | ".join(f"{statistics.median(times):.1f}" for times in (rounds, evaluations))
            print(f"| {sampler} | {clock} | {medians} | {ratio:.2f} |", flush=True)


def _timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds by the clock, and of the processor."""
    begin = time.process_time()
    elapsed = seconds(work)
    return elapsed, time.process_time() - begin
