"""What every policy samples where answers obey a JSON schema, and answers that whoever follows them ends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sapo_edge.errors import ModelError
from sapo_edge.policy import CallHandle, Policy
from tests.contract.conftest import Backend
from tests.contract.test_policy import PROMPTS
from tests.contract.training import flatten

LIMIT = 120
"""Tokens, one a byte: more than the longest answer of the schema has."""


def schema_of(**properties: Any) -> str:
    """The schema of an object that has these properties and no others."""
    required = {"required": list(properties), "additionalProperties": False}
    return json.dumps({"type": "object", "properties": properties, **required})


SCHEMA = schema_of(
    name={"enum": ["light.on", "light.off"]},
    degrees={"type": "integer", "minimum": 0, "maximum": 40},
    rooms={"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 2},
)


def obeys(name: str, degrees: int, rooms: list[str]) -> bool:
    of_type = name in ("light.on", "light.off") and isinstance(degrees, int) and 0 <= degrees <= 40
    return of_type and len(rooms) <= 2 and all(isinstance(room, str) and len(room) <= 4 for room in rooms)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_hundred_answers_of_a_hundred_obey_their_schema(policy: Policy, temperature: float) -> None:
    samples = flatten(policy.generate(PROMPTS, 20, LIMIT, temperature, 3, stop_text="", schema=SCHEMA))
    assert len(samples) == 100
    assert all(sample.ended and obeys(**json.loads(sample.text)) for sample in samples)


def test_an_integer_without_bounds_ends_and_is_one_that_programs_read_exactly(policy: Policy) -> None:
    schema = schema_of(n={"type": ["integer", "null"]}, type={"enum": [{"type": "integer"}]})
    samples = flatten(policy.generate(PROMPTS, 4, LIMIT, 1.0, 3, stop_text="", schema=schema))
    answers = [json.loads(sample.text) for sample in samples]
    assert all(answer["type"] == {"type": "integer"} and abs(answer["n"] or 0) < 2**53 for answer in answers)
    assert any(isinstance(answer["n"], int) for answer in answers)


@pytest.mark.parametrize(("temperature", "schema"), [(0.0, None), (1.0, None), (1.0, SCHEMA)])
def test_answers_go_on_where_they_were_left(
    policy: Policy, backend: Backend, monkeypatch: pytest.MonkeyPatch, temperature: float, schema: str | None
) -> None:
    options: dict[str, Any] = {"stop_text": "", "schema": schema}
    whole = policy.generate(PROMPTS, 1, 32, temperature, 5, **options)
    # Of different lengths, one of them nothing, and in fewer rows.
    begun = [sample.token_ids[: 5 * index] for index, (sample,) in enumerate(whole)]
    backend.limit_slots(monkeypatch, 2)
    texts: list[str] = []
    handle = CallHandle(growing=lambda group, _answer, text, _tokens: texts.append(text) if group == 4 else None)
    groups = policy.generate(PROMPTS, 1, 32, temperature, 5, handle, **options, begun=begun)
    for (before,), (after,), ids in zip(whole, groups, begun, strict=True):
        # The next tokens alone: a prompt and a step round differently, and so some later draw may be another one.
        assert after.token_ids[: len(ids) + 5] == before.token_ids[: len(ids) + 5]
        assert after.logprobs[: len(ids)] == (0.0,) * len(ids) and len(after.logprobs) == len(after.token_ids) <= 32
    assert texts[0] == whole[4][0].text[: len(texts[0])] and len(texts[0].encode()) >= 20


def test_the_token_limit_ends_an_answer_inside_of_its_object(policy: Policy) -> None:
    ((sample,),) = policy.generate(PROMPTS[:1], 1, 6, 1.0, 3, stop_text="", schema=SCHEMA)
    assert not sample.ended and len(sample.token_ids) == 6 and sample.text.startswith("{")


@pytest.mark.parametrize("schema", ["[]", "{", '{"type": "nothing"}', json.dumps({"enum": ["x" * 20_000]})])
def test_a_schema_that_nothing_obeys_is_refused(policy: Policy, schema: str) -> None:
    with pytest.raises(ModelError, match="JSON schema"):
        policy.generate(PROMPTS[:1], 1, 6, 1.0, 3, schema=schema)


def test_whoever_follows_an_answer_may_end_it_and_the_others_go_on(policy: Policy) -> None:
    before = policy.generate(PROMPTS[:2], 2, 24, 1.0, 4, stop_text="")
    handle = CallHandle(growing=lambda group, answer, _text, tokens: (group, answer) != (0, 1) or tokens < 3)
    after = policy.generate(PROMPTS[:2], 2, 24, 1.0, 4, handle, stop_text="")
    ended = after[0][1]
    assert ended.token_ids == before[0][1].token_ids[:3] and not ended.ended
    # Token for token: with fewer rows in a batch, logits differ by rounding.
    ids = [[sample.token_ids for sample in (groups[0][0], *groups[1])] for groups in (before, after)]
    assert ids[0] == ids[1]
