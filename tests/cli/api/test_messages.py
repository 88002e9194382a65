"""What a request may ask: bounds, what is refused by name, what is ignored."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sapo_edge.cli.api.messages import MAX_MESSAGES, NEUTRAL, ApiError, read_chat, read_completion
from sapo_edge.policy import Message

USER = {"role": "user", "content": "hello"}


def chat(**fields: Any) -> bytes:
    return json.dumps({"model": "first", "messages": [USER], **fields}).encode()


def refusal(body: bytes) -> ApiError:
    with pytest.raises(ApiError) as refused:
        read_chat(body)
    assert refused.value.status == 400
    return refused.value


def test_what_clients_send_is_read() -> None:
    question = read_chat(
        chat(
            messages=[{"role": "developer", "content": "be brief"}, {"role": "user", "content": [
                {"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]}],
            temperature=0.5, seed=-3, max_tokens=5, max_completion_tokens=7, stop="x", stream=True,
            stream_options={"include_usage": True}, user="me", chat_id="webui", n=1, top_p=1.0, tools=[],
            presence_penalty=0.0, frequency_penalty=None, logprobs=False, tool_choice="auto",
        )
    )  # fmt: skip
    assert question.messages == (Message("system", "be brief"), Message("user", "hello"))
    assert (question.temperature, question.seed, question.max_tokens, question.stops) == (0.5, -3, 7, ("x",))
    assert question.stream and question.usage and question.unknown == ("chat_id",)


def test_a_completion_is_the_users_message() -> None:
    assert read_completion(b'{"model": "m", "prompt": ["hello"]}').messages == (Message("user", "hello"),)
    for prompt in (["a", "b"], [1, 2], None, 3):
        with pytest.raises(ApiError, match="prompt"):
            read_completion(json.dumps({"model": "m", "prompt": prompt}).encode())


@pytest.mark.parametrize("name", NEUTRAL)
def test_what_can_not_be_obeyed_is_refused_by_name_and_its_neutral_value_taken(name: str) -> None:
    for value in (*NEUTRAL[name], None):
        read_chat(chat(**{name: value}))
    error = refusal(chat(**{name: 0.37}))
    assert error.parameter == name and name in error.message and error.body["error"]["param"] == name


@pytest.mark.parametrize(("fields", "parameter"), [
    ({"model": None}, "model"), ({"model": "x" * 1000}, "model"),
    ({"messages": []}, "messages"), ({"messages": [USER] * (MAX_MESSAGES + 1)}, "messages"),
    ({"messages": ["hello"]}, "messages[0]"), ({"messages": [{"role": "tool", "content": ""}]}, "messages[0].role"),
    ({"messages": [USER, {"role": "user"}]}, "messages[1].content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content"),
    ({"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]}, "messages[0].tool_calls"),
    ({"n": 2}, "n"), ({"n": True}, "n"), ({"top_p": 0.9}, "top_p"), ({"tools": [{"type": "function"}]}, "tools"),
    ({"temperature": 2.1}, "temperature"), ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"), ({"temperature": 10**400}, "temperature"),
    ({"max_tokens": 0}, "max_tokens"), ({"max_tokens": 1.5}, "max_tokens"), ({"seed": 1 << 80}, "seed"),
    ({"stop": ["a"] * 5}, "stop"), ({"stop": ""}, "stop"), ({"stop": [3]}, "stop"), ({"stop": 3}, "stop"),
    ({"stream": 1}, "stream"), ({"stream_options": {}}, "stream_options"),
    ({"response_format": {"type": "xml"}}, "response_format"), ({"response_format": "json"}, "response_format"),
    ({"response_format": {"type": "json_schema"}}, "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}}},
     "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": ["x" * 20_000]}}}},
     "response_format"),
])  # fmt: skip
def test_what_is_wrong_is_named(fields: dict[str, Any], parameter: str) -> None:
    assert refusal(chat(**fields)).parameter == parameter


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"seed": NaN}', b'{"model": 1e999}'])
def test_a_body_that_is_no_request_is_refused(body: bytes) -> None:
    refusal(body)


def test_multiples_whose_remainders_would_fill_the_memory_are_refused() -> None:
    def multiples_of(*numbers: float) -> bytes:
        schema = {"type": "number", "allOf": [{"multipleOf": number} for number in numbers]}
        return chat(response_format={"type": "json_schema", "json_schema": {"schema": schema}})

    assert read_chat(multiples_of(0.05, 25, 3600, 1e6)).schema is not None
    for numbers in ((626_155,), (7919, 79), (0.626155,)):
        assert "multipleOf" in refusal(multiples_of(*numbers)).message


def test_formats_become_schemas() -> None:
    assert read_chat(chat(response_format={"type": "text"})).schema is None
    assert read_chat(chat(response_format={"type": "json_object"})).schema == '{"type": "object"}'
    named = {"name": "call", "strict": True, "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}
    schema = read_chat(chat(response_format={"type": "json_schema", "json_schema": named})).schema
    assert schema is not None and json.loads(schema) == named["schema"]
