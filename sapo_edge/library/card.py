"""The model card of an adapter: what it is, what was measured, and how to use and to repeat it. Nothing is invented."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

import sapo_edge
from sapo_edge.plain import counted

if TYPE_CHECKING:
    from sapo_edge.backends.hub.base import Base
    from sapo_edge.control.report import Report
    from sapo_edge.state.checkpoint import Checkpoint
    from sapo_edge.tasks.manifest import Manifest

TAGS = ("lora", "reinforcement-learning", "grpo", "sapo", "sapo-edge")
LEARNING = (
    "own", "external", "protect", "answers", "strategy", "temperature", "max_tokens", "learning_rate", "warmup",
    "head_start", "corrections", "decay_after", "external_negatives", "rank", "alpha", "thinking", "quantise",
    "evaluate_every", "held_out",
)  # fmt: skip
"""Settings that belong to the command that repeats a run. No other is named: some hold paths and addresses."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is told of a checkpoint.

    Attributes:
        manifest: what it was trained on; None if it is not on this machine.
        learned: the figures of this very checkpoint; None if nobody measured it.
        external: rollouts of others that were trained on up to this round; None if unknown.
        origin: adapter of others that its run began with, in words; "" for the untrained model.
    """

    checkpoint: Checkpoint
    base: Base
    manifest: Manifest | None
    learned: Report | None
    external: int | None
    origin: str
    with_questions: bool

    @property
    def is_whole(self) -> bool:
        """Whether the manifest is told with all that it holds."""
        return self.manifest is not None and (self.with_questions or not self.manifest.own_questions)

    @property
    def head_start(self) -> int:
        """Updates before the first round."""
        state = self.checkpoint.cursor.get("head_start")
        return int(state["updates"]) if isinstance(state, Mapping) else 0


def write_card(facts: Facts, repository: str, merged: str) -> str:
    """The text of README.md in the repository "owner/name"; `merged` names the GGUF file beside it, "" without one."""
    from huggingface_hub import ModelCard, ModelCardData

    base, manifest = facts.base, facts.manifest
    data = ModelCardData(
        base_model=base.repository or None,
        library_name="peft",
        license=base.licence or None,
        language=list(base.languages) or None,
        pipeline_tag="text-generation",
        tags=list(TAGS),
    )
    template = resources.files("sapo_edge.library").joinpath("card.md").read_text("utf-8")
    return str(
        ModelCard.from_template(
            data,
            template_str=template,
            repository=repository,
            version=sapo_edge.__version__,
            facts=facts,
            head_start=f"{counted(facts.head_start, 'update')} on right answers" if facts.head_start else "none",
            external="not known" if facts.external is None else f"{counted(facts.external, 'rollout')} trained on",
            learned=_learned(facts),
            prompt=[] if manifest is None else list(_prompt(facts, manifest)),
            prompt_note=_prompt_note(facts),
            merged=merged,
            pull_flags=_pull_flags(facts),
            command=_command(facts),
        )
    )


def _learned(facts: Facts) -> dict[str, Any] | None:
    from sapo_edge.control.event_words import FEW, TOO_FEW
    from sapo_edge.control.report_words import CHOSEN, FAIR
    from sapo_edge.evaluate import wilson_interval

    report = facts.learned
    if report is None or not report.questions:
        return None

    def row(name: str, right: int) -> tuple[str, int, str]:
        low, high = wilson_interval(right, report.questions)
        return name, right, f"{right / report.questions:.3f} [{low:.3f}, {high:.3f}]"

    # Validation questions were first asked when the run began, which need not have been with the base model.
    is_base = report.split == "test" or not facts.origin
    examples = f", shown {report.base_examples} more worked examples" if report.base_examples else ""
    before = f"base model{examples}" if is_base else f"the adapter of {facts.origin}"
    gain = report.gain
    figure = f"Gain: {gain.value:+z.3f} [{gain.low:+z.3f}, {gain.high:+z.3f}], paired on the same questions."
    return {
        "questions": report.questions,
        "split": report.split,
        "rows": [row(before, report.before), row("adapter", report.now)],
        "gain": figure if report.questions >= FEW else f"{TOO_FEW.capitalize()}.",
        "changed": f"{gain.gained} became right, {gain.lost} became wrong.",
        "chosen": FAIR if report.split == "test" else CHOSEN,
    }


def _prompt(facts: Facts, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """The turns before a question. Worked examples of a manifest with own questions are told with these alone."""
    for message in manifest.prompt_for("")[:-1]:
        if message.role == "system" or facts.is_whole:
            yield message.role.capitalize(), _fenced(message.content)


def _prompt_note(facts: Facts) -> str:
    if facts.manifest is None:
        return "It is in the manifest, which was not on the machine that published this."
    examples, text = len(facts.manifest.examples), "Before each question, which is the user's turn."
    if not facts.manifest.system and not examples:
        return "None: a question is the only turn."
    if examples and not facts.is_whole:
        text += f" {counted(examples, 'worked example')}, which stayed with the owner, followed."
    return text


def _fenced(text: str) -> str:
    """A text as Markdown shows it unchanged, whatever it holds."""
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", text) or [""]))
    return f"{fence}text\n{text}\n{fence}"


def _command(facts: Facts) -> str:
    from sapo_edge.backends.hub.name import HUB
    from sapo_edge.config.settings import SETTINGS
    from sapo_edge.tasks.manifest import shipped_name

    checkpoint = facts.checkpoint
    model = str(checkpoint.settings.get("model") or "")
    name = shipped_name(checkpoint.manifest_digest) or checkpoint.manifest_digest[:12]
    rounds = max(1, checkpoint.round)
    words = ["sapo", "run", "--manifest", name, "--seed", str(checkpoint.seed), "--rounds", str(rounds)]
    if model:
        words += ["--model", model if model.startswith(HUB) else facts.base.name]
    if facts.external == 0:
        words.append("--solo")
    for setting in LEARNING:
        value = checkpoint.settings.get(setting)
        if value is not None and value != SETTINGS[setting].default:
            words += ["--set", f"{setting}={value}"]
    return shlex.join(words)


def _pull_flags(facts: Facts) -> str:
    from sapo_edge.backends.hub.name import HUB

    model = str(facts.checkpoint.settings.get("model") or "")
    named = f" --model {shlex.quote(model) if model.startswith(HUB) else 'FILE'}" if model else ""
    return named + ("" if facts.is_whole else " --manifest FILE")
