"""What an hour of a processor teaches: content on held-out questions by processor seconds, ours beside TRL.

`python -m tests.benchmarks.learning --manifest home --seed 1 --seed 2 --minutes 20 [--arm default ...] --output DIR`

Each arm has one thread and the same processor seconds for learning; what validation takes counts for nobody. All ask
the same validation questions of the same model, greedily, and judge them alike. Finished arms are not repeated. TRL
(the extra `bench`) spends the first half on SFTTrainer with the right answers of training questions, eight in a batch,
and the other half on GRPOTrainer with the manifest's rewards, eight answers to each of eight questions; both train a
LoRA adapter of the shape of ours on the weights that ours trains.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

from sapo_edge.experiment.measures import area
from sapo_edge.rollout import Task
from sapo_edge.tasks.manifest import load_manifest
from sapo_edge.tasks.source import TaskSource, derive_seed
from tests.benchmarks.measure import Gauge, machine
from tests.undisturbed import UNDISTURBED

ARMS: dict[str, tuple[str, ...]] = {
    "default": (),
    "supervised alone": ("head_start=20000",),
    "rounds alone": ("head_start=0", "corrections=off"),
    "TRL": (),
}
"""Settings of ours by arm."""
QUESTIONS = 200
RATES = {"sft": 5e-4, "grpo": 2e-5}
"""TRL's learning rates, of the size that is usual for LoRA."""
Point = tuple[float, float]
"""Processor seconds of learning, and the share of validation questions that is answered rightly."""


