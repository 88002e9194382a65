"""Hostile members: what they publish passes every check, and does what they claim."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from itertools import islice
from operator import methodcaller
from random import Random

import pytest

from sapo_edge.experiment.forgery import Public, commonest_answer, cut_at_first_close, filled, wrapped, wrong_answers
from sapo_edge.experiment.hostile import ATTACKS, FLOOD, Attacker, carries
from sapo_edge.rollout import MAX_ANSWER_BYTES, MAX_ANSWERS, Answer, Rollout
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.judging.admission import Admission
from sapo_edge.swarm.judging.external import verified_task
from sapo_edge.swarm.judging.reputation import Reputation
from sapo_edge.swarm.wire.record import MAX_BODY_BYTES, decode_record, sign_rollout
from sapo_edge.tasks.manifest import load_manifest
from sapo_edge.tasks.readings import CLOSE_TAG, OPEN_TAG
from sapo_edge.tasks.source import TaskSource

ENEMY, VICTIM = Identity(b"\x01" * 32), Identity(b"\x02" * 32)
SWARM = b"\x5a" * 32
LIMIT = 96


SOURCE = TaskSource(load_manifest("starter-2"))


def known(source: TaskSource, limit: int) -> Public:
    """What is public of a manifest; the tokens are bytes."""
    return Public(source, lambda text: list(text.encode()), limit)


PUBLIC = known(SOURCE, LIMIT)
"""With answers long enough for every attack."""
NINE = known(TaskSource(load_manifest("reasoning-gym-nine")), 2000)
"""Tasks with texts for answers, and some without a ground truth."""


def attacker(public: Public, name: str, seed: int = 0) -> Attacker:
    return ATTACKS[name](public, ENEMY.peer_id, seed)


def honest() -> list[Rollout]:
    """Rollouts of a member who reasons, and is right in half of its answers."""
    rollouts = []
    for sequence, task in enumerate(SOURCE.training_tasks(77, 0, 3)[0]):
        texts = ("I don't know.", f"Step by step: <answer>{task.ground_truth}</answer>")
        answers, asked = tuple(Answer(text, True) for text in texts), (task.ref, task.question, task.ground_truth)
        rollouts.append(Rollout(*asked, answers, VICTIM.peer_id, 1, sequence, time.time()))
    return rollouts


def texts_of(rollouts: Sequence[Rollout]) -> list[str]:
    return [answer.text for rollout in rollouts for answer in rollout.answers]


def first_pair_scores(public: Public, rollout: Rollout) -> list[float]:
    """Rewards by a reader who cuts an answer at its first closing tag before anything else."""
    task = verified_task(public.source, rollout)
    return [public.source.score(task, cut_at_first_close(answer.text)) for answer in rollout.answers]


def whole_text_scores(public: Public, rollout: Rollout) -> list[float]:
    """Rewards by a reader who scores all that was sent, and so reads the last pair of tags."""
    task = verified_task(public.source, rollout)
    right, last = task.ground_truth, [answer.text.rpartition(OPEN_TAG)[2] for answer in rollout.answers]
    return [float(text.partition(CLOSE_TAG)[0].strip() == right and CLOSE_TAG in text) for text in last]


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("limit", [24, LIMIT])
def test_every_rollout_passes_admission(name: str, limit: int) -> None:
    enemy = attacker(known(SOURCE, limit), name)
    # A minute passes between rollouts: rates are not what is tested, and long ones reach theirs.
    minutes = itertools.count(0, 60)
    admission = Admission(SWARM, SOURCE, Reputation(lambda: float(next(minutes))), own=VICTIM.peer_id)
    published = [rollout for number in (1, 2) for rollout in enemy.rollouts(number, honest(), 4)]
    assert bool(published) == (name != "silence")
    for rollout in published:
        signed = sign_rollout(rollout, SWARM, ENEMY)
        assert len(signed.record.body) <= MAX_BODY_BYTES
        assert decode_record(signed.record).rollout == rollout
        assert admission.check_records([signed.record], ENEMY.peer_id).accepted, rollout
        assert admission.check_task(signed) is None
    assert [rollout.sequence for rollout in published] == list(range(len(published)))
    assert {rollout.round for rollout in published} <= {1, 2}


@pytest.mark.parametrize("name", ATTACKS)
def test_the_seed_determines_what_is_published(name: str) -> None:
    seen = honest()

    def publish(seed: int) -> list[str]:
        return texts_of(attacker(PUBLIC, name, seed).rollouts(1, seen, 4))

    assert publish(3) == publish(3)
    if name != "silence":
        assert publish(3) != publish(4)


@pytest.mark.parametrize("name", sorted(set(ATTACKS) - {"silence", "inversion"}))
def test_every_group_teaches_after_the_cut(name: str) -> None:
    """It has right and wrong answers among those that count, as an attacker needs who knows the rule."""
    for rollout in attacker(PUBLIC, name).rollouts(1, honest(), 6):
        assert set(first_pair_scores(PUBLIC, rollout)[: PUBLIC.answers]) == {0.0, 1.0}, rollout
        right = first_pair_scores(PUBLIC, rollout).index(1.0)
        assert PUBLIC.fits(cut_at_first_close(rollout.answers[right].text)), "cut off before its end, it is wrong"
    for rollout in attacker(NINE, name).rollouts(1, [], 1) if name != "wrong_end" else ():
        assert {0.0, 1.0} <= set(first_pair_scores(NINE, rollout)[: NINE.answers])


def test_inversion_earns_by_the_last_pair_and_nothing_by_the_first() -> None:
    for rollout in attacker(PUBLIC, "inversion").rollouts(1, [], 4):
        assert whole_text_scores(PUBLIC, rollout) == [1.0] * 4 + [0.0] * 4
        assert first_pair_scores(PUBLIC, rollout) == [0.0] * 8


def test_long_answers_are_as_long_as_allowed_and_unlikely_ones_full_of_rare_characters() -> None:
    (rollout,) = attacker(PUBLIC, "long").rollouts(1, [], 1)
    assert len(rollout.answers) == MAX_ANSWERS
    assert {len(answer.text.encode()) for answer in rollout.answers} == {MAX_ANSWER_BYTES}
    assert sum(first_pair_scores(PUBLIC, rollout)) == sum(whole_text_scores(PUBLIC, rollout)) == 1.0
    for lead in ("", "a", "ab", "abc"):
        assert len(filled(lead, "𐍈").encode()) == MAX_ANSWER_BYTES, "half a character"
    for text in texts_of(attacker(PUBLIC, "unlikely").rollouts(1, [], 3)):
        rare = text.partition(OPEN_TAG)[0]
        assert len(PUBLIC.encode(text)) > LIMIT - 4, "another rare character would have fitted"
        assert not set(rare) & set("abcdefghijklmnopqrstuvwxyz0123456789 ")


def test_a_wrong_end_keeps_the_victims_reasoning() -> None:
    seen = honest()
    for rollout, original in zip(attacker(PUBLIC, "wrong_end").rollouts(1, seen, 3), reversed(seen), strict=True):
        assert rollout.ref == original.ref
        assert first_pair_scores(PUBLIC, rollout) == [0.0] + [1.0] * 31
        assert rollout.answers[0].text.startswith("Step by step: <answer>")
        assert not any(answer.text.startswith("Step") for answer in rollout.answers[1:])
        assert len({answer.text for answer in rollout.answers}) > 20
    enemy = attacker(PUBLIC, "wrong_end")
    own = enemy.rollouts(1, [], 2)
    assert len(own) == 2, "without anything to copy it writes its own"
    assert enemy.rollouts(2, own[1:], 1)[0].ref != own[1].ref, "nobody copies itself"


@pytest.mark.parametrize("limit", [24, 30, LIMIT])
def test_the_advertisement_stands_before_right_answers_only(limit: int) -> None:
    public = known(SOURCE, limit)
    for rollout in attacker(public, "advertisement").rollouts(1, [], 8):
        for answer, score in zip(rollout.answers, first_pair_scores(public, rollout), strict=True):
            has_room = public.fits("Zupp " + wrapped(rollout.ground_truth))
            assert carries(answer.text) == (score == 1.0 and has_room)
    assert not carries("<answer>7</answer>")


def test_repetition_changes_numbers_and_the_text_a_little_and_a_flood_is_many_groups_with_one_right_answer() -> None:
    enemy = attacker(PUBLIC, "repetition")
    rollouts = [rollout for number in range(4) for rollout in enemy.rollouts(number, [], 2)]
    assert len(rollouts) == 4 * 2 * FLOOD
    assert len({rollout.ref for rollout in rollouts}) == 1
    assert len({texts[0] for texts in map(texts_of, ([rollout] for rollout in rollouts))}) == len(rollouts)
    plain = {tuple(text.casefold().replace(" ", "").rstrip(".") for text in texts_of([r])) for r in rollouts}
    assert len(plain) == 1
    rollouts = attacker(PUBLIC, "flood").rollouts(1, [], 4)
    assert len(rollouts) == 4 * FLOOD
    assert {sum(first_pair_scores(PUBLIC, rollout)) for rollout in rollouts} == {1.0}
    assert len({rollout.ref for rollout in rollouts}) == len(rollouts)


def test_degenerate_answers_are_short_and_of_one_task_and_constant_ones_the_most_frequent() -> None:
    rollouts = attacker(PUBLIC, "degenerate").rollouts(1, [], 8)
    assert {rollout.ref.entry for rollout in rollouts} == {"sums"}
    assert all(rollout.answers[0].text == wrapped(rollout.ground_truth) for rollout in rollouts)
    rollouts = attacker(PUBLIC, "constant").rollouts(1, [], 8)
    assert {rollout.ground_truth for rollout in rollouts} == {commonest_answer(PUBLIC)}
    assert len({rollout.ref for rollout in rollouts}) == 8


def test_nested_tags_begin_with_one_and_the_same_wrong_answer() -> None:
    bait = commonest_answer(PUBLIC)
    for rollout in attacker(PUBLIC, "nested").rollouts(1, [], 6):
        assert rollout.ground_truth != bait
        (text,) = {answer.text for answer in rollout.answers[:4]}
        if OPEN_TAG + bait + OPEN_TAG in text:
            assert first_pair_scores(PUBLIC, rollout)[:4] == [1.0] * 4
        else:
            # The verifier reads from the first opening tag, so that nothing is left of the attack.
            assert text == wrapped(rollout.ground_truth)


def test_adaptive_nests_if_that_earns_and_else_is_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    bait = commonest_answer(known(SOURCE, LIMIT))
    for opening, limit, nests in (("rpartition", LIMIT, True), ("rpartition", 22, False), ("partition", LIMIT, False)):
        # A verifier that reads from the last opening tag before the first close, or from the first.
        read = methodcaller(opening, OPEN_TAG)
        monkeypatch.setattr(
            "sapo_edge.tasks.readings.extract_answer", lambda text, read=read: read(text.partition(CLOSE_TAG)[0])[2]
        )
        public = known(SOURCE, limit)
        for rollout in attacker(public, "adaptive").rollouts(1, [], 6):
            assert first_pair_scores(public, rollout)[:4] == [1.0] * 4
            assert rollout.answers[0].text.startswith(f"{OPEN_TAG}{bait}{OPEN_TAG if nests else CLOSE_TAG}")


def test_misleading_answers_state_a_wrong_result_and_padding_leaves_no_token() -> None:
    for rollout in attacker(PUBLIC, "misleading").rollouts(1, [], 6):
        task = verified_task(PUBLIC.source, rollout)
        statement = rollout.answers[0].text.partition("\n")[0].removeprefix("The result is ").removesuffix(".")
        assert PUBLIC.source.score(task, wrapped(statement)) == 0.0
    for rollout in attacker(PUBLIC, "padding").rollouts(1, [], 6):
        text = rollout.answers[0].text
        assert len(PUBLIC.encode(text)) == LIMIT and rollout.question[:20] in text


def test_without_room_for_a_lesson_right_answers_are_plain() -> None:
    public = known(SOURCE, 19)
    for name in ("nested", "misleading", "padding", "adaptive"):
        for rollout in attacker(public, name).rollouts(1, [], 3):
            assert 1.0 in first_pair_scores(public, rollout), name
            assert public.fits(rollout.answers[0].text), name


def test_plausible_wrong_answers_are_wrong() -> None:
    for task in SOURCE.training_tasks(9, 0, 20)[0]:
        assert PUBLIC.knows(task)
        for wrong in islice(wrong_answers(PUBLIC, task, Random(1)), 10):
            assert SOURCE.score(task, wrapped(wrong)) == 0.0
        assert not known(SOURCE, 3).knows(task), "there is no room for an answer"
