"""Groups as the learner wants them: texts as token ids, and what is counted over all answers given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sapo_edge.backends.common.packing import EncodedAnswer, EncodedGroup
from sapo_edge.backends.model.vocabularies import Vocabulary
from sapo_edge.policy import STOP_TEXT, TrainingAnswer, TrainingGroup, UpdateStatistics


def encode_group(vocabulary: Vocabulary, group: TrainingGroup, max_tokens: int = 0) -> EncodedGroup:
    """A group as token ids; `max_tokens` cuts answers of others, 0 cuts none."""
    answers = [
        EncodedAnswer(answer_ids(vocabulary, answer, max_tokens), answer.advantage, answer.logprobs)
        for answer in group.answers
    ]
    # An empty external answer has no token to learn from.
    return EncodedGroup(tuple(vocabulary.encode_prompt(group.prompt)), tuple(a for a in answers if a.token_ids))


def answer_ids(vocabulary: Vocabulary, answer: TrainingAnswer, max_tokens: int) -> tuple[int, ...]:
    """Own answers keep what was sampled. External text is encoded, and gets the end token if its author's policy
    chose it: it ended by itself, and not because sampling stops at the stop text. It is cut like own answers are:
    a stranger's long ones would take hours and gigabytes."""
    if answer.token_ids is not None:
        return answer.token_ids
    end = [vocabulary.end_token] if answer.ended and STOP_TEXT not in answer.text else []
    ids = vocabulary.tokenize(answer.text, special=False) + end
    return tuple(ids[:max_tokens] if max_tokens else ids)


def counted(
    statistics: UpdateStatistics, groups: Sequence[TrainingGroup], encoded: Sequence[EncodedGroup]
) -> UpdateStatistics:
    """The learner's statistics with those that are over all answers given, also those without a token."""
    tokens = sum(len(answer.token_ids) for group in encoded for answer in group.answers)
    ended = [answer.ended for group in groups for answer in group.answers]
    return replace(statistics, answer_tokens=tokens / max(len(ended), 1), ended=sum(ended) / max(len(ended), 1))