def main() -> None:
    """Run the arms that are missing, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.learning", description=__doc__)
    parser.add_argument("--manifest", action="append", required=True)
    parser.add_argument("--seed", type=int, action="append", required=True)
    parser.add_argument("--minutes", type=float, default=20.0, help="of a processor, for each arm")
    parser.add_argument("--arm", action="append", choices=ARMS)
    parser.add_argument("--output", type=Path, required=True, help="directory for the curves")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    print(f"machine: {machine()}\n\n| manifest | arm | area | at the end | processor seconds |\n|---|---|---|---|---|")
    for manifest in arguments.manifest:
        for arm in arguments.arm or ARMS:
            curves = []
            for seed in arguments.seed:
                file = arguments.output / f"{Path(manifest).stem}-{arm.replace(' ', '-')}-{seed}.json"
                if not file.exists():
                    points = list(_run(manifest, arm, seed, 60 * arguments.minutes, arguments.output))
                    file.write_text(json.dumps(points))
                curves.append([(float(second), float(share)) for second, share in json.loads(file.read_text())])
            areas, ends = [area(curve) for curve in curves], [curve[-1][1] for curve in curves]
            seconds = mean(curve[-1][0] for curve in curves)
            print(f"| {manifest} | {arm} | {_figures(areas)} | {_figures(ends)} | {seconds:.0f} |", flush=True)


def _figures(values: list[float]) -> str:
    return f"{mean(values):.3f} ({', '.join(f'{value:.2f}' for value in values)})"


def _run(manifest: str, arm: str, seed: int, seconds: float, output: Path) -> Iterator[Point]:
    """The curve of one arm, made in a process of its own."""
    environment = {**os.environ, **UNDISTURBED, "SAPO_EDGE_HEAD_START": "auto", "OMP_NUM_THREADS": "1"}
    cache = output.resolve() / "cache"
    cache.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        # What samples faster is measured once, not for each arm.
        Path(home, "cache").symlink_to(cache, target_is_directory=True)
        command = [
            sys.executable, "-m", "sapo_edge", "run", "--solo", "--json", "--home", home, "--manifest", manifest,
            "--seed", str(seed), "--threads", "1", "--set", f"held_out={QUESTIONS}",
            *(part for name in ARMS[arm] for part in ("--set", name)),
        ]  # fmt: skip
        if arm == "TRL":
            this = "import sys; from tests.benchmarks.learning import trl; trl(*sys.argv[1:])"
            command = [sys.executable, "-c", this, manifest, str(seed), str(seconds)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stdout is not None
            yield from (_trl_points if arm == "TRL" else _points)(process, process.stdout, seconds)
            process.terminate()


def _points(process: subprocess.Popen[str], lines: Iterator[str], seconds: float) -> Iterator[Point]:
    """The validations of a node, by the processor seconds that it had spent on everything else since the first."""
    learned, before, evaluating, gauge = 0.0, 0.0, True, Gauge(process.pid)
    for line in lines:
        event, now = json.loads(line), gauge.cpu()
        # Of what came before the first line, nothing counts.
        learned += 0.0 if evaluating else now - before
        before, evaluating = now, event.get("phase") == "evaluate"
        if event["event"] in ("held_out", "head_start"):
            yield learned, event["accuracy"]
            if learned >= seconds:
                return


def _trl_points(_process: subprocess.Popen[str], lines: Iterator[str], _seconds: float) -> Iterator[Point]:
    for line in lines:
        if line.startswith("["):
            yield tuple(json.loads(line))


def trl(manifest: str, seed_text: str, seconds_text: str) -> None:
    """Train with TRL, and print [processor seconds, share] at each validation."""
    seed, seconds = int(seed_text), float(seconds_text)
    import torch
    from datasets import Dataset
    from peft import LoraConfig, get_peft_model
    from transformers import AutoTokenizer, TrainerCallback, set_seed
    from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

    from sapo_edge.backends.machine.host import multiplies_bfloat16
    from sapo_edge.backends.model.find import find_model
    from sapo_edge.backends.model.gguf_header import read_header
    from sapo_edge.backends.pytorch.model import load_base
    from sapo_edge.backends.pytorch.policy import TorchPolicy
    from sapo_edge.evaluate import evaluate
    from tests.benchmarks.work import embedded

    torch.set_num_threads(1)
    set_seed(seed)
    source, path = TaskSource(load_manifest(manifest)), find_model("")
    limit, asked = source.manifest.max_tokens, source.held_out("validation", QUESTIONS)
    tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name, padding_side="left")
    base = load_base(read_header(path))
    base.set_attn_implementation("sdpa")
    lora = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(base.to(torch.float32), lora)
    tasks: dict[str, Task] = {}
    cursor = 0
    while len(tasks) < 20000 and cursor < 40000:
        drawn, cursor = source.training_tasks(derive_seed("trl", seed), cursor, 100)
        tasks.update({task.question: task for task in drawn})
    asked_for = map(source.manifest.prompt_for, tasks)
    rows = [{"prompt": [{"role": turn.role, "content": turn.content} for turn in prompt]} for prompt in asked_for]
    spent = 0.0
    with tempfile.TemporaryDirectory() as workspace:
        directory = Path(workspace)
        # Three times as fast as a prebuilt llama.cpp, and nobody is charged for validation.
        sampler = TorchPolicy(embedded(directory, threads=1, trainable=False))

        def validate() -> None:
            model.save_pretrained(str(directory / "adapter"))
            sampler.load(directory / "adapter")
            share = evaluate(sampler, asked, source.manifest.prompt_for, source.judge, limit).accuracy
            print(json.dumps([spent, share]), flush=True)

        class Until(TrainerCallback):  # type: ignore[misc]
            """Adds up the steps' processor time, validates five times, and ends the trainer after its share of it."""

            def __init__(self, end: float) -> None:
                self.end, self.next = end, spent + seconds / 5

            def on_step_begin(self, _settings: Any, _state: Any, _control: Any, **_others: Any) -> None:
                self.begin = time.process_time()

            def on_step_end(self, _settings: Any, _state: Any, control: Any, **_others: Any) -> None:
                nonlocal spent
                spent += time.process_time() - self.begin
                control.should_training_stop = spent >= self.end
                if spent >= min(self.next, self.end):
                    validate()
                    self.next += seconds / 5

        def reward(prompts: list[Any], completions: list[Any], **_others: Any) -> list[float]:
            pairs = zip(prompts, completions, strict=True)
            return [source.score(tasks[prompt[-1]["content"]], answer[0]["content"]) for prompt, answer in pairs]

        common: dict[str, Any] = {
            "output_dir": workspace, "max_steps": 100_000, "lr_scheduler_type": "constant_with_warmup", "seed": seed,
            "warmup_steps": 5, "use_cpu": True, "bf16": multiplies_bfloat16(), "gradient_checkpointing": False,
            "save_strategy": "no", "report_to": "none", "disable_tqdm": True, "logging_strategy": "no",
            "per_device_train_batch_size": 8,
        }  # fmt: skip
        answers = {task.question: source.right_answer(task) for task in tasks.values()}
        pairs = [
            {**row, "completion": [{"role": "assistant", "content": answer}]}
            for row, answer in zip(rows, answers.values(), strict=True)
            if answer is not None
        ]
        validate()
        sft = SFTConfig(**common, learning_rate=RATES["sft"], completion_only_loss=True)
        SFTTrainer(
            model=model, args=sft, train_dataset=Dataset.from_list(pairs), processing_class=tokenizer,
            callbacks=[Until(seconds / 2)],
        ).train()  # fmt: skip
        grpo = GRPOConfig(
            **common, learning_rate=RATES["grpo"], gradient_accumulation_steps=8, num_generations=8, beta=0.0,
            max_completion_length=limit, temperature=1.0, top_k=0, top_p=1.0,
        )  # fmt: skip
        GRPOTrainer(
            model=model, reward_funcs=reward, args=grpo, train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer, callbacks=[Until(seconds)],
        ).train()  # fmt: skip


if __name__ == "__main__":
    main()
