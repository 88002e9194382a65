"""A node's evaluations: validation during a run, and the comparison with the base model at its end.

The validation set is asked every few rounds and chooses the best checkpoint. The test set is asked once, after the last
round, of the base model and of the best checkpoint: both then answer in the same process, so the gain is paired, and a
run that is stopped earlier spends nothing on it. `sapo eval` makes the same comparison at any time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sapo_edge.control.event_words import describe_too_long
from sapo_edge.evaluate import Evaluation, evaluate, evaluate_base, paired_gain
from sapo_edge.events import FORMED, WRONG, Comparison, Event, HeldOut, Notice
from sapo_edge.policy import CallHandle, Policy
from sapo_edge.rollout import Task
from sapo_edge.state.checkpoint import Checkpoint
from sapo_edge.state.detail import AHEAD, EXAMPLES, TRAINED, Detail, Example
from sapo_edge.state.store import Store
from sapo_edge.tasks.held_out import Split
from sapo_edge.tasks.source import TaskSource


class Emit(Protocol):
    """Journals an event with counters, and passes it on."""

    def __call__(self, event: Event, counters: Mapping[str, int] | None = None) -> None: ...


@dataclass(slots=True)
class Evaluations:
    """Evaluates a node's policy and records the results.

    Attributes:
        store: its journal and checkpoints record the results.
        questions: most questions of each set; 0 makes no evaluations.
        judge: says what an evaluation that is not journaled yet changes: counters, and what to tell the user.
        call_handle: progress and cancellation of one evaluation.
        warned: sets of which was said that they have questions that are too long.
        seconds: that the last evaluation took, without pauses.
    """

    policy: Policy
    source: TaskSource
    store: Store
    questions: int
    max_tokens: int
    thinking: bool
    emit: Emit
    judge: Callable[[HeldOut], tuple[Mapping[str, int], Notice | None]]
    call_handle: Callable[[], CallHandle]
    warned: set[Split] = field(default_factory=set, init=False)
    seconds: float = field(default=0.0, init=False)

    @property
    def asked(self) -> tuple[int, str]:
        """What a validation asks, as `Checkpoint.asked`."""
        return len(self.source.held_out("validation", self.questions)), self._question_set("validation")

    def validate(self, round: int) -> None:
        """Evaluate the policy on the validation set unless this was done after this round, and record the accuracy.

        The journal has the result first, then the checkpoint of the round, if there is one: a node that is killed in
        between completes the checkpoint here at its next start.
        """
        questions, question_set = self.asked
        if not questions:
            return
        event = self.store.journal.held_out_after(round, "validation")
        if event is None or event.question_set != question_set:
            result = self.ask("validation")
            low, high = result.interval
            event = HeldOut(
                round=round, accuracy=result.accuracy, correct=result.right, questions=result.questions,
                low=low, high=high, split="validation", answers=result.marks, question_set=question_set,
            )  # fmt: skip
            counters, notice = self.judge(event)
            self.emit(event, counters)
            self.keep_detail("validation", round, result)
            if notice is not None:
                self.emit(notice)
        latest = self.store.latest
        if latest is not None and latest.round == round and latest.asked != (questions, question_set):
            self.store.record_accuracy(round, event.accuracy, event.questions, question_set)

    def compare(self, best: Checkpoint, last: Comparison | None) -> Comparison | None:
        """Compare the base model with a checkpoint on the test set, unless the last comparison was the same.

        Loads the checkpoint into the policy, and returns the newest comparison; None if there is none.
        """
        tasks, question_set = self.source.held_out("test", self.questions), self._question_set("test")
        asked = best.round, len(tasks), question_set
        if not tasks or (last is not None and (last.round, last.questions, last.question_set) == asked):
            return last
        self.policy.load(best.directory)
        base, examples = evaluate_base(self.policy, self.source, tasks, self.max_tokens, self.call_handle)
        adapter = self.ask("test")
        # Before the comparison, which names them: a node that is killed in between repeats both.
        self.keep_detail("test", 0, base)
        self.keep_detail("test", best.round, adapter, ahead=not best.round)
        self._compare_trained(best.round)
        gain = paired_gain(base.marks, adapter.marks)
        comparison = Comparison(
            round=best.round, questions=base.questions, base=base.right, adapter=adapter.right,
            gain=gain.value, low=gain.low, high=gain.high, question_set=question_set,
            base_answers=base.marks, adapter_answers=adapter.marks, base_examples=examples,
        )  # fmt: skip
        self.emit(comparison)
        return comparison

    def _question_set(self, split: Split) -> str:
        """Mark of a set and of how it is asked, if not as the manifest says: other limits give other accuracies."""
        mark = self.source.question_set(split, self.questions)
        limit = "" if self.max_tokens == self.source.manifest.max_tokens else f"-{self.max_tokens}"
        return f"{mark}{limit}{'-thinking' if self.thinking else ''}"

    def _compare_trained(self, round: int) -> None:
        """Keep the answers of both to the first own questions that were trained on: their owner looks for them."""
        tasks = self.source.own_training(EXAMPLES)
        for after, use_adapter in ((0, False), (round, True)) if tasks and round else ():
            result = self._ask(tasks, use_adapter=use_adapter)
            self.store.journal.record_detail(TRAINED, after, _detail(tasks, result))

    def keep_detail(self, split: Split, round: int, result: Evaluation, *, ahead: bool = False) -> None:
        """Keep right answers by task, and the first few answers; `ahead`: they are of a head start."""
        tasks = self.source.held_out(split, min(self.questions, EXAMPLES))
        self.store.journal.record_detail(f"{split}{AHEAD if ahead else ''}", round, _detail(tasks, result))

    def ask(self, split: Split) -> Evaluation:
        """The policy's answers to a set, which are not recorded; a warning, once, of questions that are too long."""
        result = self._ask(self.source.held_out(split, self.questions))
        if result.too_long and split not in self.warned:
            self.warned.add(split)
            remark = describe_too_long(result.too_long, result.questions)
            self.emit(Notice(level="warning", text=f"held-out {split}: {remark}"))
        return result

    def _ask(self, tasks: Sequence[Task], *, use_adapter: bool = True) -> Evaluation:
        begin, handle = time.monotonic(), self.call_handle()
        result = evaluate(
            self.policy, tasks, self.source.manifest.prompt_for, self.source.judge, self.max_tokens, handle,
            use_adapter=use_adapter,
        )  # fmt: skip
        self.seconds = time.monotonic() - begin - handle.paused_seconds
        return result


def _detail(tasks: Sequence[Task], result: Evaluation) -> Detail:
    """All marks, and the answers to the first tasks."""
    examples = (
        Example(task.ref.entry, task.question, task.ground_truth, text, mark != WRONG, mark == FORMED)
        for task, text, mark in zip(tasks, result.texts, result.marks, strict=False)
    )
    return Detail(result.marks_by_entry(), tuple(examples))
