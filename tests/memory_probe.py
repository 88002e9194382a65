"""`python -m tests.memory_probe BACKEND GROUPS ANSWERS PROMPT TOKENS`: what a round of this shape takes, as JSON.

In a process of its own, because only a fresh one shows what a backend needs with its libraries.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from sapo_edge.care.sensors import peak_memory
from sapo_edge.policy import Message, Policy, Prompt, TrainingAnswer, TrainingGroup, UpdateSettings
from sapo_edge.state.paths import HOME_VARIABLE


def measure_memory(backend: str, cache: Path) -> dict[str, int]:
    """Bytes of a small round, measured in a fresh process, and as estimated.

    Args:
        backend: "torch", "mlx" or "llama_cpp".
        cache: directory `cache` of a state directory: which file to sample from is remembered there.
    """
    ended = subprocess.run(
        [sys.executable, "-m", "tests.memory_probe", backend, "2", "4", "60", "16"],
        env={**os.environ, HOME_VARIABLE: str(cache.parent)},
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return dict(json.loads(ended.stdout))


def open_policy(backend: str, directory: Path, *, trainable: bool) -> Policy:
    """A policy of the embedded model on one thread."""
    from sapo_edge.backends.model.find import find_model

    if backend == "torch":
        from sapo_edge.backends.pytorch.policy import TorchPolicy

        return TorchPolicy(find_model(""), device="cpu", threads=1, trainable=trainable)
    if backend == "mlx":
        from sapo_edge.backends.apple.policy import MlxPolicy

        return MlxPolicy(find_model(""), threads=1, trainable=trainable)
    from sapo_edge.backends.llama.policy import LlamaCppPolicy
    from sapo_edge.state.paths import Paths

    return LlamaCppPolicy(
        find_model(""), cache=Paths.default().cache, workspace=directory, threads=1, trainable=trainable
    )


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
    """Sample and learn twice, and print the peak beside the estimate."""
    backend, *numbers = sys.argv[1:]
    groups, answers, prompt, tokens = map(int, numbers[:4])
    before = peak_memory()
    with tempfile.TemporaryDirectory() as directory:
        policy = open_policy(backend, Path(directory), trainable=True)
        asked = prompts(policy, groups, prompt)
        for seed in range(2):
            sampled = policy.generate(asked, answers, tokens, 1.0, seed, stop_text="")
            batch = [
                TrainingGroup(
                    one,
                    tuple(
                        TrainingAnswer(s.text, s.ended, 1.0 - 2.0 * (index % 2), s.token_ids, s.logprobs)
                        for index, s in enumerate(group)
                    ),
                )
                for one, group in zip(asked, sampled, strict=True)
            ]
            policy.update(batch, UpdateSettings())
        estimate = policy.memory_estimate(groups, answers, prompt, tokens)
        print(json.dumps({"measured": peak_memory() - before, "estimate": estimate.total}))
        policy.close()


if __name__ == "__main__":
    main()
