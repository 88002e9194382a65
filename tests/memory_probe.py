"""`python -m tests.memory_probe BACKEND GROUPS ANSWERS PROMPT TOKENS [MODEL GB TRAINED]`: what such a round takes.

In a process of its own, because only a fresh one shows what a backend needs with its libraries. MODEL is a file, GB the
memory that it may take, TRAINED the number of groups that it learns from. Prints JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sapo_edge.backends.backend import RoundShape
from sapo_edge.care.sensors import peak_memory
from sapo_edge.policy import LoraSettings, Message, Policy, Prompt, UpdateSettings
from sapo_edge.state.paths import HOME_VARIABLE


def measure_memory(
    backend: str, cache: Path, shape: Sequence[str] = ("2", "4", "60", "16"), timeout: float = 400.0
) -> dict[str, int]:
    """Bytes: `peak` of a fresh process, `measured` without what Python takes, and `estimate` of that.

    The cache is that of a state directory, where the file to sample from is remembered; the shape is the command's
    other arguments.
    """
    command = [sys.executable, "-m", "tests.memory_probe", backend, *shape]
    environment = {**os.environ, HOME_VARIABLE: str(cache.parent)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout, check=False)
    assert ended.returncode == 0, ended.stderr
    return dict(json.loads(ended.stdout))


def open_policy(backend: str, directory: Path, model: str, size: RoundShape | None) -> Policy:
    """A policy on one thread of the CPU; MLX computes where it always does."""
    from sapo_edge.backends.choose.detect import find_backend
    from sapo_edge.backends.pytorch.policy import TorchPolicy
    from tests.benchmarks.work import embedded

    options = embedded(directory, Path(model) if model else None, threads=1, precision="auto", size=size)
    return TorchPolicy(options, "cpu") if backend == "torch" else find_backend(backend).open(options)


def prompts(policy: Policy, groups: int, tokens: int) -> list[Prompt]:
    """Prompts of about so many tokens each."""
    words = [f"{index} and " for index in range(1000)]
    made: list[Prompt] = []
    for group in range(groups):
        text = f"Number {group}. "
        while len(policy.encode(text)) < tokens - 30:
            text += "".join(words[group : group + 8])
        made.append((Message("user", text),))
    return made


def main() -> None:
    """Sample and learn a few tokens, then for all questions, and print the peak beside the estimate."""
    backend, *numbers = sys.argv[1:]
    groups, answers, prompt, tokens = map(int, numbers[:4])
    model, size, trained = "", None, groups
    if numbers[4:]:
        model, memory = numbers[4], int(float(numbers[5]) * 1e9)
        size, trained = RoundShape(LoraSettings().rank, groups, answers, prompt, tokens, memory=memory), int(numbers[6])
    before = peak_memory()
    with tempfile.TemporaryDirectory() as directory:
        policy = open_policy(backend, Path(directory), model, size)
        # It loads libraries, which are the backend's.
        from tests.contract.training import alternating

        asked = prompts(policy, groups, prompt)
        # The optimizer's memory is there from the first step on, however small that is.
        for seed, (count, each, length) in enumerate(((1, 1, min(4, tokens)), (groups, answers, tokens))):
            sampled = policy.generate(asked[:count], each, length, 1.0, seed, stop_text="")
            policy.update(list(map(alternating, asked[:count], sampled))[:trained], UpdateSettings())
        estimate = policy.memory_estimate(groups, answers, prompt, tokens)
        peak = peak_memory()
        print(json.dumps({"peak": peak, "measured": peak - before, "estimate": estimate}))
        policy.close()


if __name__ == "__main__":
    main()
